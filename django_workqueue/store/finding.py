"""What the pull API reads of one queue. Nothing here writes.

A read decides only whether a write is worth its while: the write restates its condition (I9).
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from ..models import DeadJob, LiveJob, Queue
from ..states import Lane, State
from .core import StoreCore
from .operating import FOREVER
from .records import Claim

COUNT_MAX: Final = 10_000
"""Where counting a state of a queue ends."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a claim pass of one queue would find. *scheduled* speaks of every queue."""

    scheduled: bool
    lapsed: bool
    expired: bool
    ready: bool
    paused: bool


def waiting(
    store: StoreCore, lane: Lane, queue_name: str, *, now: datetime | None = None
) -> Waiting:
    """Return in one statement what is worth doing, so that an idle poll takes no write lock.

    Each part stops at its first row, of workqueue_live_scheduled, _running, _expires and _ready.
    """
    q, live = store.quote, store.live_table
    now_sql, now_params = store.now_sql(now)
    own, own_params = f"{q('lane')} = %s AND {q('queue_name')} = %s", [lane.value, queue_name]
    lapsed = f"{q('state')} = 'running' AND {q('lease_expires_at')} <= {now_sql}"
    conditions: list[tuple[str, list[Any]]] = [
        (f"{q('state')} = 'scheduled' AND {q('run_after')} <= {now_sql}", now_params),
        (f"{lapsed} AND {own}", now_params + own_params),
        (
            f"{q('expires_at')} <= {now_sql} AND {own} AND ({q('state')} <> 'running' OR {lapsed})",
            now_params + own_params + now_params,
        ),
        (f"{q('state')} = 'ready' AND {own}", own_params),
    ]
    parts = [f"EXISTS (SELECT 1 FROM {live} WHERE {sql})" for sql, _ in conditions]
    paused = (
        f"EXISTS (SELECT 1 FROM {q(Queue._meta.db_table)} "
        f"WHERE {q('name')} = %s AND {q('paused_until')} > {now_sql})"
    )
    params = [each for _, params in conditions for each in params] + [queue_name, *now_params]
    with store.connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join([*parts, paused])}", params)
        return Waiting(*map(bool, cursor.fetchone()))


def next_due(store: StoreCore, lane: Lane, queue_name: str) -> datetime | None:
    """Return when a claim of this queue next has a job to take, by the database's clock.

    A moment that is past for a job that is ready now; the end of its lease for one that is
    claimed; no earlier than the end of a pause. None: no job, or paused without end.
    """
    rows = store.live().filter(lane=lane, queue_name=queue_name)
    ready = rows.filter(state=State.READY).values_list("run_after")
    scheduled = rows.filter(state=State.SCHEDULED).values_list("run_after")
    running = rows.filter(state=State.RUNNING).values_list("lease_expires_at")
    firsts = [
        ready.order_by("rank", "run_after", "id").first(),
        scheduled.order_by("run_after").first(),
        running.order_by("lease_expires_at").first(),
    ]
    moments = [row[0] for row in firsts if row is not None and row[0] is not None]
    pause = paused_until(store, queue_name)
    if not moments or (pause is not None and pause >= FOREVER):
        return None
    return min(moments) if pause is None else max(min(moments), pause)


def counts(store: StoreCore, lane: Lane, queue_name: str) -> dict[str, int]:
    """Return the number of live jobs of the queue by state, and of dead ones under ``dead``.

    One statement, one moment. Each count ends at COUNT_MAX. Ready and dead jobs are found by
    queue; the others by state, past those of other queues.
    """
    q = store.quote
    own = f"{q('lane')} = %s AND {q('queue_name')} = %s"
    live = f"{q(LiveJob._meta.db_table)} WHERE {own} AND {q('state')}"
    # The states are literals: a plan without them could not use the partial indexes.
    sources = {state.value: f"{live} = '{state.value}'" for state in State}
    sources["dead"] = f"{q(DeadJob._meta.db_table)} WHERE {own}"
    columns = ", ".join(
        f"(SELECT COUNT(*) FROM (SELECT 1 AS one FROM {source} LIMIT {COUNT_MAX:d}) AS counted)"
        for source in sources.values()
    )
    with store.connection.cursor() as cursor:
        cursor.execute(f"SELECT {columns}", [lane.value, queue_name] * len(sources))
        return dict(zip(sources, map(int, cursor.fetchone()), strict=True))


def holders(store: StoreCore, hashes: Collection[str]) -> dict[str, uuid.UUID]:
    """Return the live jobs that hold the unique *hashes*, by hash."""
    rows = store.live().filter(unique_hash__in=list(hashes))
    return {str(taken): pk for taken, pk in rows.values_list("unique_hash", "pk")}


def lease_end(store: StoreCore, claim: Claim) -> datetime | None:
    """Return when the lease of *claim* ends; None: it no longer holds its job."""
    rows = store.live().filter(pk=claim.id, token=claim.token, state=State.RUNNING)
    return rows.values_list("lease_expires_at", flat=True).first()


def paused_until(store: StoreCore, queue_name: str) -> datetime | None:
    """Return the end of the queue's pause, in the year 9999 for one without; None: open."""
    rows = Queue._base_manager.using(store.alias).filter(
        name=queue_name, paused_until__gt=store.moment(None)
    )
    return rows.values_list("paused_until", flat=True).first()


def front_tasks(store: StoreCore, lane: Lane, queue_name: str, *, limit: int) -> set[str]:
    """Return the tasks of the first *limit* ready jobs of a queue, in the order of claiming.

    Walks workqueue_live_ready, as a claim does, and reads so many rows however long the queue is.
    """
    q = store.quote
    sql = (
        f"SELECT DISTINCT {q('task')} FROM (SELECT {q('task')} "
        f"FROM {q(LiveJob._meta.db_table)} WHERE {q('lane')} = %s AND {q('queue_name')} = %s "
        f"AND {q('state')} = 'ready' "
        f"ORDER BY {q('rank')}, {q('run_after')}, {q('id')} LIMIT {limit:d}) front"
    )
    with store.connection.cursor() as cursor:
        cursor.execute(sql, [lane.value, queue_name])
        return {row[0] for row in cursor.fetchall()}
