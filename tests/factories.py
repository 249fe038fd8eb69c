"""Jobs in any state, made through the store's own transitions at moments the test names."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django_workqueue.ids import new_token
from django_workqueue.models import Schedule
from django_workqueue.states import DeathReason, HeldReason, Lane
from django_workqueue.store import Ack, BaseStore, Claim, ErrorRecord, NewJob

T0: Final = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)
"""The moment at which a test begins."""

LEASE: Final = 30.0
QUEUE: Final = "default"
TASK: Final = "shop.tasks.send_receipt"


def at(seconds: float) -> datetime:
    """Return the moment *seconds* after the test's beginning."""
    return T0 + timedelta(seconds=seconds)


JOB_OPTIONS: Final = frozenset(each.name for each in fields(NewJob))


def new_job(**options: Any) -> NewJob:
    """Return a job to insert: one of three attempts in the queue ``default``."""
    defaults: dict[str, Any] = {
        "payload": '{"args":[7],"kwargs":{}}',
        "queue_name": QUEUE,
        "task": TASK,
        "max_attempts": 3,
    }
    return NewJob(**{**defaults, **options})


def insert(store: BaseStore, *, now: datetime | None = T0, **options: Any) -> uuid.UUID:
    """Insert one job, which must be written, and return its id."""
    (inserted,) = store.insert([new_job(**options)], now=now)
    return inserted.id


def claim(
    store: BaseStore,
    *,
    now: datetime | None = T0,
    lane: Lane = Lane.TASK,
    queue_name: str = QUEUE,
    worker_id: str = "w1",
    limit: int = 1,
    lease_seconds: float = LEASE,
    **options: Any,
) -> list[Claim]:
    """Claim from one queue under a new token."""
    return store.claim(
        lane,
        queue_name,
        worker_id=worker_id,
        token=options.pop("token", None) or new_token(),
        limit=limit,
        lease_seconds=lease_seconds,
        now=now,
        **options,
    )


def running(store: BaseStore, *, now: datetime | None = T0, **options: Any) -> Claim:
    """Insert a job and claim it; options of the job and of the claim may be mixed."""
    job = {name: options.pop(name) for name in JOB_OPTIONS & options.keys()}
    job_id = insert(store, now=now, **job)
    wanted = {name: job[name] for name in ("lane", "queue_name", "kind") if name in job}
    (taken,) = claim(store, now=now, **wanted, **options)
    assert taken.id == job_id, "another job stood before it in its queue"
    return taken


def error(taken: Claim, *, outcome: str = "failed", message: str = "boom") -> ErrorRecord:
    """Return the record of an attempt that raised ValueError, one second after its claim."""
    return ErrorRecord(
        attempt=taken.attempt,
        worker=taken.worker_id,
        started=taken.claimed_at,
        ended=taken.claimed_at + timedelta(seconds=1),
        outcome=outcome,
        exception_class="builtins.ValueError",
        message=message,
        traceback=f"Traceback ...\nValueError: {message}",
    )


def dead(
    store: BaseStore,
    *,
    now: datetime | None = T0,
    reason: DeathReason = DeathReason.TERMINAL,
    **options: Any,
) -> Claim:
    """Bury a new job; return the claim that it died under."""
    taken = running(store, now=now, **options)
    store.bury(taken, reason, error(taken), now=now)
    return taken


def finished(store: BaseStore, *, now: datetime | None = T0, **options: Any) -> Claim:
    """Finish a new job with the value 42; return its claim."""
    taken = running(store, now=now, **options)
    assert store.ack([Ack(claim=taken, value="42")], now=now) == {taken.hold}
    return taken


def held(store: BaseStore, *, now: datetime | None = T0, **options: Any) -> Claim:
    """Hold a new job for ten seconds as one of an unknown task; return its claim."""
    taken = running(store, now=now, **options)
    store.hold(taken, HeldReason.UNKNOWN, 10, error(taken, outcome="unknown_task"), now=now)
    return taken


def retried(store: BaseStore, *, now: datetime | None = T0, **options: Any) -> Claim:
    """Schedule a new job again, in ten seconds; return its claim."""
    taken = running(store, now=now, **options)
    store.retry(taken, 10, error(taken), now=now)
    return taken


def released(store: BaseStore, *, now: datetime | None = T0, **options: Any) -> Claim:
    """Give a new job back; return the claim that gave it back."""
    taken = running(store, now=now, **options)
    store.release(taken, now=now)
    return taken


def retaken(store: BaseStore, *, now: datetime | None = T0, **options: Any) -> Claim:
    """Return the lapsed claim of a job that runs again under a newer token of the same worker."""
    stale = running(store, now=now, lease_seconds=1, **options)
    assert now is not None
    later = now + timedelta(seconds=2)
    assert [each.outcome for each in store.reclaim(now=later)] == ["ready"]
    (newer,) = claim(store, now=later, worker_id=stale.worker_id)
    assert newer.id == stale.id
    assert newer.token != stale.token
    return stale


def cancelled(store: BaseStore, *, now: datetime | None = T0, **options: Any) -> Claim:
    """Cancel a job that was given back; return the claim that gave it back."""
    taken = released(store, now=now, **options)
    store.cancel(taken.id, now=now)
    return taken


NOT_HELD: Final[dict[str, Callable[[BaseStore], Claim]]] = {
    "scheduled": retried,
    "ready": released,
    "held": held,
    "running under a newer token of the same worker": retaken,
    "dead": dead,
    "finished": finished,
    "cancelled": cancelled,
}
"""Where a job may be when an old claim of it speaks up; each returns that claim."""


def schedule(store: BaseStore, name: str = "nightly", **columns: Any) -> Schedule:
    """Write a schedule, hourly in UTC and due at T0 unless *columns* say otherwise; return it."""
    given = {"task": TASK, "expression": "0 * * * *", "next_fire_at": T0, **columns}
    assert store.add_schedule(Schedule(name=name, **given), now=T0)
    return store.schedules().get(pk=name)
