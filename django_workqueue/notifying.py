"""Telling those who wait in `wakeup` that work came: NOTIFY, on PostgreSQL alone.

A notification that fails loses nothing and fails nobody (I6): the poll finds the job.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from django.db import DatabaseError, InterfaceError, transaction

from . import conf
from .store import BaseStore
from .store.postgresql import CHANNEL

logger = logging.getLogger("django_workqueue.wakeup")


class _Transaction:
    """One outermost transaction that enqueued something, and whether its workers were told."""

    def __init__(self, outermost: Any) -> None:
        self.outermost = outermost
        self.told = False


_local = threading.local()


def notify(store: BaseStore) -> None:
    """Tell waiting workers, after the commit of the present transaction, once a transaction.

    (In a transaction NOTIFY would make commits wait for each other.)
    """
    if not _notifies(store):
        return
    connection = store.connection
    if not connection.in_atomic_block:
        _send(store)
        return
    known: dict[str, _Transaction] = _local.__dict__.setdefault("transactions", {})
    current = known.get(store.alias)
    if current is None or current.outermost is not connection.atomic_blocks[0]:
        current = known[store.alias] = _Transaction(connection.atomic_blocks[0])

    # A hook for each call, since a savepoint that rolls back takes its hooks along.
    def tell(noted: _Transaction = current) -> None:
        if not noted.told:
            noted.told = True
            _send(store)

    transaction.on_commit(tell, using=store.alias, robust=True)


def tell_schedulers(store: BaseStore) -> None:
    """Tell waiting schedulers, after the commit of the present transaction, of a change."""
    if _notifies(store):
        transaction.on_commit(lambda: _send(store, "schedules"), using=store.alias, robust=True)


def _notifies(store: BaseStore) -> bool:
    return store.connection.vendor == "postgresql" and conf.current().notify


def _send(store: BaseStore, told: str = "") -> None:
    try:
        with store.connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, told])
    except (DatabaseError, InterfaceError):
        logger.warning("notification failed; a poll finds the job", exc_info=True)
