"""A job wherever it is, and Django's TaskResult for it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from django.db.models import CharField, QuerySet, Value

from .compat import TaskError, TaskResult, TaskResultStatus
from .exceptions import WorkerLost, WorkQueueError
from .models import DeadJob, LiveJob, Result
from .models.fields import JSONTextField, MomentField
from .states import DJANGO_STATUS, Place, State


@dataclass(frozen=True, slots=True)
class Found:
    """The facts that a live, a dead and a finished job share. *state* is a State, "dead", or the
    outcome of a finished job; *reason* why a dead one died.
    """

    id: uuid.UUID
    lane: str
    queue_name: str
    task: str
    kind: str
    backend: str
    payload: Any
    rank: int
    state: str
    reason: str
    value: Any
    attempt: int
    worker_ids: list[str]
    errors: list[dict[str, Any]]
    run_after: datetime
    enqueued_at: datetime
    claimed_at: datetime | None
    ended_at: datetime | None
    worker_id: str | None


_text: Any = CharField()
_COLUMNS: dict[type[Any], dict[str, Any]] = {
    # The finished first: its columns give the types of the others' NULLs.
    Result: {
        "state": "outcome",
        "reason": Value("", _text),
        "attempt": "attempts",
        "claimed_at": "started_at",
        "ended_at": "finished_at",
        "worker_id": Value(None, _text),
    },
    DeadJob: {
        "state": Value(Place.DEAD.value, _text),
        "value": Value(None, JSONTextField()),
        "ended_at": "died_at",
        "worker_id": Value(None, _text),
    },
    LiveJob: {
        "reason": "held_reason",
        "value": Value(None, JSONTextField()),
        "ended_at": Value(None, MomentField()),
    },
}


def find(alias: str, job_id: uuid.UUID) -> Found | None:
    """Return the job, wherever it is, or None.

    One statement over the three tables: between two, a job that moved would be missed.
    """
    names = [each.name for each in fields(Found)]
    parts = []
    for model, columns in _COLUMNS.items():
        chosen = [columns.get(name, name) for name in names]
        rows = model._base_manager.using(alias).filter(pk=job_id).order_by()
        parts.append(rows.values_list(*chosen))
    for row in parts[0].union(*parts[1:], all=True):
        return Found(*row)
    return None


def live(rows: QuerySet[LiveJob]) -> Found | None:
    """Return the first of live *rows*, or None."""
    columns = _COLUMNS[LiveJob]
    chosen = [columns.get(each.name, each.name) for each in fields(Found)]
    row = rows.values_list(*chosen).first()
    return None if row is None else Found(*row)


def task_result(found: Found, task: Any) -> TaskResult[..., Any]:
    """Return Django's TaskResult for *found*, a job of *task*."""
    call = found.payload if isinstance(found.payload, dict) else {}
    running = found.state == State.RUNNING
    starts = [moment(error["started"]) for error in found.errors if error["started"]]
    if found.claimed_at is not None and (running or found.state not in (*State, Place.DEAD)):
        starts.append(found.claimed_at)
    worker_ids = found.worker_ids + ([found.worker_id] if running and found.worker_id else [])
    result: TaskResult[..., Any] = TaskResult(
        task=task,
        id=str(found.id),
        status=TaskResultStatus[DJANGO_STATUS[found.state]],
        enqueued_at=found.enqueued_at,
        started_at=starts[0] if starts else None,
        finished_at=found.ended_at,
        last_attempted_at=starts[-1] if starts else None,
        args=call.get("args", []),
        kwargs=call.get("kwargs", {}),
        backend=found.backend,
        errors=[task_error(error) for error in found.errors],
        worker_ids=worker_ids,
    )
    object.__setattr__(result, "_return_value", found.value)
    return result


def task_error(record: dict[str, Any]) -> TaskError:
    """Return Django's TaskError for one record of a row's errors.

    An attempt that ended without an exception, because its worker was lost say, names one of
    this package's error classes, and its message stands in the traceback's place.
    """
    fallback = WorkerLost if record["outcome"] == "lost" else WorkQueueError
    return TaskError(
        exception_class_path=record["exception_class"]
        or f"{fallback.__module__}.{fallback.__qualname__}",
        traceback=record["traceback"] or record["message"],
    )


def moment(text: str) -> datetime:
    """Return the moment that a row's errors hold as text."""
    return datetime.fromisoformat(text)
