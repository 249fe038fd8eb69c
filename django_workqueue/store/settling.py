"""retry, bury, release, hold: how a claim ends. Nothing settles without its token (I3)."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

from django.db.models import F, QuerySet, Value
from django.db.models.functions import Greatest

from ..models import DeadJob, JobFacts, LiveJob, Result
from ..states import DeathReason, HeldReason, Place, ResultOutcome, State
from .acking import SHARED, Acking
from .core import delete_rows, lost, transition
from .records import Claim, ErrorRecord, Hold, listed, with_error

UNHELD: Final[dict[str, Any]] = {"token": None, "worker_id": None, "lease_expires_at": None}
REFUNDED: Final = Greatest(F("attempt"), Value(1)) - 1
"""Not below 0, where somebody edited the row."""
STRAYS_PER_STATEMENT: Final = 500
FACT_NAMES: Final = tuple(field.name for field in JobFacts._meta.fields)
RESULT_FACTS: Final = (*SHARED, "worker_ids")


def _by_token(hold: Hold) -> uuid.UUID:
    return hold[1]


class Settling(Acking):
    """The end of a claim.

    A cancel that was asked turns every end but ``ack`` into finished (cancelled): each statement
    asks for a row without one, and only where there is none, for a row with one. Writes come
    first, so that a deferred transaction of SQLite never has to turn a read lock into a write one.
    """

    @transition
    def retry(
        self,
        claim: Claim,
        delay_seconds: float,
        error: ErrorRecord,
        *,
        now: datetime | None = None,
    ) -> str:
        """Schedule the job again after *delay_seconds*; return where it is now.

        A job whose budget is spent is buried, reason exhausted. Raises LeaseLost if another claim
        holds it; nothing is written then.
        """
        if claim.attempt >= claim.max_attempts:
            return self._bury(claim, DeathReason.EXHAUSTED, error, now)
        return self._leave(
            claim,
            "retry",
            charged(claim, error),
            now,
            state=State.SCHEDULED,
            run_after=self.moment(now, max(delay_seconds, 0.0)),
            unknown_since=None,
            # It came to an end by itself: it was not the one.
            suspect=False,
        )

    @transition
    def bury(
        self,
        claim: Claim,
        reason: DeathReason,
        error: ErrorRecord,
        *,
        now: datetime | None = None,
    ) -> str:
        """Move the job to the dead; return where it is now: dead, dropped or cancelled.

        Raises LeaseLost if another claim holds it; nothing is written then.
        """
        return self._bury(claim, reason, error, now)

    @transition
    def release(
        self,
        claim: Claim,
        *,
        delay_seconds: float = 0.0,
        now: datetime | None = None,
    ) -> str:
        """Give the job back with its attempt refunded; return where it is now.

        Without a delay it keeps its place in the queue. Raises LeaseLost if another claim holds
        it; nothing is written then.
        """
        changes: dict[str, Any] = {"state": State.READY}
        if delay_seconds > 0:
            changes = {"state": State.SCHEDULED, "run_after": self.moment(now, delay_seconds)}
        return self._leave(claim, "release", {"attempt": claim.attempt - 1}, now, **changes)

    @transition
    def release_together(self, claims: Sequence[Claim]) -> set[Hold]:
        """Give back, in one statement, what one token has claimed; return the holds that let go.

        As `release` without a delay. A hold that is missing was asked to be cancelled: `release`
        ends it. One that another claim has by now is returned: nothing is written of it.
        """
        return self._release_holds([claim.hold for claim in claims])[1]

    def _release_holds(self, holds: Sequence[Hold]) -> tuple[int, set[Hold]]:
        """Do that for *holds* of one token; return how many rows changed, too."""
        (token,) = {token for _, token in holds}
        ids = sorted(job_id for job_id, _ in holds)
        self.lock(LiveJob, ids)
        held = self.live().filter(pk__in=ids, token=token, state=State.RUNNING)
        waiting = held.filter(cancel_asked_at__isnull=True)
        count = waiting.update(state=State.READY, attempt=REFUNDED, **UNHELD)
        return count, set(holds) - self.still_held(holds)

    @transition
    def hold(
        self,
        claim: Claim,
        reason: HeldReason,
        delay_seconds: float,
        error: ErrorRecord,
        *,
        now: datetime | None = None,
    ) -> str:
        """Hold a job that cannot run here, with its attempt refunded; return where it is now.

        ``unknown_since`` keeps the moment since when its task is unknown. Raises LeaseLost if
        another claim holds it; nothing is written then.
        """
        unknown = reason == HeldReason.UNKNOWN
        errors = with_error(claim.errors, error, replace_outcome=True)
        return self._leave(
            claim,
            "hold",
            {"attempt": claim.attempt - 1, "errors": errors},
            now,
            state=State.HELD,
            held_reason=reason,
            run_after=self.moment(now, delay_seconds),
            unknown_since=claim.unknown_since or (self.moment(now) if unknown else None),
        )

    def release_strays(
        self, worker_id: str, known: Collection[Hold], *, now: datetime | None = None
    ) -> int:
        """Give back running jobs of this worker under claims it does not know; return how many.

        A claim whose answer was lost: the rows were taken, and nobody works on them.
        """
        rows = self.live().filter(state=State.RUNNING, worker_id=worker_id)
        found = rows.values_list("pk", "token")
        strays = {(job_id, token) for job_id, token in found if token} - set(known)
        count, left = 0, list[Hold]()
        # What one claim brought in one statement: a worker that died may have had a thousand.
        for _, of_token in itertools.groupby(sorted(strays, key=_by_token), _by_token):
            holds = list(of_token)
            for start in range(0, len(holds), STRAYS_PER_STATEMENT):
                part = holds[start : start + STRAYS_PER_STATEMENT]
                changed, gone = transition(Settling._release_holds)(self, part)
                count += changed
                left += sorted(set(part) - gone)
        # A cancel was asked of these, or is.
        jobs = [self.live().filter(pk=job_id, token=token).first() for job_id, token in left]
        return count + sum(self._release_stray(job, now) for job in jobs if job is not None)

    @transition
    def _release_stray(self, job: LiveJob, now: datetime | None) -> bool:
        self.lock(LiveJob, [job.pk])
        held = self.live().filter(pk=job.pk, token=job.token, state=State.RUNNING)
        waiting = held.filter(cancel_asked_at__isnull=True)
        if waiting.update(state=State.READY, attempt=REFUNDED, **UNHELD):
            return True
        if not delete_rows(held):
            return False
        self.keep_cancelled(self.facts(job, attempt=job.attempt - 1), now)
        return True

    # The statements

    def _leave(
        self,
        claim: Claim,
        verb: str,
        facts: dict[str, Any],
        now: datetime | None,
        **changes: Any,
    ) -> str:
        """Let go of the job: *facts* are what this start leaves behind, wherever it goes."""
        self.lock(LiveJob, [claim.id])
        rows = self._held_row(claim).filter(cancel_asked_at__isnull=True)
        if rows.update(**UNHELD, **facts, **changes):
            return str(changes["state"])
        return self._end_cancelled(claim, verb, facts, now)

    def _bury(
        self,
        claim: Claim,
        reason: DeathReason,
        error: ErrorRecord,
        now: datetime | None,
    ) -> str:
        left = charged(claim, error)
        self.lock(LiveJob, [claim.id])
        job = self._taken_out(self._held_row(claim).filter(cancel_asked_at__isnull=True), left)
        if job is None:
            return self._end_cancelled(claim, "bury", left, now)
        if not job.dead_letter:
            return "dropped"
        facts = self.facts(job, started_at=error.started)
        self.dead().bulk_create([DeadJob(**facts, died_at=self.moment(now), reason=reason)])
        return Place.DEAD

    def _end_cancelled(
        self, claim: Claim, verb: str, facts: dict[str, Any], now: datetime | None
    ) -> str:
        job = self._taken_out(self._held_row(claim).filter(cancel_asked_at__isnull=False), facts)
        if job is None:
            raise lost(claim.id, verb)
        self.keep_cancelled(self.facts(job), now)
        return ResultOutcome.CANCELLED

    def _taken_out(self, held: QuerySet[LiveJob], facts: dict[str, Any]) -> LiveJob | None:
        """Write *facts* to the row of *held* and delete it; return it as it was, or None.

        The write is first, and decides: from then on the row is locked.
        """
        if not held.update(**facts):
            return None
        job = held.get()
        delete_rows(held)
        return job

    def _held_row(self, claim: Claim) -> QuerySet[LiveJob]:
        return self.live().filter(pk=claim.id, token=claim.token, state=State.RUNNING)

    # Facts of a job on their way to another table

    def facts(self, source: JobFacts, **changes: Any) -> dict[str, Any]:
        """Return the columns that a live and a dead job share, read from *source*."""
        return {name: getattr(source, name) for name in FACT_NAMES} | changes

    def keep_cancelled(self, facts: dict[str, Any], now: datetime | None) -> None:
        """Write the result of a cancelled job, for as long as a result of it would be kept."""
        if facts["result_ttl"] == 0:
            return
        row = Result(
            **self._result_facts(facts),
            outcome=ResultOutcome.CANCELLED,
            attempts=facts["attempt"],
            finished_at=self.moment(now),
            expires_at=self._result_end(facts["result_ttl"], now),
        )
        self.results().bulk_create([row])

    def _result_facts(self, facts: dict[str, Any]) -> dict[str, Any]:
        return {name: facts[name] for name in RESULT_FACTS}

    def _result_end(self, ttl: float | None, now: datetime | None) -> Any:
        return None if ttl is None else self.moment(now, ttl)


def charged(claim: Claim, error: ErrorRecord) -> dict[str, Any]:
    """Return what a start that did not succeed leaves behind; one given back leaves nothing."""
    return {"errors": with_error(claim.errors, error), "worker_ids": worker_ids(claim)}


def worker_ids(claim: Claim) -> list[str]:
    """Return the workers of the job's charged starts, this claim's among them."""
    return [*listed(claim.worker_ids), claim.worker_id]
