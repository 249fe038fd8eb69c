"""Decide, without writing: which ticks of a schedule get a job, which are missed, what comes next.

A tick is missed when a later one is due as well, or when its time has passed by more than its
policy allows.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from django.db import DataError, IntegrityError

from .. import conf, cron, payload
from ..exceptions import WorkQueueError
from ..states import Lane, UniqueWhile
from ..store import NewJob
from ..store.scheduling import Firing

if TYPE_CHECKING:
    from ..models import Schedule

BAD_ROW: Final = (
    # Of the job that it asks for: the database refuses a value, and is not away.
    DataError,
    IntegrityError,
    WorkQueueError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
"""What a row that nobody can plan or read may raise: the others must fire all the same (N10)."""

CHUNK_TICKS: Final = 1_000
"""Missed ticks that one transaction passes over: a schedule far behind must not stop the others."""

ON_TIME_LEASES: Final = 2.0
"""Leases a tick may be old and still be on time: another scheduler takes over within one."""


@dataclass(frozen=True, slots=True)
class Due:
    """The newest due ticks, oldest first, how many came before them, and the first that follows.

    Without *newest*, more are due than one look counts: *following* is due itself.
    """

    newest: Sequence[datetime]
    earlier_count: int
    following: datetime


def first_tick(expression: str, timezone: str, created: datetime) -> datetime:
    """Return the first tick of a schedule made, or changed, at *created*: never one before it.

    A rhythm is anchored at that second.
    """
    return _tick_after(expression, timezone, created.replace(microsecond=0))


def upcoming(schedule: Schedule, count: int) -> list[datetime]:
    """Return the next ticks of a schedule, in its zone."""
    if schedule.next_fire_at is None:
        return []
    at = schedule.next_fire_at.astimezone(cron.timezone(schedule.timezone))
    found = [at]
    for tick in cron.ticks(schedule.expression, schedule.timezone, at):
        if len(found) >= count:
            break
        found.append(tick)
    return found


def due_ticks(schedule: Schedule, now: datetime, keep: int) -> Due:
    """Return what is due at *now* of a schedule, with the newest *keep* ticks by themselves."""
    tick = schedule.next_fire_at
    assert tick is not None
    newest: deque[datetime] = deque(maxlen=keep)
    count = 0
    while tick <= now and count < keep + CHUNK_TICKS:
        newest.append(tick)
        count += 1
        tick = _tick_after(schedule.expression, schedule.timezone, tick)
    if tick <= now:
        # Those kept may not be the newest: they stay due.
        return Due((), count - len(newest), newest[0])
    return Due(list(newest), count - len(newest), tick)


def plan(schedule: Schedule, now: datetime, settings: conf.Settings) -> Firing:
    """Return what becomes of the ticks of *schedule* that are due at *now*.

    Raises CronError for a schedule that cannot be planned, PayloadError for arguments that are
    refused.
    """
    keep = max(schedule.max_catch_up, 1) if schedule.catch_up == "all" else 1
    due = due_ticks(schedule, now, keep)
    oldest_seconds = min(_limits(schedule, settings), default=None)
    ticks = [
        tick
        for tick in due.newest
        if (oldest_seconds is None or (now - tick).total_seconds() <= oldest_seconds)
        # The clock was moved back, and the schedule edited since.
        and (schedule.last_fire_at is None or tick > schedule.last_fire_at)
    ]
    return Firing(
        jobs=[job_of(schedule, tick, settings) for tick in ticks],
        missed_count=due.earlier_count + len(due.newest) - len(ticks),
        next_fire_at=due.following,
    )


def _limits(schedule: Schedule, settings: conf.Settings) -> list[float]:
    """Return how many seconds old a tick may be to get a job, by each rule that says so."""
    limits = []
    if schedule.catch_up == "skip":
        limits.append(settings.lease_seconds * ON_TIME_LEASES)
    if schedule.deadline_seconds is not None:
        limits.append(schedule.deadline_seconds)
    if schedule.expires_seconds is not None:
        # It could never start.
        limits.append(schedule.expires_seconds)
    return limits


def job_of(schedule: Schedule, tick: datetime | None, settings: conf.Settings) -> NewJob:
    """Return the job of a tick; of None, one that was asked for by hand.

    Made of the row alone: the scheduler need not know the task (case 55). It becomes due at its
    tick plus the jitter, and ``expires`` counts from the tick.
    """
    options: dict[str, Any] = schedule.options or {}
    args: Any = schedule.args
    kwargs: Any = schedule.kwargs
    call = payload.encode_call(args, kwargs, max_bytes=settings.payload_max_bytes)
    payload.decode_call(
        call
    )  # Refuses what is no list and object: nothing else looks before it runs.
    jitter = 0.0 if tick is None else jitter_seconds(schedule, tick)
    expires = schedule.expires_seconds
    ttl = options.get("result_ttl")
    return NewJob(
        lane=Lane.TASK,
        queue_name=schedule.queue_name,
        task=schedule.task,
        backend=options.get("backend", ""),
        payload=call,
        priority=schedule.priority,
        run_after=None if tick is None else tick + timedelta(seconds=jitter),
        expires_seconds=None if expires is None else max(expires - jitter, 0.0),
        max_attempts=schedule.max_attempts or settings.max_attempts,
        unique_key=options.get("unique_key"),
        unique_while=options.get("unique_while") or UniqueWhile.LIVE.value,
        schedule=schedule.name,
        scheduled_for=tick,
        timeout=options.get("timeout"),
        result_ttl=settings.result_ttl_seconds if ttl is None else ttl,
        dead_letter=options.get("dead_letter", True),
        atomic=options.get("atomic", False),
    )


def jitter_seconds(schedule: Schedule, tick: datetime) -> float:
    """Return the delay of a tick's job: the same whoever asks, and however often."""
    if not schedule.jitter_seconds:
        return 0.0
    text = f"{schedule.name}\0{tick.astimezone(UTC).isoformat()}"
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
    return round(schedule.jitter_seconds * number / 2**64, 3)


def _tick_after(expression: str, timezone: str, after: datetime) -> datetime:
    return cron.next_tick(expression, timezone, after).astimezone(UTC)
