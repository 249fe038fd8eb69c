"""reclaim, expire, bury what is spent or unknown for too long, purge: in bounded batches.

Each method reads candidates first, outside of a transaction, and then moves row by row: the write
restates all that made the row a candidate, so a row that changed in between is left alone (I9).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from typing import Any, Final, Literal

from django.db.models import F, Q, QuerySet

from ..models import SPENT, DeadJob, LiveJob, Lock, Seen, Worker
from ..states import NOT_RUNNING, DeathReason, HeldReason, Lane, State
from .core import delete_rows, statement, transition
from .ordering import Ordering
from .records import ErrorRecord, Hold, Swept, listed, with_error
from .settling import UNHELD, Settling

SWEEP_BATCH: Final = 500
SEEN_MARGIN_SECONDS: Final = 7 * 86_400
NIL: Final = uuid.UUID(int=0)
"""An id that no job has."""


class Sweeping(Ordering, Settling):
    """What happens to rows that nobody holds."""

    def lapsed(self, *, now: datetime | None = None) -> Q:
        """The lease ended: its end is the database's now, or before."""
        return Q(state=State.RUNNING, lease_expires_at__lte=self.moment(now))

    def expired(self, *, now: datetime | None = None) -> Q:
        """Past ``expires_at`` and not held by a living lease; a lapsed running job is.

        The states by name: one that newer code wrote is left alone.
        """
        return Q(expires_at__lte=self.moment(now)) & (
            Q(state__in=NOT_RUNNING) | self.lapsed(now=now)
        )

    # Whether the leases' ends mean anything

    def any_running(self) -> bool:
        """Tell whether any lease is held. Walks workqueue_live_running."""
        return self.live().filter(state=State.RUNNING).exists()

    def prove_writable(self) -> None:
        """Change no live row, in a statement that waits for, and fails by, all that a change does.

        A stall of the database's writes lasts at least as long as this takes.
        """
        self.live().filter(pk=NIL).update(suspect=False)

    # reclaim

    def reclaim(
        self,
        *,
        limit: int = SWEEP_BATCH,
        where: Q | None = None,
        now: datetime | None = None,
        dry_run: bool = False,
    ) -> list[Swept]:
        """Take back up to *limit* lapsed jobs: ready again, or dead where the budget is spent.

        Walks workqueue_live_running. No backoff; ``run_after`` is kept. A job of one attempt that
        was never marked as started is refunded: it is run at most once, and never dies unrun.
        *where* narrows which live rows are meant (a queue's own).
        """
        rows = self.live().filter(where or Q(), self.lapsed(now=now)).order_by("lease_expires_at")
        if dry_run:
            return [planned(job, death_of_lapsed(job)) for job in rows[:limit]]
        return self._sweep(self._unlocked(rows[:limit]), lambda job: self._reclaim(job, now))

    def lose(self, worker_id: str, told: str, *, now: datetime | None = None) -> list[Swept]:
        """Take back the running jobs of a worker whose process is gone, without their leases' end.

        As ``reclaim`` does; *told* says how the process ended.
        """
        rows = self.live().filter(state=State.RUNNING, worker_id=worker_id).order_by("pk")
        return self._sweep(rows, lambda job: self._lose(job, told, now))

    @transition
    def _lose(self, job: LiveJob, told: str, now: datetime | None) -> Swept | None:
        self.lock(LiveJob, [job.pk])
        held = self.live().filter(state=State.RUNNING, pk=job.pk, token=job.token)
        return self._take_back(held, job, told, now)

    def time_out(
        self,
        holds: Collection[Hold],
        told: str,
        delay_seconds: Callable[[int], float],
        *,
        now: datetime | None = None,
    ) -> list[Swept]:
        """Take back running jobs whose process was ended because they outlived their time limit.

        One whose cancel was asked is cancelled. Another is scheduled again after
        ``delay_seconds(attempt)``, or dead (timeout) where its budget is spent; *told* says how
        the process ended.
        """
        rows = self.live().filter(pk__in=sorted(job_id for job_id, _ in holds)).order_by("pk")
        overdue = [job for job in rows if (job.pk, job.token) in holds]
        return self._sweep(
            overdue, lambda job: self._time_out(job, told, delay_seconds(job.attempt), now)
        )

    @transition
    def _time_out(
        self, job: LiveJob, told: str, delay_seconds: float, now: datetime | None
    ) -> Swept | None:
        self.lock(LiveJob, [job.pk])
        held = self.live().filter(state=State.RUNNING, pk=job.pk, token=job.token)
        if job.cancel_asked_at is not None:
            return self._move_cancelled(held, job, self._lost_facts(job, told), now)
        limit = f"timeout: an attempt of {job.task} must end within {job.timeout:g} s; {told}"
        facts = self._lost_facts(job, limit, outcome=DeathReason.TIMEOUT)
        if job.attempt >= job.max_attempts:
            return self._move_dead(held, job, DeathReason.TIMEOUT, facts, now)
        later = {"state": State.SCHEDULED, "run_after": self.moment(now, delay_seconds)}
        held = held.filter(cancel_asked_at__isnull=True)
        return swept(job, "scheduled") if held.update(**later, **UNHELD, **facts) else None

    @transition
    def _reclaim(self, job: LiveJob, now: datetime | None) -> Swept | None:
        self.lock(LiveJob, [job.pk])
        held = self.live().filter(self.lapsed(now=now), pk=job.pk, token=job.token)
        return self._take_back(held, job, "", now)

    def _take_back(
        self,
        held: QuerySet[LiveJob],
        job: LiveJob,
        told: str,
        now: datetime | None,
    ) -> Swept | None:
        unrun = is_unrun(job)
        if unrun:
            held = held.filter(started_at__isnull=True)
        facts = {"attempt": job.attempt - 1} if unrun else self._lost_facts(job, told)
        if job.cancel_asked_at is not None:
            return self._move_cancelled(held, job, facts, now)
        if (reason := death_of_lapsed(job)) is not None:
            return self._move_dead(held, job, reason, facts, now)
        changes = facts if unrun else {**facts, "suspect": True, "deaths": F("deaths") + 1}
        held = held.filter(cancel_asked_at__isnull=True)
        if not held.update(state=State.READY, **UNHELD, **changes):
            return None
        return swept(job, "ready")

    def _lost_facts(self, job: LiveJob, told: str = "", outcome: str = "lost") -> dict[str, Any]:
        record = ErrorRecord(
            attempt=job.attempt,
            worker=job.worker_id or "",
            started=job.started_at or job.claimed_at,
            ended=job.lease_expires_at,
            outcome=outcome,
            message=told
            or (
                f"worker lost: {job.worker_id} stopped extending its lease, which ended "
                f"at {job.lease_expires_at}"
            ),
        )
        errors = with_error(job.errors, record)
        return {"errors": errors, "worker_ids": [*listed(job.worker_ids), job.worker_id]}

    # expire, and what no claim returns

    def expire(
        self,
        *,
        limit: int = SWEEP_BATCH,
        where: Q | None = None,
        now: datetime | None = None,
        dry_run: bool = False,
    ) -> list[Swept]:
        """Bury up to *limit* live jobs past their ``expires_at``. Walks workqueue_live_expires.

        *where* narrows which live rows are meant (a queue's own).
        """
        rows = self.live().filter(where or Q(), self.expired(now=now)).order_by("expires_at")
        if dry_run:
            return [planned(job, DeathReason.EXPIRED) for job in rows[:limit]]
        return self._sweep(self._unlocked(rows[:limit]), lambda job: self._expire(job, now))

    @transition
    def _expire(self, job: LiveJob, now: datetime | None) -> Swept | None:
        self.lock(LiveJob, [job.pk])
        # State and token too: a late holder that retries or releases leaves the fence as it is.
        seen = {"pk": job.pk, "fence": job.fence, "state": job.state, "token": job.token}
        rows = self.live().filter(self.expired(now=now), **seen)
        facts = self._lost_facts(job) if job.state == State.RUNNING else {}
        if job.cancel_asked_at is not None:
            return self._move_cancelled(rows, job, facts, now)
        return self._move_dead(rows, job, DeathReason.EXPIRED, facts, now)

    def bury_spent(
        self, *, limit: int = 100, now: datetime | None = None, dry_run: bool = False
    ) -> list[Swept]:
        """Bury ready jobs without budget among the first *limit* of each queue.

        No claim returns such a row (one edited by hand, say), and no transition makes one; it
        does harm where a claim has to step over it: at the head of a queue.
        """
        done: list[Swept] = []
        queues = [(lane, name) for lane in Lane for name in self.ready_queues(lane, now=now)]
        for lane, name in queues:
            head = self.live().filter(state=State.READY, lane=lane, queue_name=name)
            head = head.order_by("rank", "run_after", "id")[:limit]
            spent = [job for job in head if job.attempt >= job.max_attempts]
            if dry_run:
                done += [planned(job, DeathReason.EXHAUSTED) for job in spent]
            else:
                done += self._sweep(spent, lambda job: self._bury_spent(job, now))
        return done

    @transition
    def _bury_spent(self, job: LiveJob, now: datetime | None) -> Swept | None:
        self.lock(LiveJob, [job.pk])
        rows = self.live().filter(SPENT, state=State.READY, pk=job.pk, fence=job.fence)
        return self._move_dead(rows, job, DeathReason.EXHAUSTED, {}, now)

    def bury_unknown(
        self,
        grace_seconds: float,
        *,
        limit: int = SWEEP_BATCH,
        now: datetime | None = None,
        dry_run: bool = False,
    ) -> list[Swept]:
        """Bury jobs that no process could run since *grace_seconds*. Walks workqueue_live_held."""
        old = Q(
            state=State.HELD,
            held_reason=HeldReason.UNKNOWN,
            unknown_since__lte=self.moment(now, -grace_seconds),
        )
        rows = self.live().filter(old).order_by("run_after")
        if dry_run:
            return [planned(job, death_of_unknown(job)) for job in rows[:limit]]
        return self._sweep(rows[:limit], lambda job: self._bury_unknown(job, old, now))

    @transition
    def _bury_unknown(self, job: LiveJob, old: Q, now: datetime | None) -> Swept | None:
        self.lock(LiveJob, [job.pk])
        rows = self.live().filter(old, pk=job.pk, fence=job.fence)
        return self._move_dead(rows, job, death_of_unknown(job), {}, now)

    # purge

    def purge(
        self,
        dead_ttl_seconds: float | None,
        *,
        limit: int = SWEEP_BATCH,
        now: datetime | None = None,
        dry_run: bool = False,
    ) -> dict[str, int]:
        """Delete up to *limit* rows of each kind past their retention; return how many of each.

        Dead jobs older than *dead_ttl_seconds* (None: none), results, locks nobody renewed.
        """
        past = Q(expires_at__lte=self.moment(now))
        counts = {
            "results": self._purge(self.results(), past, limit, dry_run=dry_run),
            "locks": self._purge(self._rows(Lock), past, limit, dry_run=dry_run),
        }
        if dead_ttl_seconds is not None:
            old = Q(died_at__lte=self.moment(now, -dead_ttl_seconds))
            counts["dead"] = self._purge(self.dead(), old, limit, dry_run=dry_run)
        return counts

    def forget_workers(self, silent_seconds: float, *, now: datetime | None = None) -> int:
        """Delete the rows of workers not seen for *silent_seconds*; return how many."""
        silent = Q(last_seen_at__lte=self.moment(now, -silent_seconds))
        return self._purge(self._rows(Worker), silent, SWEEP_BATCH, dry_run=False)

    def forget_seen(
        self,
        dead_ttl_seconds: float | None,
        *,
        limit: int = SWEEP_BATCH,
        now: datetime | None = None,
        dry_run: bool = False,
    ) -> int:
        """Delete up to *limit* notes of messages that hardly come again; return how many.

        Older than *dead_ttl_seconds*, in which a dead message may be requeued, and a week more.
        """
        if dead_ttl_seconds is None:
            return 0
        old = Q(seen_at__lte=self.moment(now, -dead_ttl_seconds - SEEN_MARGIN_SECONDS))
        return self._purge(self._rows(Seen), old, limit, dry_run=dry_run)

    @statement
    def _purge(self, rows: QuerySet[Any], old: Q, limit: int, *, dry_run: bool) -> int:
        ids = list(rows.filter(old).values_list("pk", flat=True)[:limit])
        if dry_run or not ids:
            return len(ids)
        with self.together():
            self.lock(rows.model, ids)
            return delete_rows(rows.filter(old, pk__in=ids))

    def _rows(self, model: type[Any]) -> QuerySet[Any]:
        rows: QuerySet[Any] = model._base_manager.using(self.alias)
        return rows

    # The moves

    def _unlocked(self, jobs: Iterable[LiveJob]) -> list[LiveJob]:
        """Return the *jobs* whose rows nobody has locked.

        A host that vanished in the middle of a settle may keep its locks for hours, until the
        server notices. What it had is taken back then, and the others must not wait for it.
        """
        jobs = list(jobs)
        free = self.unlocked([job.pk for job in jobs])
        return [job for job in jobs if job.pk in free]

    def _sweep(
        self, jobs: Iterable[LiveJob], move: Callable[[LiveJob], Swept | None]
    ) -> list[Swept]:
        return [done for job in list(jobs) if (done := move(job)) is not None]

    def _move_dead(
        self,
        rows: QuerySet[LiveJob],
        job: LiveJob,
        reason: DeathReason,
        changes: dict[str, Any],
        now: datetime | None,
    ) -> Swept | None:
        if not delete_rows(rows.filter(cancel_asked_at__isnull=True)):
            return None
        if job.dead_letter:
            facts = self.facts(job, **changes)
            self.dead().bulk_create([DeadJob(**facts, died_at=self.moment(now), reason=reason)])
        return planned(job, reason)

    def _move_cancelled(
        self,
        rows: QuerySet[LiveJob],
        job: LiveJob,
        changes: dict[str, Any],
        now: datetime | None,
    ) -> Swept | None:
        if not delete_rows(rows):
            return None
        self.keep_cancelled(self.facts(job, **changes), now)
        self.left(job)
        return swept(job, "cancelled")


