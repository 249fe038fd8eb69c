"""Run one claimed job and say what came of it. Touches no job row.

What the task did becomes an outcome here; writing it down is the worker's part, outside of every
``try`` that catches the task's errors, so that a success is never recorded as a failure (I8).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from . import clock, conf, payload, registry
from .announcing import atell_started, running_result, sender, tell_started
from .binding import check_call
from .connecting import clean_connections
from .exceptions import ArgumentsError, PayloadError, TransactionLeftOpen, UnknownTask
from .job import Job, Outcome, Verb
from .outcomes import failed, held, not_run, succeeded
from .states import DeathReason
from .tasks import Context, WorkQueueTask


class Call(NamedTuple):
    """A task and what it is called with; the context, where it takes one, comes first."""

    task: WorkQueueTask
    args: list[Any]
    kwargs: dict[str, Any]


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
    call = _prepared(job, started, settings)
    if isinstance(call, Outcome):
        return call
    tell_started(job)
    try:
        # Django's call() looks each time whether it is a coroutine's.
        run = call.task.call if registry.is_async(job.claim.task) else call.task.func
        value = run(*call.args, **call.kwargs)
    except BaseException as error:  # noqa: BLE001  # sys.exit() of a task must not end the worker
        clean_connections(keep=inside)
        return failed(job, call.task, started, error, settings)
    left_open = clean_connections(keep=inside)
    if left_open:
        return _left_open(job, call.task, left_open, started, settings)
    return succeeded(job, started, value, settings)


async def aexecute(
    job: Job, settings: conf.Settings, end: Callable[[], Awaitable[Sequence[str]]]
) -> Outcome:
    """Run the job's coroutine in this event loop; return what came of it. Never raises.

    *end* is awaited once the coroutine has ended: it waits for what the coroutine began, and
    returns the aliases on which that left a transaction open.
    """
    started = clock.monotonic()
    try:
        return await _aexecute(job, started, settings, end)
    except BaseException as error:  # noqa: BLE001  # a receiver's, or cancelled before its body
        return not_run(job, started, error, settings)


async def _aexecute(
    job: Job,
    started: float,
    settings: conf.Settings,
    end: Callable[[], Awaitable[Sequence[str]]],
) -> Outcome:
    call = _prepared(job, started, settings)
    if isinstance(call, Outcome):
        return call
    await atell_started(job)
    try:
        value = await call.task.func(*call.args, **call.kwargs)
    except BaseException as error:  # noqa: BLE001  # sys.exit() of a task must not end the loop
        outcome = failed(job, call.task, started, error, settings)
    else:
        outcome = succeeded(job, started, value, settings)
    left_open = await end()
    if left_open and outcome.verb is Verb.ACK:
        return _left_open(job, call.task, left_open, started, settings)
    return outcome


def _prepared(job: Job, started: float, settings: conf.Settings) -> Call | Outcome:
    """Return the call of the job's task, its result made; or the outcome if there can be none."""
    claim = job.claim
    task = registry.get(claim.task)
    if task is None:
        error: Exception = UnknownTask(
            f"unknown task {claim.task}: no task is declared under this path in this process"
        )
        return held(job, started, "unknown_task", error, settings)
    try:
        args, kwargs = payload.decode_call(claim.payload)
        check_call(task, args, kwargs)
    except (ArgumentsError, PayloadError) as error:
        return held(job, started, DeathReason.BAD_ARGUMENTS, error, settings)
    job.result = running_result(claim, task, args, kwargs)
    job.sender = sender(task.backend)
    if task.takes_context:
        args = [_context(job, started), *args]
    return Call(task, args, kwargs)


def _context(job: Job, started: float) -> Context:
    claim = job.claim
    assert job.result is not None
    return Context(
        task_result=job.result,
        job_id=claim.id,
        charged_attempt=claim.attempt,
        fence=claim.fence,
        scheduled_for=claim.scheduled_for,
        headers=payload.decode(claim.headers),
        cancelled=job.cancelled.event,
        lease_lost=job.lease_lost.event,
        ends=None if claim.timeout is None else started + claim.timeout,
        write_progress=job.note_progress,
    )


def _left_open(
    job: Job,
    task: WorkQueueTask,
    aliases: Sequence[str],
    started: float,
    settings: conf.Settings,
) -> Outcome:
    error = TransactionLeftOpen(
        f"A task must end the transactions it began, and one was left open on "
        f"{', '.join(aliases)}. It was rolled back; use transaction.atomic()."
    )
    return failed(job, task, started, error, settings)
