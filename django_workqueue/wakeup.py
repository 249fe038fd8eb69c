"""A hint that work came. It may be lost, late or doubled (I6): the poll is what finds work.

PostgreSQL: LISTEN on one fixed channel, on the connection of the thread that waits; `notifying`
tells there. SQLite: ``PRAGMA data_version``, which moves with every commit of another connection.
Elsewhere nobody tells, and the poll is all there is.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import uuid
from typing import TYPE_CHECKING, Any, Final

from django.db import DatabaseError, InterfaceError

from . import clock, conf
from .store import BaseStore
from .store.postgresql import CHANNEL
from .watching import FileWatch

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

logger = logging.getLogger("django_workqueue.wakeup")

PROOF_SECONDS: Final = 2.0
TRUSTED_POLL_FACTOR: Final = 5
DATA_VERSION_SECONDS: Final = 0.02
"""Between two looks at data_version; one costs up to 0.1 ms, and idling is to stay under 1 %."""
WATCHED_SECONDS: Final = 0.25
"""The same while the system tells of writes to the file, so that a look only has to follow one."""
FIRST_LOOK_SECONDS: Final = 0.001
"""A write is told before its commit can be seen: looks follow it at once, then ever rarer."""
QUIET_SECONDS: Final = 0.02
"""After a change of data_version, before the next one wakes."""


class Wakeup:
    """Wakes one waiting thread: from other threads, from signal handlers, from the database.

    ``set`` writes to a pipe, which a signal handler may do at any point.
    """

    told_by = "poll"

    def __init__(self, store: BaseStore) -> None:
        self._store = store
        self.told = False
        """Whether somebody who enqueued has told of it since the last `catch_up`."""
        # Written before, and read after, the flag that says so is changed.
        self._is_set = False
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)

    @property
    def trusted(self) -> bool:
        """Whether the database was seen to tell; then the poll may be rarer."""
        return False

    def attach(self) -> None:
        """Begin to listen, or begin again on a new connection. Called before each look for work."""

    def catch_up(self) -> None:
        """Forget what was told until now: a look for work follows, which sees all of it.

        So that what this process has written itself wakes it not.
        """
        self.told = False

    def set(self) -> None:
        # A full pipe says it already, and a closed one has nobody left to tell.
        with contextlib.suppress(OSError):
            os.write(self._writer, b".")
        self._is_set = True

    def clear(self) -> None:
        if not self._is_set:
            return
        self._is_set = False
        with contextlib.suppress(BlockingIOError):
            while os.read(self._reader, 4096):
                pass

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until woken, at most *timeout* seconds; return whether it was."""
        return bool(self._readable(timeout, self._reader))

    def detach(self) -> None:
        """Close the connection of its own that it may have; it can be woken all the same."""

    def close(self) -> None:
        self.detach()
        reader, writer = self._reader, self._writer
        # First, since a thread that still runs may call set(): the number is soon another file's.
        self._reader = self._writer = -1
        os.close(reader)
        os.close(writer)

    def _readable(self, timeout: float | None, *descriptors: int) -> list[int]:
        # poll(), since select() knows no descriptor above 1,023.
        poll = select.poll()
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        return [found for found, _ in poll.poll(None if timeout is None else timeout * 1000)]


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


class SQLiteWakeup(Wakeup):
    """``PRAGMA data_version`` on a connection of its own: it stands still for own commits.

    On Linux the kernel tells when to look.
    """

    told_by = "data_version"

    def __init__(self, store: BaseStore) -> None:
        super().__init__(store)
        self._connection: Any = None
        self._version: int | None = None
        self._quiet_until = 0.0
        self._files = FileWatch()
        self._watched = False
        # Seconds to the next look after a write whose commit was not seen yet.
        self._look_seconds = math.inf

    @property
    def trusted(self) -> bool:
        return self._version is not None

    def attach(self) -> None:
        if self._connection is None:
            self._connection = self._store.connection.copy()
        if self._version is None:
            self._connection.close()
            self._connection.ensure_connection()
            self._version = self._read_version()
            self._watch()

    def catch_up(self) -> None:
        super().catch_up()
        if self._version is None:
            return
        if self._watched and self._files.take():
            self._watch()
        try:
            self._version = self._read_version()
        except (DatabaseError, InterfaceError):
            self._version = None

    def wait(self, timeout: float | None = None) -> bool:
        ends = None if timeout is None else clock.monotonic() + timeout
        while True:
            left = math.inf if ends is None else ends - clock.monotonic()
            if self._woken_within(max(min(left, self._pause_seconds()), 0.0)):
                return True
            try:
                changed = clock.monotonic() >= self._quiet_until and self._changed()
            except (DatabaseError, InterfaceError):
                # Locked for readers too, or its connection broke. The next step meets what lasts.
                self._version = None
                return True
            if changed:
                return True
            if left <= 0:
                return False

    def detach(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._version = None

    def close(self) -> None:
        super().close()
        self._files.close()

    def _watch(self) -> None:
        """Watch the database's file, and the log that a commit is written to first."""
        name = str(self._connection.settings_dict["NAME"])
        self._watched = self._files.watch([name, f"{name}-wal"])

    def _pause_seconds(self) -> float:
        """Return how long to wait before the next look at data_version."""
        if not self._watched:
            return DATA_VERSION_SECONDS
        quiet = self._quiet_until - clock.monotonic()
        return quiet if quiet > 0 else min(self._look_seconds, WATCHED_SECONDS)

    def _woken_within(self, seconds: float) -> bool:
        """Wait until woken by this process, or until it is time to look; return which."""
        quiet = clock.monotonic() < self._quiet_until
        files = [] if quiet or self._files.descriptor is None else [self._files.descriptor]
        # A second write must not make the looks that follow the first come sooner.
        if self._look_seconds < WATCHED_SECONDS:
            files = []
        found = self._readable(seconds, self._reader, *files)
        if self._reader in found:
            return True
        if found:
            if self._files.take():
                self._watch()
            self._look_seconds = FIRST_LOOK_SECONDS
        elif self._look_seconds < WATCHED_SECONDS:
            self._look_seconds *= 2
        else:
            self._look_seconds = math.inf
        return False

    def _changed(self) -> bool:
        version = self._read_version()
        if version == self._version:
            return False
        self._version = version
        self._look_seconds = math.inf
        # A busy application on the same file must not make its workers look at every commit.
        self._quiet_until = clock.monotonic() + QUIET_SECONDS
        return True

    def _read_version(self) -> int:
        # The driver's own cursor: Django's costs fifty times as much, hundreds of times a second.
        with self._connection.wrap_database_errors:
            row = self._connection.connection.execute("PRAGMA data_version").fetchone()
        return int(row[0])


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
