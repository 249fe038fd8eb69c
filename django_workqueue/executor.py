"""Run one claimed job and say what came of it. Touches no job row.

What the task did becomes an outcome here; writing it down is the worker's part, outside of every
``try`` that catches the task's errors, so that a success is never recorded as a failure (I8).
"""

from __future__ import annotations

from typing import Any

from . import clock, conf, payload, registry
from .announcing import tell_started
from .connecting import clean_connections
from .exceptions import ArgumentsError, PayloadError, TransactionLeftOpen, UnknownTask
from .job import Job, Outcome
from .outcomes import failed, held, not_run, succeeded
from .states import DeathReason
from .tasks import Context, WorkQueueTask, bind


def execute(job: Job, settings: conf.Settings, *, inside: str | None = None) -> Outcome:
    """Run the job's task in this thread; return what came of it. Never raises.

    *inside* is the alias on which the caller holds a transaction around the run.
    """
    started = clock.monotonic()
    try:
        return _execute(job, started, settings, inside)
    except BaseException as error:  # noqa: BLE001  # sys.exit() of a receiver, say
        return not_run(job, started, error, settings)


def _execute(job: Job, started: float, settings: conf.Settings, inside: str | None) -> Outcome:
    claim = job.claim
    task = registry.get(claim.task)
    if task is None:
        error: Exception = UnknownTask(
            f"unknown task {claim.task}: no task is declared under this path in this process"
        )
        return held(job, started, "unknown_task", error, settings)
    try:
        args, kwargs = payload.decode_call(claim.payload)
        bind(task, args, kwargs)
    except (ArgumentsError, PayloadError) as error:
        return held(job, started, DeathReason.BAD_ARGUMENTS, error, settings)
    tell_started(job, task, args, kwargs)
    try:
        value = _call(job, task, args, kwargs, started)
    except BaseException as error:  # noqa: BLE001  # sys.exit() of a task must not end the worker
        clean_connections(keep=inside)
        return failed(job, task, started, error, settings)
    left_open = clean_connections(keep=inside)
    if left_open:
        open_error = TransactionLeftOpen(
            f"A task must end the transactions it began, and one was left open on "
            f"{', '.join(left_open)}. It was rolled back; use transaction.atomic()."
        )
        return failed(job, task, started, open_error, settings)
    return succeeded(job, started, value, settings)


def _call(
    job: Job, task: WorkQueueTask, args: list[Any], kwargs: dict[str, Any], started: float
) -> Any:
    if not task.takes_context:
        return task.call(*args, **kwargs)
    claim = job.claim
    assert job.result is not None
    context = Context(
        task_result=job.result,
        job_id=claim.id,
        charged_attempt=claim.attempt,
        fence=claim.fence,
        scheduled_for=claim.scheduled_for,
        headers=payload.decode(claim.headers),
        cancelled=job.cancelled,
        lease_lost=job.lease_lost,
        ends=None if claim.timeout is None else started + claim.timeout,
        write_progress=job.note_progress,
    )
    return task.call(context, *args, **kwargs)