def swept(
    job: LiveJob,
    outcome: Literal["ready", "scheduled", "dead", "cancelled", "dropped"],
    reason: DeathReason | None = None,
) -> Swept:
    """Return what the log says of a row that a sweep moved."""
    return Swept(
        job.pk, job.task, job.queue_name, job.worker_id or "", job.attempt, outcome, reason
    )


def planned(job: LiveJob, reason: DeathReason | None) -> Swept:
    """Return how a job ends that a sweep buries for *reason* (None: makes ready)."""
    if job.cancel_asked_at is not None:
        return swept(job, "cancelled")
    if reason is None:
        return swept(job, "ready")
    return swept(job, "dead" if job.dead_letter else "dropped", reason)


def is_unrun(job: LiveJob) -> bool:
    """True for a job of one attempt whose body never began: its start is not charged."""
    return job.max_attempts == 1 and job.started_at is None


def death_of_lapsed(job: LiveJob) -> DeathReason | None:
    """Return why a lapsed job is dead, or None where its budget allows another start."""
    spent = job.attempt >= job.max_attempts and not is_unrun(job)
    return DeathReason.LOST if spent else None


def death_of_unknown(job: LiveJob) -> DeathReason:
    """Return why a job that could not run for too long is dead: its task, or its arguments."""
    errors = listed(job.errors)
    last = errors[-1]["outcome"] if errors else ""
    bad = last == DeathReason.BAD_ARGUMENTS
    return DeathReason.BAD_ARGUMENTS if bad else DeathReason.UNKNOWN_TASK
