"""What a test says about jobs that wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from .. import payload, results
from ..compat import Task, TaskResult
from ..models import LiveJob
from ..states import Lane
from ..store import get_store

SHOWN: Final = 20
"""How many jobs a failed assertion shows."""


def assert_enqueued(
    task: Task[..., Any],
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    queue_name: str | None = None,
    count: int | None = None,
) -> list[TaskResult[..., Any]]:
    """Return the jobs of *task* that are enqueued and did not end yet, the oldest first.

    With *args*, *kwargs* or *queue_name* only those that have them. Raises AssertionError, which
    shows what is enqueued, where there is none; or not as many as *count*, where it is given.
    """
    waiting = _waiting()
    found = [
        each
        for each in waiting
        if each.task == task.module_path
        and (args is None or _of(each)["args"] == _stored(list(args)))
        and (kwargs is None or _of(each)["kwargs"] == _stored(dict(kwargs)))
        and (queue_name is None or each.queue_name == queue_name)
    ]
    if (not found) if count is None else (len(found) != count):
        wished = {"args": args, "kwargs": kwargs, "queue_name": queue_name}
        raise AssertionError(_message(task, wished, count, len(found), waiting))
    return [result for each in found if (result := _result(task, each)) is not None]


def _waiting() -> list[LiveJob]:
    return list(get_store().live().filter(lane=Lane.TASK).order_by("enqueued_at", "id"))


def _result(task: Task[..., Any], job: LiveJob) -> TaskResult[..., Any] | None:
    found = results.find(get_store().alias, job.pk)
    return None if found is None else results.task_result(found, task)


def _of(job: LiveJob) -> dict[str, Any]:
    """Return the call that the job is; the field's type tells only how it is stored."""
    call: Any = job.payload
    return call  # type: ignore[no-any-return]  # a task's row holds nothing else


def _stored(value: Any) -> Any:
    """Return *value* as a row gives it back: tuples as lists, keys as strings."""
    return payload.decode(payload.encode(value, max_bytes=2**24, root="the expected arguments"))


def _message(
    task: Task[..., Any],
    wished: Mapping[str, Any],
    count: int | None,
    found: int,
    waiting: Sequence[LiveJob],
) -> str:
    given = {name: value for name, value in wished.items() if value is not None}
    conditions = "".join(f", {name}={value!r}" for name, value in given.items())
    number = "a job" if count is None else f"{count} jobs"
    shown = "".join(f"\n  {_call(each)}" for each in waiting[:SHOWN]) or " nothing"
    more = f"\n  … and {len(waiting) - SHOWN} more" if len(waiting) > SHOWN else ""
    return (
        f"{number} of {task.module_path}{conditions} must be enqueued, found {found}. "
        f"Enqueued is:{shown}{more}"
    )


def _call(job: LiveJob) -> str:
    given: Iterable[str] = [
        *map(repr, _of(job)["args"]),
        *(f"{name}={value!r}" for name, value in _of(job)["kwargs"].items()),
    ]
    return f"{job.task}({', '.join(given)}) in queue {job.queue_name!r}, {job.state}"
