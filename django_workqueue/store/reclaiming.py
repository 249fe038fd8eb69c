"""reclaim, lose, time out: jobs whose holder is gone, taken back in bounded batches."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime

from django.db.models import F, Q, QuerySet

from ..models import LiveJob
from ..models.fields import from_database
from ..states import DeathReason, State
from .burying import SWEEP_BATCH, Burying, planned, swept
from .core import transition
from .records import Hold, Swept
from .settling import UNHELD


class Reclaiming(Burying):
    """The end of a lease that its holder did not end."""

    def lapsed(self, *, now: datetime | None = None) -> Q:
        """The lease ended: its end is the database's now, or before."""
        return Q(state=State.RUNNING, lease_expires_at__lte=self.moment(now))

    # Whether the leases' ends mean anything

    def glance(self) -> tuple[datetime, bool]:
        """Return the database's moment, and whether any lease is held.

        One statement, since idle workers ask. Walks workqueue_live_running: in its order, so that
        a planner that still knows of running jobs does not look for one among all that is ready.
        """
        q = self.quote
        sql, params = self.now_sql(None)
        first = (
            f"SELECT 1 FROM {self.live_table} WHERE {q('state')} = '{State.RUNNING}' "
            f"ORDER BY {q('lane')}, {q('queue_name')} LIMIT 1"
        )
        with self.connection.cursor() as cursor:
            cursor.execute(f"SELECT {self.read_moment_sql(sql)}, ({first}) IS NOT NULL", params)
            row = cursor.fetchone()
        moment = from_database(row[0])
        assert moment is not None
        return moment, bool(row[1])

    # Taking back

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


def is_unrun(job: LiveJob) -> bool:
    """True for a job of one attempt whose body never began: its start is not charged."""
    return job.max_attempts == 1 and job.started_at is None


def death_of_lapsed(job: LiveJob) -> DeathReason | None:
    """Return why a lapsed job is dead, or None where its budget allows another start."""
    spent = job.attempt >= job.max_attempts and not is_unrun(job)
    return DeathReason.LOST if spent else None
