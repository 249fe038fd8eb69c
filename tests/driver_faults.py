"""Faults at the driver, in this process: a connection that breaks before or after a statement.

Every statement and every COMMIT of a process is a step. A fault hits one step: BEFORE it, so that
the server never saw it, or AFTER it, so that the server did it and the answer was lost. The
connection is closed below Django, as a network or a server closes it: what was open in it is
rolled back, and Django learns of it from the driver's error.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from unittest import mock

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper


class Moment(StrEnum):
    """When a fault comes, relative to the step that it hits."""

    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing sent to a server: a statement's text, or COMMIT."""

    number: int
    text: str
    thread: str

    def __str__(self) -> str:
        return f"{self.number}: {' '.join(self.text.split())[:100]} ({self.thread})"


Breaks = Callable[[Step], Moment | None]


@dataclass(slots=True)
class Driver:
    """The steps that were counted, and those that a fault hit."""

    breaks: Breaks
    counts: Callable[[str], bool]
    raises: Callable[[Any], Exception]
    steps: list[Step] = field(default_factory=list)
    hit: list[Step] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def around(
        self,
        db: BaseDatabaseWrapper,
        text: str,
        call: Callable[[], Any],
        read_answer: Callable[[], Any] = lambda: None,
    ) -> Any:
        """Take one step, unless a fault hits it."""
        thread = threading.current_thread().name
        if not self.counts(thread):
            return call()
        with self._lock:
            step = Step(len(self.steps), text, thread)
            self.steps.append(step)
            moment = self.breaks(step)
            if moment is not None:
                self.hit.append(step)
        if moment is None:
            return call()
        if moment is Moment.AFTER:
            call()
            read_answer()
        with db.wrap_database_errors:
            raise self.raises(db)


def cut(db: Any) -> Exception:
    """Break the connection below Django; return the driver's error for it."""
    error: Exception
    if db.vendor == "sqlite":
        # A file has no connection to lose. An error of the disk rolls back in the same way.
        db.connection.rollback()
        error = db.Database.OperationalError("disk I/O error")
        return error
    if db.vendor == "mysql":
        _cut_mysql(db.connection)
    else:
        db.connection.close()
    error = db.Database.OperationalError("server closed the connection unexpectedly")
    return error


def _cut_mysql(connection: Any) -> None:
    """Break a connection as a server does that is gone: the drivers refuse a second close()."""
    if hasattr(connection, "_force_close"):
        connection._force_close()  # PyMySQL
    else:
        with socket.socket(fileno=os.dup(connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)


@contextmanager
def driver(
    breaks: Breaks = lambda step: None,
    *,
    counts: Callable[[str], bool] = lambda thread: True,
    raises: Callable[[Any], Exception] = cut,
) -> Iterator[Driver]:
    """Count the steps of threads whose name *counts* takes, and break those that *breaks* names."""
    seen = Driver(breaks, counts, raises)
    execute = CursorWrapper._execute  # type: ignore[attr-defined]  # not in the stubs
    executemany = CursorWrapper._executemany  # type: ignore[attr-defined]  # as above
    commit = BaseDatabaseWrapper._commit  # type: ignore[attr-defined]  # as above

    def read_answer(cursor: CursorWrapper) -> None:
        # SQLite ends a statement that returns rows when the last of them was read.
        if cursor.cursor.description:
            cursor.cursor.fetchall()

    def around_execute(cursor: Any, sql: str, params: Any, *context: Any) -> Any:
        return seen.around(
            cursor.db,
            str(sql),
            lambda: execute(cursor, sql, params, *context),
            lambda: read_answer(cursor),
        )

    def around_executemany(cursor: Any, sql: str, rows: Any, *context: Any) -> Any:
        return seen.around(cursor.db, str(sql), lambda: executemany(cursor, sql, rows, *context))

    def around_commit(db: BaseDatabaseWrapper) -> Any:
        return seen.around(db, "COMMIT", lambda: commit(db))

    with (
        mock.patch.object(CursorWrapper, "_execute", around_execute),
        mock.patch.object(CursorWrapper, "_executemany", around_executemany),
        mock.patch.object(BaseDatabaseWrapper, "_commit", around_commit),
    ):
        yield seen


def at(number: int, moment: Moment) -> Breaks:
    """Break the step with this number, once."""
    return lambda step: moment if step.number == number else None
