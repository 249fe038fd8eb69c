"""Run one claimed job and say what came of it. Touches no job row.

What the task did is decided here; writing it down is the worker's part, outside of every ``try``
that catches the task's errors, so that a success is never recorded as a failure (I8).
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from django.db import connections, reset_queries

from . import backoff, clock, conf, payload, registry
from .compat import BaseTaskBackend, TaskResult, TaskResultStatus, task_finished, task_started
from .exceptions import (
    ArgumentsError,
    PayloadError,
    Retry,
    Snooze,
    Terminal,
    TimeLimitExceeded,
    TransactionLeftOpen,
    UnknownTask,
)
from .payload import describe_error
from .results import task_error
from .states import DeathReason
from .store.records import Claim, ErrorRecord
from .tasks import Context, WorkQueueTask, bind

logger = logging.getLogger("django_workqueue.executor")

SNOOZE_FALLBACK_SECONDS = 60.0
PROGRESS_MAX_BYTES = 4_096


class Verb(StrEnum):
    """What is to be done with a job that was run: the names of the store's transitions."""

    ACK = "ack"
    RETRY = "retry"
    BURY = "bury"
    RELEASE = "release"
    HOLD = "hold"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a run. *value* is JSON text; moments are this process's monotonic seconds."""

    verb: Verb
    started: float
    ended: float
    value: str = "null"
    delay_seconds: float = 0.0
    reason: DeathReason | None = None
    error: ErrorRecord | None = None


_finishing = threading.Lock()


@dataclass(slots=True, eq=False)
class Job:
    """A claim in this process, from its claim to its settle."""

    claim: Claim
    cancelled: threading.Event = field(default_factory=threading.Event)
    lease_lost: threading.Event = field(default_factory=threading.Event)
    # JSON text of the newest call of context.progress() that was not written yet.
    progress: str | None = None
    started: float | None = None
    outcome: Outcome | None = None
    result: TaskResult[..., Any] | None = None
    # It has ended here, or is given back: an extension that is refused tells nothing.
    ending: bool = False
    # Its time limit passed while it ran: whatever it returns is refused.
    timed_out: bool = False
    # The monotonic time at which an extension said that a cancel was asked.
    cancel_noticed: float | None = None
    # A settle was sent whose answer never came.
    settle_retried: bool = False
    # The run's own transaction (atomic=True) committed, its completion with it.
    committed: bool = False
    # Its slot on the board that the parent reads.
    slot: int | None = None

    def finish(self, outcome: Outcome | None) -> bool:
        """Set what is to be settled, once: False if that was decided before, by another thread."""
        with _finishing:
            if self.ending:
                return False
            self.ending = True
            self.outcome = outcome
            return True

    def note_progress(self, progress: dict[str, Any]) -> None:
        """Keep *progress* for the next extension. Raises PayloadError for what JSON lacks."""
        self.progress = payload.encode(progress, max_bytes=PROGRESS_MAX_BYTES, root="progress")


def execute(job: Job, settings: conf.Settings, *, inside: str | None = None) -> Outcome:
    """Run the job's task in this thread; return what came of it. Never raises.

    *inside* is the alias on which the caller holds a transaction around the run.
    """
    started = clock.monotonic()
    try:
        return _execute(job, started, settings, inside)
    except BaseException as error:  # noqa: BLE001  # sys.exit() of a receiver, say
        return not_run(job, started, error, settings)


def not_run(job: Job, started: float, error: BaseException, settings: conf.Settings) -> Outcome:
    """Return the outcome of a run that a fault of ours ended, or a row that was edited by hand.

    Charged like any other.
    """
    logger.error("job could not be run", extra={"job_id": job.claim.id}, exc_info=error)
    ended = clock.monotonic()
    record = _record(job, started, ended, "failed", error, settings)
    delay = settings.backoff.delay_seconds(job.claim.attempt)
    return Outcome(verb=Verb.RETRY, started=started, ended=ended, delay_seconds=delay, error=record)


def _execute(job: Job, started: float, settings: conf.Settings, inside: str | None) -> Outcome:
    claim = job.claim
    task = registry.get(claim.task)
    if task is None:
        error: Exception = UnknownTask(
            f"unknown task {claim.task}: no task is declared under this path in this process"
        )
        return _held(job, started, "unknown_task", error, settings)
    try:
        args, kwargs = payload.decode_call(claim.payload)
        bind(task, args, kwargs)
    except (ArgumentsError, PayloadError) as error:
        return _held(job, started, DeathReason.BAD_ARGUMENTS, error, settings)
    job.result = _running_result(claim, task, args, kwargs)
    task_started.send_robust(type(task.get_backend()), task_result=job.result)
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
    return _succeeded(job, started, value, settings)


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


# What came of it


