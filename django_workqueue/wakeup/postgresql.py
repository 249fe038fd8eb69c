"""LISTEN on the one channel that `notifying` tells on."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any, Final

from django.db import DatabaseError, InterfaceError

from .. import clock
from ..store import BaseStore
from ..store.postgresql import CHANNEL
from .base import Wakeup

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

logger = logging.getLogger("django_workqueue.wakeup")

PROOF_SECONDS: Final = 2.0


class PostgreSQLWakeup(Wakeup):
    """LISTEN, proved by a notification to itself: behind a transaction pooler none arrives."""

    told_by = "LISTEN/NOTIFY"

    def __init__(self, store: BaseStore) -> None:
        super().__init__(store)
        self._listening: Any = None
        self._trusted = False
        # The payloads of notifications that came along with the answers of other statements.
        self._came: list[str] = []

    @property
    def trusted(self) -> bool:
        return self._trusted

    def attach(self) -> None:
        wrapper = self._store.connection
        wrapper.ensure_connection()
        if wrapper.connection is self._listening:
            return
        with wrapper.cursor() as cursor:
            cursor.execute(f"LISTEN {CHANNEL}")
        self._listening = wrapper.connection
        if hasattr(wrapper.connection, "add_notify_handler"):
            wrapper.connection.add_notify_handler(lambda found: self._came.append(found.payload))
        self._trusted = self._prove(wrapper)
        if not self._trusted:
            logger.warning("notifications do not arrive; polling", extra={"alias": wrapper.alias})

    def wait(self, timeout: float | None = None) -> bool:
        if self._listening is None or self._store.connection.connection is not self._listening:
            return super().wait(timeout)
        try:
            if self._take():
                self.told = True
                return True
            socket = self._listening.fileno()
            found = self._readable(timeout, self._reader, socket)
            self.told = socket in found and bool(self._take())
            return self.told or self._reader in found
        except (DatabaseError, InterfaceError):
            # The next step meets the broken connection by itself, and attaches to a new one.
            self._listening, self._trusted = None, False
            return True

    def _prove(self, wrapper: BaseDatabaseWrapper) -> bool:
        expected = uuid.uuid4().hex
        with wrapper.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, expected])
        ends = clock.monotonic() + PROOF_SECONDS
        while expected not in self._take():
            left = ends - clock.monotonic()
            if left <= 0 or not self._readable(left, self._listening.fileno()):
                return False
        return True

    def _take(self) -> list[str]:
        """Return the payloads of the notifications that came, without waiting."""
        connection = self._listening
        with self._store.connection.wrap_database_errors:
            if pgconn := getattr(connection, "pgconn", None):
                # Not the connection's notifies(), which is made for waiting: a job that came waits
                # a tenth of a millisecond longer for it.
                pgconn.consume_input()
                while found := pgconn.notifies():
                    self._came.append(found.extra.decode())
            else:
                # psycopg2
                connection.poll()
                self._came += [each.payload for each in connection.notifies]
                connection.notifies.clear()
        payloads, self._came = self._came, []
        return payloads


class ScheduleWakeup(PostgreSQLWakeup):
    """Woken by a change of a schedule, and not by every job that is enqueued."""

    def _take(self) -> list[str]:
        return [payload for payload in super()._take() if payload]
