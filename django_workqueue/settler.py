"""Write down what came of the jobs that were run: acks, and what is given back, in groups."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from django.db import DatabaseError, DataError, IntegrityError

from .exceptions import LeaseLost
from .job import Job, Outcome, Verb
from .states import DeathReason, HeldReason, ResultOutcome, State
from .store import Ack, BaseStore, ErrorRecord, Hold

logger = logging.getLogger("django_workqueue.settler")

REFUSED = (DataError, IntegrityError)
"""What a database says to a value it will not store; asking again cannot help."""

RELEASED_TOGETHER: Final = 500

LOST = "lost"
UNKNOWN = "settled or lost"
LEFT = "left to its lease"


class Settled(NamedTuple):
    """A job whose settle was answered, and where it is now.

    LOST: another claim has it, or had it. UNKNOWN: an earlier answer was lost, and nothing tells.
    LEFT: the database refuses whatever is written of it; its lease is extended no more.
    """

    job: Job
    place: str

    @property
    def error(self) -> str:
        """The error's class and the first line's worth of its text; empty without one."""
        outcome = self.job.outcome
        if outcome is None or outcome.error is None:
            return ""
        line = " ".join(outcome.error.message.split())[:200]
        return f"{outcome.error.exception_class}: {line}"

    @property
    def log_fields(self) -> dict[str, Any]:
        outcome = self.job.outcome
        fields = {**self.job.claim.log_fields, "place": self.place}
        if outcome is not None:
            fields["seconds"] = round(outcome.ended - outcome.started, 6)
        return fields | ({"error": self.error} if self.error else {})


def settle(store: BaseStore, jobs: Sequence[Job], on_settled: Callable[[Settled], None]) -> None:
    """Write the outcomes of *jobs*; call *on_settled* for each as soon as it was answered.

    Raises the database's error if it could not be reached: a job that was not answered is given
    again, under the same token.
    """
    for job in jobs:
        if job.committed:
            on_settled(Settled(job, ResultOutcome.SUCCEEDED))
    jobs = [job for job in jobs if not job.committed]
    acks = [job for job in jobs if job.outcome is not None and job.outcome.verb is Verb.ACK]
    untried = [job for job in jobs if job.outcome is None]
    rest = [job for job in jobs if job.outcome is not None and job.outcome.verb is not Verb.ACK]
    for settled in itertools.chain(_ack(store, acks), _give_back(store, untried)):
        on_settled(settled)
    for job in rest:
        on_settled(_settle_one(store, job))


def _ack(store: BaseStore, jobs: Sequence[Job]) -> Iterator[Settled]:
    if not jobs:
        return
    try:
        settled = store.ack([as_ack(job, job.outcome) for job in jobs if job.outcome is not None])
    except DatabaseError as error:
        if not _is_refused(store, jobs, error):
            raise
        if len(jobs) == 1:
            yield _minimal(store, jobs[0], error)
            return
        # One bad value must not keep the others from being settled.
        half = len(jobs) // 2
        yield from _ack(store, jobs[:half])
        yield from _ack(store, jobs[half:])
        return
    all_held = len(settled) == len(jobs)
    for job in jobs:
        held = all_held or job.claim.hold in settled
        yield Settled(job, ResultOutcome.SUCCEEDED) if held else _not_held(store, job)


def _give_back(store: BaseStore, jobs: Sequence[Job]) -> Iterator[Settled]:
    """Give back what was not tried, what one claim brought in one statement: it may be a thousand
    jobs, and a worker that stops, or whose jobs turn long, has no time for one after another.
    """
    for token in dict.fromkeys(job.claim.token for job in jobs):
        claimed = [job for job in jobs if job.claim.token == token]
        for start in range(0, len(claimed), RELEASED_TOGETHER):
            part = claimed[start : start + RELEASED_TOGETHER]
            given = _released(store, part)
            for job in part:
                held = job.claim.hold in given
                yield Settled(job, State.READY) if held else _settle_one(store, job)


def _released(store: BaseStore, jobs: Sequence[Job]) -> set[Hold]:
    """Give back *jobs* of one claim together, as far as that can be; return the holds let go."""
    fresh = [job.claim for job in jobs if not job.settle_retried]
    if len(fresh) < 2:
        return set()
    try:
        return store.release_together(fresh)
    except REFUSED:
        # One row was edited by hand.
        return set()


def _not_held(store: BaseStore, job: Job) -> Settled:
    """Return what a settle means that found no row.

    After one whose answer was lost, the row may be gone because that one was written: the result
    carries the token, and where none is kept nobody can tell. It is no error outcome.
    """
    if not job.settle_retried:
        return Settled(job, LOST)
    written = store.results().filter(pk=job.claim.id, token=job.claim.token).exists()
    return Settled(job, ResultOutcome.SUCCEEDED if written else UNKNOWN)


def as_ack(job: Job, outcome: Outcome) -> Ack:
    """Return what the store is told of a job that succeeded."""
    return Ack(
        claim=job.claim,
        value=outcome.value,
        # Kept with the result, where there is one.
        started_at=None if job.claim.result_ttl == 0 else job.claim.moment(outcome.started),
    )


def _settle_one(store: BaseStore, job: Job) -> Settled:
    try:
        return Settled(job, _write(store, job, job.outcome))
    except LeaseLost:
        return _not_held(store, job)
    except DatabaseError as error:
        if not _is_refused(store, [job], error):
            raise
        return _minimal(store, job, error)


def _is_refused(store: BaseStore, jobs: Sequence[Job], error: Exception) -> bool:
    """Tell an outcome that the database will never store from a fault that passes."""
    return isinstance(error, REFUSED) or store.is_too_large(error, _texts_of(jobs))


def _texts_of(jobs: Sequence[Job]) -> Iterator[str]:
    """Yield the long texts that the outcomes of *jobs* bring to the database."""
    for job in jobs:
        outcome = job.outcome
        if outcome is not None:
            yield outcome.value
            if outcome.error is not None:
                yield from (outcome.error.message, outcome.error.traceback)


def _write(store: BaseStore, job: Job, outcome: Outcome | None) -> str:
    claim = job.claim
    if outcome is None:
        return store.release(claim)
    if outcome.verb is Verb.RELEASE or outcome.error is None:
        return store.release(claim, delay_seconds=outcome.delay_seconds)
    if outcome.verb is Verb.RETRY:
        return store.retry(claim, outcome.delay_seconds, outcome.error)
    if outcome.verb is Verb.HOLD:
        return store.hold(claim, HeldReason.UNKNOWN, outcome.delay_seconds, outcome.error)
    return store.bury(claim, outcome.reason or DeathReason.TERMINAL, outcome.error)


def _minimal(store: BaseStore, job: Job, error: Exception) -> Settled:
    """Settle under the same token without the content that the database refused.

    A value that cannot be stored buries the job: its work was done, and is not done again.
    """
    logger.error(
        "outcome refused by the database",
        extra=job.claim.log_fields,
        exc_info=error,
    )
    outcome = job.outcome
    if outcome is None:
        return _left(job)
    told = f"The database refused the outcome: {type(error).__name__}"
    record = ErrorRecord(
        attempt=job.claim.attempt,
        worker=job.claim.worker_id,
        started=job.claim.moment(outcome.started),
        ended=job.claim.moment(outcome.ended),
        outcome=DeathReason.UNSTORABLE_RESULT,
        exception_class="" if outcome.error is None else outcome.error.exception_class,
        message=told,
    )
    bare = outcome._replace(error=record)
    if outcome.verb is Verb.ACK:
        bare = bare._replace(verb=Verb.BURY, reason=DeathReason.UNSTORABLE_RESULT)
    try:
        place = _write(store, job, bare)
    except LeaseLost:
        return _not_held(store, job)
    except DatabaseError as again:
        if not _is_refused(store, [job], again):
            raise
        return _left(job)
    # What was written is what is told: a refused success is no success to a receiver either.
    job.outcome = bare
    return Settled(job, place)


def _left(job: Job) -> Settled:
    """Give up a settle that can never be written: it must not hold up all others."""
    logger.error("job left to its lease", extra=job.claim.log_fields)
    return Settled(job, LEFT)
