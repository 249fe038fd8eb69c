"""One pass over the schedules: what is due fires, what is wrong is marked, the rest goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from .. import conf, cron, notifying
from ..models import Schedule
from ..store import BaseStore
from ..store.scheduling import Fired
from . import planning, writing
from .planning import BAD_ROW

logger = logging.getLogger("django_workqueue.scheduler")

BATCH: Final = 100


@dataclass(slots=True)
class TickReport:
    """What one pass over the due schedules did."""

    fired: list[tuple[str, Fired]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    # Somebody else fires them now, or edited them: they may be due still.
    passed_over: list[str] = field(default_factory=list)
    has_more: bool = False

    @property
    def job_count(self) -> int:
        return sum(len(fired.jobs) for _, fired in self.fired)


def tick(
    store: BaseStore,
    settings: conf.Settings,
    *,
    now: datetime | None = None,
    go_on: Callable[[], bool] = lambda: True,
) -> TickReport:
    """Fire what is due, each schedule in a transaction of its own; return what was done.

    *go_on* is asked before each. *now* None: the database's clock.
    """
    report = TickReport()
    names = store.due_names(limit=BATCH, now=now)
    for name in names:
        if not go_on():
            break
        try:
            _fire(store, settings, name, report, now)
        except BAD_ROW as error:
            if store.fail_schedule(name, f"{type(error).__name__}: {error}"[:2000]):
                report.failed.append(name)
                logger.warning(
                    "schedule cannot be planned", extra={"schedule": name}, exc_info=error
                )
    report.has_more = report.has_more or len(names) == BATCH
    if report.job_count:
        notifying.notify(store)
    return report


def _fire(
    store: BaseStore, settings: conf.Settings, name: str, report: TickReport, now: datetime | None
) -> None:
    schedule, current = store.read_schedule(name, now=now)
    if schedule is None or schedule.next_fire_at is None or schedule.next_fire_at > current:
        return
    firing = planning.plan(schedule, current, settings)
    fired = store.fire(schedule, firing, now=now)
    if fired is None:
        report.passed_over.append(name)
        return
    report.fired.append((name, fired))
    report.has_more = report.has_more or (
        firing.next_fire_at is not None and firing.next_fire_at <= current
    )
    _log(schedule, fired)


def _log(schedule: Schedule, fired: Fired) -> None:
    fields = {"schedule": schedule.name, "task": schedule.task, "queue": schedule.queue_name}
    for job in fired.jobs:
        logger.info(
            "tick enqueued",
            extra={**fields, "job_id": job.id, "scheduled_for": job.scheduled_for},
        )
    if fired.missed_count:
        logger.warning(
            "ticks missed",
            extra={
                **fields,
                "missed": fired.missed_count,
                "while_live": fired.overlap_count,
                "key_taken": fired.taken_count,
                "catch_up": schedule.catch_up,
            },
        )


def replan(store: BaseStore, *, now: datetime | None = None) -> list[str]:
    """Plan afresh where the zone data says otherwise now, or an error is no more; return names.

    Never before the last tick that fired, whatever the clock says.
    """
    cron.forget_timezones()
    changed = []
    rows = store.schedules().filter(enabled=True).order_by("pk")
    for name in rows.values_list("pk", flat=True).iterator():
        try:
            if _replan(store, name, now):
                changed.append(name)
        except BAD_ROW:
            # It is marked when it is due; if it is marked already, it stays so.
            continue
    return changed


def _replan(store: BaseStore, name: str, now: datetime | None) -> bool:
    schedule, current = store.read_schedule(name, now=now)
    if schedule is None:
        return False
    planned = schedule.next_fire_at
    after = max(filter(None, (current, schedule.last_fire_at)))
    if planned is None:
        following = planning.first_tick(schedule.expression, schedule.timezone, after)
    elif planned <= after or cron.is_rhythm(schedule.expression):
        # What is overdue is its policy's to decide, and a rhythm goes on from where it is.
        cron.check(schedule.expression)
        following = planned
    else:
        following = cron.next_tick(schedule.expression, schedule.timezone, after)
    if following == planned and not schedule.error:
        return False
    return store.replan(schedule, following)


def once(store: BaseStore, settings: conf.Settings) -> TickReport:
    """Write what is declared and fire all that is due now; return what was done."""
    writing.write(store)
    replan(store)
    total = TickReport()
    while True:
        report = tick(store, settings)
        total.fired += report.fired
        total.failed += report.failed
        if not report.has_more:
            return total


def as_json(report: TickReport) -> dict[str, Any]:
    return {
        "jobs": [
            {"schedule": name, "job": str(job.id), "scheduled_for": str(job.scheduled_for)}
            for name, fired in report.fired
            for job in fired.jobs
        ],
        "missed": {name: fired.missed_count for name, fired in report.fired if fired.missed_count},
        "failed": report.failed,
    }
