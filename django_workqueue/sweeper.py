"""Take back what lapsed, bury what expired, purge what is old."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from django.db import connections

from . import clock, conf, moving
from .faults import DATABASE_FAULTS
from .loop import Loop
from .store import BaseStore, Swept, queue_alias
from .store.burying import SWEEP_BATCH

logger = logging.getLogger("django_workqueue.sweeper")

CLOCKS_PART_SECONDS = 1.0
BATCHES_PER_SWEEP = 20
SWEEPS_PER_PURGE = 6
"""Old rows can wait: looking for them each time was most of what an idle worker asked."""


@dataclass(slots=True)
class SweepReport:
    """What one sweep did, or with a dry run would do."""

    reclaimed: list[Swept] = field(default_factory=list)
    expired: list[Swept] = field(default_factory=list)
    buried: list[Swept] = field(default_factory=list)
    purged: dict[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        counts = {name: len(getattr(self, name)) for name in ("reclaimed", "expired", "buried")}
        jobs = [
            {**asdict(job), "id": str(job.id)}
            for job in (*self.expired, *self.reclaimed, *self.buried)
        ]
        return {**counts, "purged": self.purged, "jobs": jobs}


def sweep(
    store: BaseStore,
    settings: conf.Settings,
    *,
    may_reclaim: Callable[[], bool] = lambda: True,
    purge: bool = True,
    dry_run: bool = False,
) -> SweepReport:
    """Sweep once, in bounded batches, and return what was done. Expired rows go first.

    Without *purge*, old rows, and ready ones without a budget, are left for another time.

    *may_reclaim* is asked before each batch that looks at the ends of leases: when it says no,
    rows whose lease ended are left alone, the expired among them too.
    """
    report = SweepReport()
    report.expired = _all(lambda: store.expire(dry_run=dry_run), may_reclaim, dry_run=dry_run)
    report.reclaimed = _all(lambda: store.reclaim(dry_run=dry_run), may_reclaim, dry_run=dry_run)
    if purge:
        report.buried = store.bury_spent(dry_run=dry_run)
    report.buried += store.bury_unknown(settings.unknown_task_seconds, dry_run=dry_run)
    for _ in range(0 if not purge else 1 if dry_run else BATCHES_PER_SWEEP):
        counts = store.purge(settings.dead_ttl_seconds, dry_run=dry_run)
        for name, count in counts.items():
            report.purged[name] = report.purged.get(name, 0) + count
        if max(counts.values()) < SWEEP_BATCH:
            break
    report.purged |= _tend_outbox(store, settings, purge=purge, dry_run=dry_run)
    for swept in (*report.expired, *report.reclaimed, *report.buried):
        if not dry_run:
            _log(swept)
    return report


def _tend_outbox(
    store: BaseStore, settings: conf.Settings, *, purge: bool, dry_run: bool
) -> dict[str, int]:
    """Let keys of the outbox go on that nobody let, and purge what the outbox needs no more."""
    counts = {"keys": 0 if dry_run else store.tend_keys()}
    if not purge:
        return counts
    counts |= {
        "seen": store.forget_seen(settings.dead_ttl_seconds, dry_run=dry_run),
        "moved": 0,
    }
    if store.alias == queue_alias():
        try:
            counts["moved"] = moving.purge_moved(store, dry_run=dry_run)
        except DATABASE_FAULTS:
            # Another database than this one may be away.
            logger.warning("moved rows cannot be purged", exc_info=True)
    return counts


def _all(
    batch: Callable[[], list[Swept]], may_go_on: Callable[[], bool], *, dry_run: bool
) -> list[Swept]:
    """Return what bounded batches did until one was not full."""
    done: list[Swept] = []
    for _ in range(1 if dry_run else BATCHES_PER_SWEEP):
        if not may_go_on():
            break
        swept = batch()
        done += swept
        if len(swept) < SWEEP_BATCH:
            break
    return done


def _log(swept: Swept) -> None:
    logger.warning(
        "job taken back" if swept.outcome == "ready" else "job swept",
        extra={
            "job_id": swept.id,
            "task": swept.task,
            "queue": swept.queue_name,
            "attempt": swept.attempt,
            "worker_id": swept.worker_id,
            "outcome": swept.outcome,
            "reason": swept.reason or "",
        },
    )


class Sweeper:
    """Sweeps at intervals, and holds off reclaiming after a stall.

    A lease that seems to have ended may only have had no chance to be extended. When this sweeper
    just started, could not reach or write the database, had to wait for it or for the processor
    for more than a sixth of a lease, or saw the database's clock and its own part by more than a
    second, it reclaims nothing for a third of a lease, counted from when all was well again.
    Between two sweeps it looks for that at least every third of a lease.
    """

    def __init__(
        self,
        store: BaseStore,
        settings: conf.Settings,
        lease_seconds: float,
        *,
        on_swept: Callable[[SweepReport], None] = lambda report: None,
        sweeps_per_purge: int = SWEEPS_PER_PURGE,
    ) -> None:
        self._sweeps_per_purge = sweeps_per_purge
        self._store = store
        self._settings = settings
        self._lease_seconds = lease_seconds
        self._on_swept = on_swept
        self._seen: tuple[datetime, float] | None = None
        self._reclaims_from = 0.0
        self._sweeps_at = 0.0
        self._sweep_count = 0
        self._awaited_at: float | None = None
        # Nothing is known of the database until a look at it went well.
        self._stalled = True
        self._fault_count = 0

    def step(self) -> float:
        """Look at the database, and sweep if it is time to; return the seconds to the next look."""
        try:
            if clock.monotonic() >= self._sweeps_at:
                self._sweep()
            else:
                self._look()
        except Exception:
            self._stalled = True
            self._awaited_at = None
            raise
        self._fault_count = 0
        return self._rest()

    def loop(self) -> Loop:
        """Return the loop of a thread that sweeps until it is stopped, on its own connection."""
        # Every error: one row that cannot be swept must not end the sweeping of all others.
        return Loop(self.step, on_error=self._on_fault, at_end=connections.close_all)

    def _may_reclaim(self) -> bool:
        self._look()
        return clock.monotonic() >= self._reclaims_from

    def _look(self) -> None:
        """Hold off if the database, or this process, stood still since the last look."""
        began = clock.monotonic()
        late = self._awaited_at is not None and self._stood_still(self._awaited_at, began)
        moment, any_running = self._store.glance()
        parted = self._clocks_parted(began, moment)
        if any_running:
            self._store.prove_writable()
        if late or parted or self._stalled or self._stood_still(began, clock.monotonic()):
            self._hold_off()
        self._stalled = False
        self._awaited_at = clock.monotonic()

    def _sweep(self) -> None:
        report = sweep(
            self._store,
            self._settings,
            may_reclaim=self._may_reclaim,
            purge=self._sweep_count % self._sweeps_per_purge == 0,
        )
        # As many as a sweep may purge: there are more, and the next one goes on.
        most = SWEEP_BATCH * BATCHES_PER_SWEEP
        if max(report.purged.values(), default=0) < most:
            self._sweep_count += 1
        self._on_swept(report)
        now = clock.monotonic()
        # What came after the last look may have waited too; the next look tells when it is over.
        self._stalled = self._awaited_at is not None and self._stood_still(self._awaited_at, now)
        self._sweeps_at = now + self._settings.sweep_seconds * random.uniform(0.9, 1.0)
        if now < self._reclaims_from:
            self._sweeps_at = min(self._sweeps_at, self._reclaims_from)

    def _rest(self) -> float:
        now = clock.monotonic()
        seconds = max(min(self._sweeps_at - now, self._lease_seconds / 3), 0.0)
        self._awaited_at = now + seconds
        return seconds

    def _on_fault(self, error: Exception) -> float:
        connections.close_all()
        if not self._fault_count:
            known = isinstance(error, DATABASE_FAULTS)
            logger.warning(
                "sweep failed",
                extra={"error": type(error).__name__},
                exc_info=None if known else error,
            )
        self._fault_count += 1
        return min(self._settings.sweep_seconds, self._lease_seconds / 6)

    def _hold_off(self) -> None:
        self._reclaims_from = clock.monotonic() + self._lease_seconds / 3

    def _stood_still(self, since: float, until: float) -> bool:
        return until - since > self._lease_seconds / 6

    def _clocks_parted(self, before: float, moment: datetime) -> bool:
        """Tell whether the database's clock went otherwise than this process's since last time.

        It stood at *moment* between *before*, by the monotonic clock, and now.
        """
        seen, self._seen = self._seen, (moment, clock.monotonic())
        if seen is None:
            return False
        passed = (moment - seen[0]).total_seconds()
        # The answer's own way is no parting of the clocks.
        least, most = before - seen[1], self._seen[1] - seen[1]
        if least - CLOCKS_PART_SECONDS <= passed <= most + CLOCKS_PART_SECONDS:
            return False
        logger.warning("clocks parted", extra={"seconds": passed - least})
        return True
