"""Log events with their fields: as JSON, an object a line, or after the event's text.

A project that has its own LOGGING takes `JSONFormatter` or `TextFormatter` there;
`runworker --log-format json` sets up the first, and every command the second, by themselves.
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

from django.conf import settings
from django.utils.log import RequireDebugTrue

LOGGER: Final = "django_workqueue"
LINE_BYTES: Final = select.PIPE_BUF
"""A pipe takes so much in one piece: lines that several processes write to it are not torn."""
CUTS: Final = (2000, 500, 100, 20)
TEXT_CHARS: Final = 200
"""Of one field in a line for a person."""
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
        told |= event_fields(record)
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return told


class TextFormatter(logging.Formatter):
    """The event's text and, for the package's own events, its fields as ``name=value``."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        text = super().formatMessage(record)
        # What others log is theirs to lay out: their fields may hold anything.
        if record.name.split(".")[0] != LOGGER:
            return text
        told = (f"{name}={_in_text(value)}" for name, value in event_fields(record).items())
        return "  ".join([text, *filter(None, [" ".join(told)])])


def event_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of an event, without those that have no value."""
    return {
        name: value
        for name, value in vars(record).items()
        if name not in OF_EVERY_RECORD and value is not None
    }


def _in_text(value: Any) -> str:
    text = str(cut(value, TEXT_CHARS))
    # Quoted where its end could not be seen, or where it has more than one line.
    return text if text.isprintable() and text and " " not in text else repr(text)


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
def fields_in_text() -> Iterator[None]:
    """Show the fields of the package's warnings where the project has no handler for them.

    Such records go to logging's handler of last resort, which prints their text alone.
    """
    handler = logging.lastResort
    if handler is None:
        yield
        return
    former = handler.formatter
    handler.setFormatter(TextFormatter())
    try:
        yield
    finally:
        handler.setFormatter(former)


@contextlib.contextmanager
def json_to(stream: TextIOBase, level: int) -> Iterator[None]:
    """Let the package's events from *level* on go to *stream* as JSON, and nowhere else."""
    logger = logging.getLogger(LOGGER)
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


@contextlib.contextmanager
def unheard_left_out(name: str, level: int = logging.INFO) -> Iterator[None]:
    """Let logger *name* make no record of *level* and below where no handler would show one.

    As it is now, with Django's own LOGGING say: what sets up logging later has to set its level.
    """
    logger = logging.getLogger(name)
    if logger.level != logging.NOTSET or is_heard(logger, level):
        yield
        return
    logger.setLevel(level + 1)
    try:
        yield
    finally:
        # Not what a project has set meanwhile.
        if logger.level == level + 1:
            logger.setLevel(logging.NOTSET)


def is_heard(logger: logging.Logger | None, level: int) -> bool:
    """Tell whether a handler may show a record of *level*: with filters but Django's, it may.

    So may whoever sees all records by a method in the place of logging's own, as Sentry does.
    """
    if logger is not None and (logger.filters or not _is_plain(logger)):
        return True
    while logger is not None:
        for handler in logger.handlers:
            silent = not settings.DEBUG and any(
                isinstance(each, RequireDebugTrue) for each in handler.filters
            )
            if handler.level <= level and not silent:
                return True
        logger = logger.parent if logger.propagate else None
    return False


def _is_plain(logger: logging.Logger) -> bool:
    own = logging.makeLogRecord.__code__.co_filename
    passed = (type(logger).handle, type(logger).callHandlers)
    return all(method.__code__.co_filename == own for method in passed)


def discard_stdout() -> None:
    """Let the standard output go nowhere: what is left of it would fail once more at the exit."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, sys.stdout.fileno())
    os.close(descriptor)
