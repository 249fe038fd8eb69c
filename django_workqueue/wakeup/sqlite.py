"""Looks at ``PRAGMA data_version``: at once after a write to the file, else now and then."""

from __future__ import annotations

import math
from typing import Any, Final

from django.db import DatabaseError, InterfaceError

from .. import clock
from ..store import BaseStore
from ..watching import FileWatch
from .base import Wakeup

DATA_VERSION_SECONDS: Final = 0.02
"""Between two looks at data_version; one costs up to 0.1 ms, and idling is to stay under 1 %."""
WATCHED_SECONDS: Final = 0.25
"""The same while the system tells of writes to the file, so that a look only has to follow one."""
FIRST_LOOK_SECONDS: Final = 0.001
"""A write is told before its commit can be seen: looks follow it at once, then ever rarer."""
QUIET_SECONDS: Final = 0.02
"""After a change of data_version, before the next one wakes."""


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
