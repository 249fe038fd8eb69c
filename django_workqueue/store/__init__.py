"""Every write to a job's or a schedule's row. ``get_store`` is the way in."""

from __future__ import annotations

import functools

from django.db import DEFAULT_DB_ALIAS, connections, router

from .. import conf
from ..exceptions import UnsupportedDatabase
from ..models import LiveJob
from .base import BaseStore
from .mysql import MySQLStore
from .operating import CancelAnswer
from .postgresql import PostgreSQLStore
from .records import Ack, Claim, ErrorRecord, Hold, Inserted, NewJob, Swept
from .sqlite import SQLiteStore

__all__ = [
    "Ack",
    "BaseStore",
    "CancelAnswer",
    "Claim",
    "ErrorRecord",
    "Hold",
    "Inserted",
    "NewJob",
    "Swept",
    "get_store",
    "outbox_aliases",
    "queue_alias",
]

STORES: dict[str, type[BaseStore]] = {
    "mysql": MySQLStore,  # and MariaDB
    "postgresql": PostgreSQLStore,
    "sqlite": SQLiteStore,
}


def queue_alias(settings: conf.Settings | None = None) -> str:
    """Return the alias of the queue's database: the setting's, or where a router sends the app."""
    alias = (settings or conf.current()).database
    may_be_sent = alias == DEFAULT_DB_ALIAS and router.routers
    return router.db_for_write(LiveJob) if may_be_sent else alias


def outbox_aliases() -> list[str]:
    """Return the databases other than the queue's whose outbox is relayed.

    Without those that cannot have the tables: OUTBOX_DATABASES has a default.
    """
    home = queue_alias()
    return [
        alias
        for alias in conf.current().outbox_databases
        if alias != home
        and connections[alias].vendor in STORES
        and router.allow_migrate_model(alias, LiveJob)
    ]


def get_store(alias: str | None = None) -> BaseStore:
    """Return the store of *alias* (None: the queue's database).

    Raises UnsupportedDatabase for a database that has none.
    """
    if alias is None:
        alias = queue_alias()
    # By the setting, which costs less to look at than this thread's connection.
    engine = connections.settings.get(alias, {}).get("ENGINE")
    return _store(engine, alias)


@functools.lru_cache
def _store(engine: str | None, alias: str) -> BaseStore:
    """Return the one store of an alias, which keeps the texts of its statements."""
    vendor = connections[alias].vendor
    if vendor not in STORES:
        raise UnsupportedDatabase(
            f"The queue's database must be one of {', '.join(sorted(STORES))}, got {vendor!r} "
            f"for the alias {alias!r}. Name another alias in WORKQUEUE['DATABASE']."
        )
    return STORES[vendor](alias)
