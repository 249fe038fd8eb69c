"""When a new job becomes visible: in the transaction of the caller, with nothing in between (G1).

Everything that can be wrong with a call is found before any SQL, so that a refused call never
aborts the caller's transaction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from django.db import transaction

from . import conf, payload, results
from .compat import TaskResult, TaskResultStatus
from .exceptions import PayloadError, UniqueKeyTaken
from .states import Lane, State
from .store import BaseStore, Inserted, NewJob, get_store
from .store.inserting import unique_hash
from .tasks import WorkQueueTask, bind

CONFLICT_ROUNDS: Final = 5
NAME_LENGTH: Final = 255
KEY_MAX_BYTES: Final = 8_192


def enqueue(task: WorkQueueTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
    """Write one job; return its result, or that of the job which holds its unique key.

    Raises ArgumentsError and PayloadError before any SQL.
    """
    store = get_store()
    job = new_job(task, args, kwargs, conf.current())
    written = store.insert([job])
    if written:
        return ready_result(task, job, written[0])
    return _conflict(store, task, job)


def enqueue_many(
    task: WorkQueueTask, calls: Iterable[tuple[Sequence[Any], Mapping[str, Any]]]
) -> list[TaskResult]:
    """Write a job for each ``(args, kwargs)``, all or none; return their results in order.

    Every call is checked before the first is written.
    """
    store, settings = get_store(), conf.current()
    jobs = [new_job(task, args, kwargs, settings) for args, kwargs in calls]
    with transaction.atomic(using=store.alias):
        written = {row.id: row for row in store.insert(jobs)}
        return [
            ready_result(task, job, written[job.id])
            if job.id in written
            else _conflict(store, task, job)
            for job in jobs
        ]


def new_job(
    task: WorkQueueTask,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    settings: conf.Settings,
) -> NewJob:
    """Return the checked job for a call of *task*; options that are None come from *settings*."""
    bind(task, args, kwargs)
    headers = "{}"
    if task.headers is not None:
        headers = payload.encode(
            dict(task.headers), max_bytes=settings.payload_max_bytes, root="headers"
        )
    key = _unique_key(task, args, kwargs)
    return NewJob(
        lane=Lane.TASK,
        queue_name=checked_name("queue_name", task.queue_name),
        task=checked_name("the dotted path of the task", task.module_path),
        backend=task.backend,
        payload=payload.encode_call(args, kwargs, max_bytes=settings.payload_max_bytes),
        priority=int(task.priority),
        run_after=task.run_after,
        expires_seconds=task.expires,
        max_attempts=task.max_attempts or settings.max_attempts,
        unique_key=key,
        unique_while=task.unique_while,
        timeout=task.timeout,
        result_ttl=settings.result_ttl_seconds if task.result_ttl is None else task.result_ttl,
        dead_letter=task.dead_letter,
        atomic=task.atomic,
        headers=headers,
    )


def checked_name(what: str, name: str) -> str:
    """Return *name* if every database stores it as it is. Raises PayloadError otherwise."""
    if not isinstance(name, str) or len(name) > NAME_LENGTH:
        raise PayloadError(
            f"{what} must be a string of at most {NAME_LENGTH} characters, got {name!r:.80}.",
            path=what,
        )
    payload.encode(name, max_bytes=4 * NAME_LENGTH + 2, root=what)
    return name


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


def ready_result(task: WorkQueueTask, job: NewJob, row: Inserted) -> TaskResult:
    """Return the TaskResult of a job that was just written. Its arguments are what the task gets:
    tuples arrive as lists, keys as strings.
    """
    args, kwargs = payload.decode_call(job.payload)
    return TaskResult(
        task=task,
        id=str(job.id),
        status=TaskResultStatus.READY,
        enqueued_at=row.enqueued_at,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=args,
        kwargs=kwargs,
        backend=task.backend,
        errors=[],
        worker_ids=[],
    )


def _conflict(store: BaseStore, task: WorkQueueTask, job: NewJob) -> TaskResult:
    """Do as ``on_conflict`` says with a job whose unique key is taken."""
    assert job.unique_key is not None
    taken = unique_hash(job.queue_name, job.task, job.unique_key)
    for _ in range(CONFLICT_ROUNDS):
        holder = store.live().filter(unique_hash=taken).first()
        if holder is not None and task.on_conflict == "raise":
            raise UniqueKeyTaken(
                f"The unique key {job.unique_key!r:.80} of {job.task} must be free, and job "
                f'{holder.pk} holds it. Wait for it, cancel it, or use on_conflict="return".',
                holder_id=holder.pk,
            )
        replaces = task.on_conflict == "replace"
        if holder is not None and not (replaces and holder.state != State.RUNNING):
            found = results.find(store.alias, holder.pk)
            if found is not None:
                return results.task_result(found, task)
        # The holder is gone, or gives way: try again, together with its going.
        with transaction.atomic(using=store.alias):
            if holder is not None and replaces:
                store.cancel(holder.pk)
            written = store.insert([job])
        if written:
            return ready_result(task, job, written[0])
    raise UniqueKeyTaken(
        f"The unique key {job.unique_key!r:.80} of {job.task} changed hands {CONFLICT_ROUNDS} "
        "times while a job was enqueued. Enqueue it again.",
    )