def _succeeded(job: Job, started: float, value: Any, settings: conf.Settings) -> Outcome:
    ended = clock.monotonic()
    if job.claim.result_ttl == 0:
        return Outcome(verb=Verb.ACK, started=started, ended=ended)
    try:
        text = payload.encode(value, max_bytes=settings.result_max_bytes, root="the return value")
    except PayloadError as error:
        # The work was done: it is not done again because its value cannot be kept.
        record = _record(job, started, ended, DeathReason.UNSTORABLE_RESULT, error, settings)
        return Outcome(
            verb=Verb.BURY,
            started=started,
            ended=ended,
            reason=DeathReason.UNSTORABLE_RESULT,
            error=record,
        )
    return Outcome(verb=Verb.ACK, started=started, ended=ended, value=text)


def failed(
    job: Job,
    task: WorkQueueTask,
    started: float,
    error: BaseException,
    settings: conf.Settings,
) -> Outcome:
    """Return the outcome of a run that ended in *error*, by the task's policy."""
    ended = clock.monotonic()
    if isinstance(error, Snooze):
        delay = _snooze_seconds(error.seconds)
        return Outcome(verb=Verb.RELEASE, started=started, ended=ended, delay_seconds=delay)
    decided = decide(job, task, error, settings)
    note = decided.note or _hint(job, error)
    record = _record(job, started, ended, decided.outcome, error, settings, note=note)
    if decided.delay_seconds is None:
        return Outcome(
            verb=Verb.BURY, started=started, ended=ended, reason=decided.reason, error=record
        )
    return Outcome(
        verb=Verb.RETRY,
        started=started,
        ended=ended,
        delay_seconds=decided.delay_seconds,
        error=record,
    )


def timed_out(job: Job, settings: conf.Settings, *, least_delay_seconds: float = 0.0) -> Outcome:
    """Return the outcome of an attempt that ran past its time limit."""
    claim = job.claim
    started = clock.monotonic() if job.started is None else job.started
    error = TimeLimitExceeded(
        f"timeout: an attempt of {claim.task} must end within {claim.timeout:g} s"
    )
    task = registry.get(claim.task)
    assert task is not None, "a task that was started is declared"
    outcome = failed(job, task, started, error, settings)
    record = None if outcome.error is None else replace(outcome.error, outcome="timeout")
    if outcome.verb is Verb.BURY:
        return replace(outcome, reason=DeathReason.TIMEOUT, error=record)
    delay = max(outcome.delay_seconds, least_delay_seconds)
    return replace(outcome, delay_seconds=delay, error=record)


@dataclass(frozen=True, slots=True)
class Decision:
    """What a task's policy makes of an error: a delay, or the end, with the reason in words."""

    delay_seconds: float | None
    reason: DeathReason | None = None
    note: str = ""

    @property
    def outcome(self) -> str:
        return "failed" if self.reason is None else self.reason.value


def decide(
    job: Job, task: WorkQueueTask, error: BaseException, settings: conf.Settings
) -> Decision:
    """Return what becomes of a job whose task raised *error*, by the task's policy."""
    terminal = _why_terminal(task, error)
    if terminal:
        return Decision(None, DeathReason.TERMINAL, terminal)
    attempt = job.claim.attempt
    if attempt >= job.claim.max_attempts:
        return Decision(None, DeathReason.EXHAUSTED)
    if isinstance(error, Retry) and error.after is not None:
        return Decision(
            backoff.asked_seconds(error.after, task.backoff, attempt, default=settings.backoff)
        )
    delay = backoff.decide(task.backoff, attempt, error, job.result, default=settings.backoff)
    if delay is None:
        return Decision(None, DeathReason.TERMINAL, "not retried: the task's backoff gave up")
    return Decision(delay)


def _hint(job: Job, error: BaseException) -> str:
    if job.claim.atomic and isinstance(error, RuntimeError) and "durable" in str(error):
        return "a task with atomic=True already runs in a transaction; leave durable=True out"
    return ""


def _why_terminal(task: WorkQueueTask, error: BaseException) -> str:
    """Return why *error* ends the job at once, in words; empty if it does not."""
    name = type(error).__qualname__
    if isinstance(error, Terminal):
        return "not retried: the task raised Terminal"
    if isinstance(error, Retry):
        return ""
    if isinstance(error, task.terminal_on):
        return f"not retried: {name} is in terminal_on"
    # sys.exit() in a task is a failed attempt like another, whatever retry_on names.
    if isinstance(error, Exception) and not isinstance(error, task.retry_on):
        return f"not retried: {name} is not in retry_on"
    return ""


