"""Take back what lapsed, bury what expired, purge what is old."""

from __future__ import annotations

import logging
import random
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from django.db import connections

from . import clock, conf
from .extender import DATABASE_FAULTS
from .loop import Loop
from .store import BaseStore, Swept
from .store.sweeping import SWEEP_BATCH

logger = logging.getLogger("django_workqueue.sweeper")

CLOCKS_PART_SECONDS = 1.0
BATCHES_PER_SWEEP = 20


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
    reclaim: bool = True,
    dry_run: bool = False,
) -> SweepReport:
    """Sweep once, in bounded batches, and return what was done. Expired rows go first.

    With ``reclaim=False`` rows whose lease ended are left alone, the expired among them too.
    """
    report = SweepReport()
    if reclaim:
        report.expired = _all(lambda: store.expire(dry_run=dry_run), dry_run=dry_run)
        report.reclaimed = _all(lambda: store.reclaim(dry_run=dry_run), dry_run=dry_run)
    report.buried = store.bury_spent(dry_run=dry_run)
    report.buried += store.bury_unknown(settings.unknown_task_seconds, dry_run=dry_run)
    for _ in range(1 if dry_run else BATCHES_PER_SWEEP):
        counts = store.purge(settings.dead_ttl_seconds, dry_run=dry_run)
        for name, count in counts.items():
            report.purged[name] = report.purged.get(name, 0) + count
        if max(counts.values()) < SWEEP_BATCH:
            break
    for swept in (*report.expired, *report.reclaimed, *report.buried):
        if not dry_run:
            _log(swept)
    return report


def _all(batch: Any, *, dry_run: bool) -> list[Swept]:
    """Return what bounded batches did until one was not full."""
    done: list[Swept] = []
    for _ in range(1 if dry_run else BATCHES_PER_SWEEP):
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

    A lease that seems to have ended may only have had no chance to be extended: when this sweeper
    just started, could not reach or write the database, or saw the database's clock and its own
    part by more than a second, it reclaims nothing for a third of a lease.
    """

    def __init__(self, store: BaseStore, settings: conf.Settings, lease_seconds: float) -> None:
        self._store = store
        self._settings = settings
        self._lease_seconds = lease_seconds
        self._seen: tuple[datetime, float] | None = None
        self._hold_off()

    def step(self) -> float:
        """Sweep once; return the seconds to the next sweep, jittered by a tenth."""
        try:
            self._compare_clocks()
            holding = clock.monotonic() < self._reclaims_from
            sweep(self._store, self._settings, reclaim=not holding)
        except Exception:
            self._hold_off()
            raise
        interval = self._settings.sweep_seconds * random.uniform(0.9, 1.0)
        left = self._reclaims_from - clock.monotonic()
        return min(interval, left) if left > 0 else interval

    def loop(self) -> Loop:
        """Return the loop of a thread that sweeps until it is stopped, on its own connection."""
        return Loop(
            self.step,
            errors=DATABASE_FAULTS,
            on_error=self._on_fault,
            at_end=connections.close_all,
        )

    def _on_fault(self, error: Exception) -> float:
        connections.close_all()
        logger.warning("sweep failed", extra={"error": type(error).__name__})
        return min(self._settings.sweep_seconds, self._lease_seconds / 6)

    def _hold_off(self) -> None:
        self._reclaims_from = clock.monotonic() + self._lease_seconds / 3

    def _compare_clocks(self) -> None:
        before = clock.monotonic()
        moment = self._store.now()
        if self._seen is not None:
            seen_moment, seen_monotonic = self._seen
            passed = (moment - seen_moment).total_seconds()
            # The answer's own way is no parting of the clocks.
            least, most = before - seen_monotonic, clock.monotonic() - seen_monotonic
            if not least - CLOCKS_PART_SECONDS <= passed <= most + CLOCKS_PART_SECONDS:
                logger.warning("clocks parted", extra={"seconds": passed - least})
                self._hold_off()
        self._seen = moment, clock.monotonic()
