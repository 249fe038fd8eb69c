"""A hint that work came. It may be lost, late or doubled (I6): the poll is what finds work.

PostgreSQL: LISTEN on one fixed channel, on the connection of the thread that waits; `notifying`
tells there. SQLite: ``PRAGMA data_version``, which moves with every commit of another connection.
Elsewhere nobody tells, and the poll is all there is.
"""

from __future__ import annotations

from typing import Final

from .. import conf
from ..store import BaseStore
from .base import Wakeup
from .postgresql import PostgreSQLWakeup, ScheduleWakeup
from .sqlite import SQLiteWakeup

TRUSTED_POLL_FACTOR: Final = 5
"""How much rarer the poll is while the database is seen to tell."""


def wakeup_for(store: BaseStore) -> Wakeup:
    """Return the wake-up that the store's database can give."""
    vendor = store.connection.vendor
    if vendor == "postgresql" and conf.current().notify:
        return PostgreSQLWakeup(store)
    return SQLiteWakeup(store) if vendor == "sqlite" else Wakeup(store)


def schedule_wakeup_for(store: BaseStore) -> Wakeup:
    """Return the wake-up of a scheduler: elsewhere than on PostgreSQL, it polls.

    SQLite would wake it at every commit of every job.
    """
    listens = store.connection.vendor == "postgresql" and conf.current().notify
    return ScheduleWakeup(store) if listens else Wakeup(store)
