"""What came of a run: the outcome of a value, of an error, or of neither.

Decided by the task's policy, and written nowhere: that is the worker's part, outside of every
``try`` that catches the task's errors, so that a success is never recorded as a failure (I8).
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import Any

from . import backoff, clock, conf, payload, registry
from .exceptions import PayloadError, Retry, Snooze, Terminal, TimeLimitExceeded
from .job import Job, Outcome, Verb
from .payload import describe_error
from .states import DeathReason
from .store.records import ErrorRecord
from .tasks import WorkQueueTask

logger = logging.getLogger("django_workqueue.executor")

SNOOZE_FALLBACK_SECONDS = 60.0


def succeeded(job: Job, started: float, value: Any, settings: conf.Settings) -> Outcome:
    """Return the outcome of a run that returned *value*."""
    ended = clock.monotonic()
    if value is None or job.claim.result_ttl == 0:
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
        return outcome._replace(reason=DeathReason.TIMEOUT, error=record)
    delay = max(outcome.delay_seconds, least_delay_seconds)
    return outcome._replace(delay_seconds=delay, error=record)


def held(
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


def not_run(job: Job, started: float, error: BaseException, settings: conf.Settings) -> Outcome:
    """Return the outcome of a run that a fault of ours ended, or a row that was edited by hand.

    Charged like any other.
    """
    logger.error("job could not be run", extra=job.claim.log_fields, exc_info=error)
    ended = clock.monotonic()
    record = _record(job, started, ended, "failed", error, settings)
    delay = settings.backoff.delay_seconds(job.claim.attempt)
    return Outcome(verb=Verb.RETRY, started=started, ended=ended, delay_seconds=delay, error=record)


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
    if job.on_error is not None:
        job.on_error(error)
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