def _held(
    job: Job, started: float, outcome: str, error: Exception, settings: conf.Settings
) -> Outcome:
    """Return the outcome of a job that cannot run here: held, longer each time, up to 60 s."""
    ended = clock.monotonic()
    since = job.claim.unknown_since
    known_seconds = 0.0 if since is None else (job.claim.claimed_at - since).total_seconds()
    return Outcome(
        verb=Verb.HOLD,
        started=started,
        ended=ended,
        delay_seconds=min(max(known_seconds, 1.0), 60.0),
        error=_record(job, started, ended, outcome, error, settings),
    )


def _snooze_seconds(seconds: Any) -> float:
    try:
        delay = float(seconds)
    except (TypeError, ValueError):
        delay = math.nan
    if math.isfinite(delay) and delay <= backoff.MAX_SECONDS:
        return max(delay, 0.0)
    logger.warning("snooze is not a number of seconds", extra={"seconds": repr(seconds)[:80]})
    return SNOOZE_FALLBACK_SECONDS


def _record(  # noqa: PLR0917  # the facts of one record, in its own order
    job: Job,
    started: float,
    ended: float,
    outcome: str,
    error: BaseException,
    settings: conf.Settings,
    *,
    note: str = "",
) -> ErrorRecord:
    told = describe_error(error, max_bytes=settings.error_max_bytes)
    claim = job.claim
    message = f"{told.message} ({note})" if note else told.message
    return ErrorRecord(
        attempt=claim.attempt,
        worker=claim.worker_id,
        started=claim.moment(started),
        ended=claim.moment(ended),
        outcome=outcome,
        exception_class=told.exception_class_path,
        message=message,
        traceback=told.traceback,
        cut=told.cut,
    )


# Django's face of a run


def _running_result(
    claim: Claim, task: WorkQueueTask, args: list[Any], kwargs: dict[str, Any]
) -> TaskResult[..., Any]:
    errors: list[dict[str, Any]] = payload.decode(claim.errors)
    worker_ids: list[str] = payload.decode(claim.worker_ids)
    return TaskResult(
        task=task,
        id=str(claim.id),
        status=TaskResultStatus.RUNNING,
        enqueued_at=claim.enqueued_at,
        started_at=claim.claimed_at,
        finished_at=None,
        last_attempted_at=claim.claimed_at,
        args=args,
        kwargs=kwargs,
        backend=claim.backend,
        errors=[task_error(error) for error in errors],
        worker_ids=[*worker_ids, claim.worker_id],
    )


def tell_finished(jobs: Sequence[Job]) -> None:
    """Send Django's ``task_finished`` for settled jobs that came to their end. Never raises."""
    for job in jobs:
        try:
            _tell_finished(job)
        except BaseException:
            # sys.exit() of a receiver must not end a thread of the worker either.
            logger.exception("receiver of task_finished", extra={"job_id": job.claim.id})


def _tell_finished(job: Job) -> None:
    if job.result is None or job.outcome is None:
        return
    result, outcome = job.result, job.outcome
    good = outcome.verb is Verb.ACK
    status = TaskResultStatus.SUCCESSFUL if good else TaskResultStatus.FAILED
    object.__setattr__(result, "status", status)
    object.__setattr__(result, "finished_at", job.claim.moment(outcome.ended))
    if good:
        object.__setattr__(result, "_return_value", payload.decode(outcome.value))
    elif outcome.error is not None:
        result.errors.append(task_error(outcome.error.as_json()))
    backend: type[BaseTaskBackend] = type(result.task.get_backend())
    task_finished.send_robust(backend, task_result=result)


def clean_connections(*, keep: str | None = None) -> list[str]:
    """Put this thread's connections in order; return the aliases on which a transaction was open.

    The transaction on the alias *keep* is the caller's.

    A connection with one is closed, which rolls it back. The rest are kept, whatever CONN_MAX_AGE
    says, unless they broke.
    """
    left_open = []
    for connection in connections.all(initialized_only=True):
        if connection.connection is None or connection.alias == keep:
            continue
        if connection.in_atomic_block or not connection.get_autocommit():
            left_open.append(connection.alias)
            _close(connection)
        elif connection.errors_occurred and not connection.is_usable():
            _close(connection)
        else:
            connection.errors_occurred = False
    # DEBUG keeps every query of a thread.
    reset_queries()
    return left_open


def drop_unusable_connections() -> None:
    """Close this thread's connections that do not answer; the next use opens them again."""
    for connection in connections.all(initialized_only=True):
        if connection.connection is not None and not connection.is_usable():
            connection.close()


def _close(connection: Any) -> None:
    # close() inside atomic() only marks the connection; what the task left behind is not ours.
    connection.in_atomic_block = False
    connection.savepoint_ids = []
    connection.run_on_commit = []
    connection.needs_rollback = False
    # Set where the task closed it inside atomic(): close() would leave it as it is, for ever.
    connection.closed_in_transaction = False
    connection.close()
