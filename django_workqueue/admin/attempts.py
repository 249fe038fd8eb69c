"""The attempts of a job, read from its row."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db.models import TextField
from django.db.models.functions import Right

from ..models import DeadJob
from .showing import bounded, first_line, visible

TAIL_CHARS: Final = 16_384
"""What a list reads of each row's errors: nearly always the whole last record."""

RECORD_START: Final = '{"attempt":'
# Inside a JSON string its quotes would be escaped: unescaped, it is a record's beginning.


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt as it is shown; every text is bounded and visible."""

    number: str
    outcome: str
    worker: str
    started: datetime | None
    ended: datetime | None
    exception_class: str
    message: str
    traceback: str
    is_cut: bool

    @property
    def headline(self) -> str:
        """The exception's class, without its module, and the first line of its message."""
        name = self.exception_class.rpartition(".")[2]
        line = first_line(self.message)
        return f"{name}: {line}" if name and line else name or line

    @property
    def seconds(self) -> float | None:
        if self.started is None or self.ended is None:
            return None
        return max((self.ended - self.started).total_seconds(), 0.0)


def attempts_of(errors: Any) -> list[Attempt]:
    """Return the attempts kept in a row's *errors*, the newest first."""
    records = errors if isinstance(errors, list) else []
    return [_attempt(record) for record in reversed(records) if isinstance(record, Mapping)]


def last_errors(alias: str, ids: Collection[Any]) -> dict[Any, str]:
    """Return a line about the last error of each dead job, having read a bounded part of it."""
    tail = Right("errors", TAIL_CHARS, output_field=TextField())
    rows = DeadJob._default_manager.using(alias).filter(pk__in=ids).values_list("pk", tail)
    return {pk: line_from_tail(text or "") for pk, text in rows}


def line_from_tail(tail: str) -> str:
    """Return the headline of the last record in *tail*, the end of a row's errors.

    Where the record is longer than the tail, its traceback's last line says the same.
    """
    start = tail.rfind(RECORD_START)
    try:
        if start >= 0:
            return _attempt(json.loads(tail[start : tail.rindex("]")])).headline
        stack = tail[tail.index("\\n") : tail.rindex('","cut":')]
        return _last_line(json.loads(f'"{stack}"', strict=False))
    except ValueError:
        return ""


def _last_line(stack: str) -> str:
    """Return the line in which a traceback names the exception: the last one not indented."""
    lines = [line for line in stack.splitlines() if line and not line[0].isspace()]
    return first_line(lines[-1]) if lines else ""


def _attempt(record: Mapping[str, Any]) -> Attempt:
    return Attempt(
        number=_text(record, "attempt"),
        outcome=_text(record, "outcome"),
        worker=_text(record, "worker"),
        started=_moment(record.get("started")),
        ended=_moment(record.get("ended")),
        exception_class=_text(record, "exception_class"),
        message=_text(record, "message"),
        traceback=_text(record, "traceback"),
        is_cut=record.get("cut") is True,
    )


def _text(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    return "" if value is None else visible(bounded(str(value)))


def _moment(value: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return found if found.tzinfo is not None else None
