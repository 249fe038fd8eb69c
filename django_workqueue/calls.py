"""A call of a task as a job: everything that can be wrong with it is found here, before any SQL."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from . import conf, payload, results
from .binding import check_call
from .compat import TaskResult, TaskResultStatus, task_enqueued
from .enqueueing import Placed
from .exceptions import PayloadError
from .states import Lane
from .store import Inserted, NewJob
from .tasks import WorkQueueTask

NAME_LENGTH: Final = 255
KEY_MAX_BYTES: Final = 8_192

Call = tuple[Sequence[Any], Mapping[str, Any]]
"""The arguments of a call, by position and by name."""


def new_job(
    task: WorkQueueTask,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    settings: conf.Settings,
) -> NewJob:
    """Return the checked job for a call of *task*; options that are None come from *settings*."""
    return _checked(task, args, kwargs, _shared(task, settings), settings)


def new_jobs(task: WorkQueueTask, calls: Iterable[Call], settings: conf.Settings) -> list[NewJob]:
    """Return the checked jobs for *calls* of *task*, in order."""
    shared = _shared(task, settings)
    return [_checked(task, args, kwargs, shared, settings) for args, kwargs in calls]


def _checked(
    task: WorkQueueTask,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    shared: Mapping[str, Any],
    settings: conf.Settings,
) -> NewJob:
    check_call(task, args, kwargs)
    key = None if task.unique_key is None else _unique_key(task, args, kwargs)
    content = payload.encode_call(args, kwargs, max_bytes=settings.payload_max_bytes)
    return NewJob(payload=content, unique_key=key, **shared)


def _shared(task: WorkQueueTask, settings: conf.Settings) -> dict[str, Any]:
    """Return what is the same in the jobs of all calls of *task*, checked."""
    if task.headers is not None:
        # The caller's own mapping, which may change from call to call.
        limit = settings.payload_max_bytes
        headers = payload.encode(dict(task.headers), max_bytes=limit, root="headers")
        return {**_facts(task, settings), "headers": headers}
    # What does not change is found out once a task, for as long as the settings are the same.
    known: conf.Settings | None
    facts: dict[str, Any]
    known, facts = vars(task).get("_facts", (None, {}))
    if known is not settings:
        facts = _facts(task, settings)
        vars(task)["_facts"] = settings, facts
    return facts


def _facts(task: WorkQueueTask, settings: conf.Settings) -> dict[str, Any]:
    return {
        "lane": Lane.TASK,
        "queue_name": checked_name("queue_name", task.queue_name),
        "task": checked_name("the dotted path of the task", task.module_path),
        "backend": task.backend,
        "priority": int(task.priority),
        "run_after": task.run_after,
        "expires_seconds": task.expires,
        "max_attempts": task.max_attempts or settings.max_attempts,
        "unique_while": task.unique_while,
        "timeout": task.timeout,
        "result_ttl": settings.result_ttl_seconds if task.result_ttl is None else task.result_ttl,
        "dead_letter": task.dead_letter,
        "atomic": task.atomic,
    }


def checked_name(what: str, name: Any) -> str:
    """Return *name* if every database stores it as it is. Raises PayloadError otherwise."""
    if not isinstance(name, str) or len(name) > NAME_LENGTH:
        raise PayloadError(
            f"{what} must be a string of at most {NAME_LENGTH} characters, got {name!r:.80}.",
            path=what,
        )
    _check_characters(what, name)
    return name


@functools.lru_cache(maxsize=4096)
def _check_characters(what: str, name: str) -> None:
    """Raise PayloadError for a name that cannot be stored; the few names there are, once each."""
    payload.encode(name, max_bytes=4 * NAME_LENGTH + 2, root=what)


def _unique_key(task: WorkQueueTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    key = task.unique_key
    if callable(key):
        key = key(*args, **kwargs)
    if key is None:
        return None
    if not isinstance(key, str):
        raise PayloadError(
            f"unique_key of {task.module_path} must give a string, got {key!r:.80}. "
            "Build one from the arguments that must not meet.",
            path="unique_key",
        )
    payload.encode(key, max_bytes=KEY_MAX_BYTES, root="unique_key")
    return key


def result(sender: type, task: WorkQueueTask, job: NewJob, placed: Placed) -> TaskResult[..., Any]:
    """Return the result of a call: of the job it made, which is told, or of its key's holder.

    *sender* is the backend that Django's ``task_enqueued`` comes from.
    """
    if not isinstance(placed, Inserted):
        return results.task_result(placed, task)
    made = ready_result(task, job, placed)
    # Robust: the job is written, and an error here would make its caller write it again.
    task_enqueued.send_robust(sender, task_result=made)
    return made


def ready_result(task: WorkQueueTask, job: NewJob, row: Inserted) -> TaskResult[..., Any]:
    """Return the TaskResult of a job that was just written. Its arguments are what the task gets:
    tuples arrive as lists, keys as strings.
    """
    call = payload.decode(job.payload)
    return TaskResult(
        task=task,
        id=str(job.id),
        status=TaskResultStatus.READY,
        enqueued_at=row.enqueued_at,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=call["args"],
        kwargs=call["kwargs"],
        backend=task.backend,
        errors=[],
        worker_ids=[],
    )
