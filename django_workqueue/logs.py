"""Log events as JSON: the event's fixed text and its fields, an object a line.

A project that has its own LOGGING takes `JSONFormatter` there; `runworker --log-format json` sets
it up by itself.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from io import TextIOBase
from typing import Any, Final

LINE_BYTES: Final = select.PIPE_BUF
"""A pipe takes so much in one piece: lines that several processes write to it are not torn."""
CUTS: Final = (2000, 500, 100, 20)
OF_EVERY_RECORD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JSONFormatter(logging.Formatter):
    """One JSON object in one line of ASCII, cut so that a pipe takes it in one piece.

    ``time`` (UTC), ``level``, ``logger``, ``event``, then the event's fields, and ``exception``
    with the traceback where there is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        told = self._fields(record)
        line = json.dumps(told, default=str)
        for most in CUTS:
            if len(line) < LINE_BYTES:
                break
            line = json.dumps({name: cut(value, most) for name, value in told.items()}, default=str)
        return line

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        told: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "event": record.getMessage(),
        }
        told |= {
            name: value
            for name, value in vars(record).items()
            if name not in OF_EVERY_RECORD and value is not None
        }
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return told


def cut(value: Any, most: int) -> Any:
    """Return *value*, or what is left of a long text: its end, where a traceback has the error."""
    if isinstance(value, bool | int | float):
        return value
    text = str(value)
    return value if len(text) <= most else f"...{text[-most:]}"


class _QuietHandler(logging.StreamHandler[TextIOBase]):
    """Goes silent when nobody reads any more, which is no reason to stop working."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging's name
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            super().handleError(record)
            return
        self.setLevel(logging.CRITICAL + 1)
        discard_stdout()


@contextlib.contextmanager
def json_to(stream: TextIOBase, level: int) -> Iterator[None]:
    """Let the package's events from *level* on go to *stream* as JSON, and nowhere else."""
    logger = logging.getLogger("django_workqueue")
    former = logger.level, logger.propagate, logger.handlers[:]
    handler = _QuietHandler(stream)
    handler.setFormatter(JSONFormatter())
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.level, logger.propagate, logger.handlers[:] = former
        # Its setter alone forgets which loggers were enabled.
        logger.setLevel(former[0])


def discard_stdout() -> None:
    """Let the standard output go nowhere: what is left of it would fail once more at the exit."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, sys.stdout.fileno())
    os.close(descriptor)
