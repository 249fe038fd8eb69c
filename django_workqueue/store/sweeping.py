"""expire, bury what is spent or unknown for too long: in bounded batches."""

from __future__ import annotations

import random
from datetime import datetime
from typing import Final

from django.db.models import Q

from ..models import SPENT, LiveJob
from ..states import NOT_RUNNING, DeathReason, HeldReason, Lane, State
from .burying import SWEEP_BATCH, planned
from .core import transition
from .purging import Purging
from .reclaiming import Reclaiming
from .records import Swept, listed

QUEUES_LOOKED_AT: Final = 100


class Sweeping(Reclaiming, Purging):
    """What happens to rows that nobody holds."""

    def expired(self, *, now: datetime | None = None) -> Q:
        """Past ``expires_at`` and not held by a living lease; a lapsed running job is.

        The states by name: one that newer code wrote is left alone.
        """
        return Q(expires_at__lte=self.moment(now)) & (
            Q(state__in=NOT_RUNNING) | self.lapsed(now=now)
        )

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
        """Bury ready jobs without budget among the first *limit* of each queue, of many of some.

        No claim returns such a row (one edited by hand, say), and no transition makes one; it
        does harm where a claim has to step over it: at the head of a queue.
        """
        done: list[Swept] = []
        queues = [(lane, name) for lane in Lane for name in self.ready_queues(lane, now=now)]
        for lane, name in random.sample(queues, min(len(queues), QUEUES_LOOKED_AT)):
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


def death_of_unknown(job: LiveJob) -> DeathReason:
    """Return why a job that could not run for too long is dead: its task, or its arguments."""
    errors = listed(job.errors)
    last = errors[-1]["outcome"] if errors else ""
    bad = last == DeathReason.BAD_ARGUMENTS
    return DeathReason.BAD_ARGUMENTS if bad else DeathReason.UNKNOWN_TASK
