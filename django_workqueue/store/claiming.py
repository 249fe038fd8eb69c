"""promote, unhold, claim, extend: what happens to a job before it is settled."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from django.db.models import Q
from django.db.models.functions import Coalesce

from .. import clock
from ..models import LiveJob, Queue
from ..models.fields import EncodedJSON, from_database
from ..states import HeldReason, Lane, State
from .columns import Columns
from .core import compiled, statement
from .records import CLAIM_COLUMNS, Claim, Hold

BATCH: Final = 500
PAIRS_PER_STATEMENT: Final = 200

MOMENT_COLUMNS: Final = frozenset(
    {"run_after", "claimed_at", "lease_expires_at", "enqueued_at", "unknown_since"}
    | {"scheduled_for"}
)
FLAG_COLUMNS: Final = frozenset({"suspect", "atomic"})

Part = tuple[str, list[Any]]
"""A part of a statement, and its parameters."""


class Claiming(Columns):
    """The way of a job to a worker, and its stay there."""

    # What may be taken

    def seconds_to_due(self, *, now: datetime | None = None) -> float | None:
        """Return the seconds until the next scheduled job is due, 0.0 if one is; None: no job.

        Reads the first entry of workqueue_live_scheduled.
        """
        # Not the ORM: it would order by what it selects, which on PostgreSQL is not the column.
        now_sql, now_params = self.now_sql(now)
        due = self.quote("run_after")
        sql = (
            f"SELECT {self.read_moment_sql(due)}, {self.read_moment_sql(now_sql)} "
            f"FROM {self.live_table} WHERE {self.quote('state')} = 'scheduled' "
            f"ORDER BY {due} LIMIT 1"
        )
        with self.connection.cursor() as cursor:
            cursor.execute(sql, now_params)
            return seconds_between(cursor.fetchone())

    def probe(self, lane: Lane) -> tuple[list[str], float | None]:
        """Return ``ready_queues`` and ``seconds_to_due``: all that an idle worker asks."""
        due = self.seconds_to_due()
        return self.ready_queues(lane), due

    def promote(self, *, limit: int = BATCH, now: datetime | None = None) -> int:
        """Make scheduled jobs that are due ready, the earliest first; return how many.

        Walks workqueue_live_scheduled. Part of every claim pass: nothing is late by a sweep.
        """
        due = Q(state=State.SCHEDULED, run_after__lte=self.moment(now))
        return self._make_ready(due, limit)

    def unhold(
        self, reason: HeldReason, tasks: Collection[str], *, now: datetime | None = None
    ) -> int:
        """Make jobs of *tasks*, held for *reason* until now, ready; return how many.

        Walks workqueue_live_held. A job of a task that nobody here knows stays held, so that no
        claim has to step over it (G14).
        """
        due = Q(state=State.HELD, held_reason=reason, run_after__lte=self.moment(now))
        return self._make_ready(due & Q(task__in=list(tasks)), BATCH)

    @statement
    def hold_ready(
        self,
        reason: HeldReason,
        tasks: Collection[str],
        delay_seconds: float,
        *,
        now: datetime | None = None,
    ) -> int:
        """Hold ready jobs of *tasks* that nobody here knows; return how many, at most a batch.

        ``unknown_since`` keeps the moment of the first time.
        """
        ready = Q(state=State.READY, task__in=list(tasks))
        ids = sorted(self.live().filter(ready).values_list("pk", flat=True)[:BATCH])
        if not ids:
            return 0
        with self.together():
            self.lock(LiveJob, ids)
            rows = self.live().filter(ready, pk__in=ids)
            return rows.update(
                state=State.HELD,
                held_reason=reason,
                run_after=self.moment(now, delay_seconds),
                unknown_since=Coalesce("unknown_since", self.moment(now)),
            )

    @statement
    def _make_ready(self, due: Q, limit: int) -> int:
        # Not one statement: MySQL cannot update a table it selects from, and a LIMIT in a
        # subquery may be evaluated again for each row on PostgreSQL. The update restates *due*.
        rows = self.live().filter(due).order_by("run_after")
        ids = sorted(rows.values_list("pk", flat=True)[:limit])
        if not ids:
            return 0
        with self.together():
            # Every claim pass comes here, and must not wait for one that vanished in between.
            free = self.lock(LiveJob, ids, skip_locked=True)
            return self.live().filter(due, pk__in=free).update(state=State.READY, held_reason="")

    def ready_queues(
        self, lane: Lane, *, limit: int = 100, now: datetime | None = None
    ) -> list[str]:
        """Return the names of queues that have a ready job and are not paused, in order.

        Reads one entry of workqueue_live_ready for each queue, however many rows it has: a
        DISTINCT would read them all.
        """
        sql, params = self.ready_queues_sql(lane, limit, now)
        with self.connection.cursor() as cursor:
            cursor.execute(sql, params)
            return sorted(row[0] for row in cursor.fetchall())

    def ready_queues_sql(
        self, lane: Lane, limit: int, now: datetime | None
    ) -> tuple[str, list[Any]]:
        """Return the statement of ``ready_queues``."""
        live, name = self.live_table, self.quote("queue_name")
        now_sql, now_params = self.now_sql(now)
        first = (
            f"SELECT MIN({name}) FROM {live} "
            f"WHERE {self.quote('state')} = 'ready' AND {self.quote('lane')} = %s"
        )
        sql = (
            f"WITH RECURSIVE names (name) AS ({first} UNION ALL "
            f"SELECT ({first} AND {name} > names.name) FROM names WHERE names.name IS NOT NULL) "
            f"SELECT names.name FROM names WHERE names.name IS NOT NULL AND names.name NOT IN "
            f"(SELECT {self.quote('name')} FROM {self.quote(Queue._meta.db_table)} "
            f"WHERE {self.quote('paused_until')} > {now_sql}) LIMIT {limit:d}"
        )
        return sql, [lane.value, lane.value, *now_params]

    # Taking it

    @statement
    def claim(
        self,
        lane: Lane,
        queue_name: str,
        *,
        worker_id: str,
        token: uuid.UUID,
        limit: int,
        lease_seconds: float,
        exclude_tasks: Collection[str] = (),
        kind: str | None = None,
        now: datetime | None = None,
    ) -> list[Claim]:
        """Take up to *limit* ready jobs of one queue under a lease; return them in claim order.

        Each is charged an attempt, its fence rises, and *token*, made before the statement, is
        the right to settle it. Takes nothing of a paused queue. Commits.
        """
        if limit < 1:
            return []
        rows = self.claim_unpaused(
            self._claimable(lane, queue_name, exclude_tasks, kind, now),
            self._unpaused(queue_name, now),
            self._taken(worker_id, token, lease_seconds, now),
            limit,
        )
        known = (token, worker_id, lane.value, queue_name, clock.monotonic())
        claims = [Claim._make((*values, *known)) for values in self._loaded(rows)]
        # RETURNING has no order. Ids by their numbers: they compare in C.
        return sorted(claims, key=lambda claim: (claim.rank, claim.run_after, claim.id.int))

    def claim_unpaused(
        self, claimable: Part, unpaused: Part, taken: Part, limit: int
    ) -> list[tuple[Any, ...]]:
        """Claim rows that are *claimable*, of a queue that is *unpaused*."""
        where = f"{claimable[0]} AND {unpaused[0]}"
        return self.claim_rows(where, [*claimable[1], *unpaused[1]], *taken, limit)

    def claim_rows(
        self,
        where: str,
        where_params: Sequence[Any],
        changes: str,
        changes_params: Sequence[Any],
        limit: int,
    ) -> list[tuple[Any, ...]]:
        """Change the first *limit* rows of the claim's order; return their CLAIM_COLUMNS."""
        raise NotImplementedError  # pragma: no cover

    def _claimable(
        self,
        lane: Lane,
        queue_name: str,
        exclude_tasks: Collection[str],
        kind: str | None,
        now: datetime | None,
    ) -> Part:
        """Return the condition under which a row of an unpaused queue may be claimed."""
        q = self.quote
        now_sql, now_params = self.now_sql(now)
        # The state is a literal: a plan without it could not use the partial index.
        where = (
            f"{q('lane')} = %s AND {q('queue_name')} = %s AND {q('state')} = 'ready' "
            f"AND {q('attempt')} < {q('max_attempts')} "
            f"AND ({q('expires_at')} IS NULL OR {q('expires_at')} > {now_sql})"
        )
        params = [lane.value, queue_name, *now_params]
        if exclude_tasks:
            where += f" AND {q('task')} NOT IN ({', '.join(['%s'] * len(exclude_tasks))})"
            params += exclude_tasks
        if kind is not None:
            where += f" AND {q('kind')} = %s"
            params.append(kind)
        return where, params

    def _unpaused(self, queue_name: str, now: datetime | None) -> Part:
        """Return the condition that the queue is not paused."""
        q = self.quote
        now_sql, now_params = self.now_sql(now)
        sql = (
            f"NOT EXISTS (SELECT 1 FROM {q(Queue._meta.db_table)} "
            f"WHERE {q('name')} = %s AND {q('paused_until')} > {now_sql})"
        )
        return sql, [queue_name, *now_params]

    def _taken(
        self, worker_id: str, token: uuid.UUID, lease_seconds: float, now: datetime | None
    ) -> Part:
        """Return what a claim changes; the token is the first parameter."""
        q = self.quote
        now_sql, now_params = self.now_sql(now)
        end_sql, end_params = self.now_sql(now, lease_seconds)
        changes = (
            f"{q('state')} = 'running', {q('token')} = %s, {q('worker_id')} = %s, "
            f"{q('claimed_at')} = {now_sql}, {q('started_at')} = NULL, "
            f"{q('lease_expires_at')} = {end_sql}, "
            f"{q('attempt')} = {q('attempt')} + 1, {q('fence')} = {q('fence')} + 1, "
            # A key that constrains only while queued is given up here and never taken again.
            f"{q('unique_hash')} = CASE WHEN {q('unique_while')} = 'queued' THEN NULL "
            f"ELSE {q('unique_hash')} END"
        )
        return changes, [self.dump_uuid(token), worker_id, *now_params, *end_params]

    @compiled
    def claim_columns_sql(self, table: str = "") -> str:
        """Return CLAIM_COLUMNS as SQL to be selected or returned."""
        columns = []
        for name in CLAIM_COLUMNS:
            column = f"{table}{self.quote(name)}"
            columns.append(self.read_moment_sql(column) if name in MOMENT_COLUMNS else column)
        return ", ".join(columns)

    def _loaded(self, rows: Iterable[Sequence[Any]]) -> Iterator[list[Any]]:
        """Yield rows of CLAIM_COLUMNS with values of a Claim's types."""
        loads = self.claim_loads()
        for row in rows:
            values = list(row)
            for place, load in loads:
                if (value := values[place]) is not None:
                    values[place] = load(value)
            yield values

    def claim_loads(self) -> list[tuple[int, Callable[[Any], Any]]]:
        """Return what makes a value of a driver one of a Claim, by the place of its column."""
        loads: dict[str, Callable[[Any], Any]] = dict.fromkeys(MOMENT_COLUMNS, from_database)
        loads |= dict.fromkeys(FLAG_COLUMNS, bool)
        loads["id"] = self.load_uuid
        return [(CLAIM_COLUMNS.index(name), load) for name, load in loads.items()]

    # Keeping it

    def extend(
        self, claims: Iterable[Claim], lease_seconds: float, *, now: datetime | None = None
    ) -> dict[Hold, bool]:
        """Move the end of the leases of *claims* to *lease_seconds* from now.

        Returns for each claim that still holds its job whether a cancel was asked; one that is
        missing lost it. A holder that is late, but whose job nobody took, still holds it.
        Touches no indexed column but the lease's.
        """
        return self._extend([claim.hold for claim in claims], lease_seconds, now)

    def extend_all(
        self, worker_id: str, lease_seconds: float, *, now: datetime | None = None
    ) -> dict[Hold, bool]:
        """Extend all leases of a worker whose own threads do not get to.

        Returns for each of its jobs whether a cancel was asked, as ``extend`` does.
        """
        rows = self.live().filter(state=State.RUNNING, worker_id=worker_id)
        asked = {
            (job_id, token): at is not None
            for job_id, token, at in rows.values_list("pk", "token", "cancel_asked_at")
            if token is not None
        }
        answers = self._extend(asked, lease_seconds, now)
        return {hold: asked[hold] or answer for hold, answer in answers.items()}

    def _extend(
        self, holds: Iterable[Hold], lease_seconds: float, now: datetime | None
    ) -> dict[Hold, bool]:
        end_sql, end_params = self.now_sql(now, lease_seconds)
        changes = f"{self.quote('lease_expires_at')} = {end_sql}"
        answers: dict[Hold, bool] = {}
        for batch in batches(holds):
            # A row that is being settled now is passed over; it is extended the next time. Whoever
            # has it locked may be a process that stands still, and the others must not wait for it.
            for row in self.update_held(
                changes, end_params, batch, ("cancel_asked_at",), skip_locked=True
            ):
                answers[self.load_uuid(row[0]), self.load_uuid(row[1])] = row[2] is not None
            answers |= dict.fromkeys(self.still_held(set(batch) - answers.keys()), False)
        return answers

    def still_held(self, holds: Collection[Hold]) -> set[Hold]:
        """Return those of *holds* that are running under their token, as far as is committed."""
        rows = self.live().filter(state=State.RUNNING, pk__in=[hold[0] for hold in holds])
        return set(holds) & set(rows.values_list("pk", "token")) if holds else set()

    def mark_started(self, claims: Iterable[Claim], *, now: datetime | None = None) -> set[Hold]:
        """Write that the bodies of *claims* are about to run; return the claims that still hold.

        Asked for where a lapsed job that never started must be told from one that did.
        """
        now_sql, now_params = self.now_sql(now)
        changes = f"{self.quote('started_at')} = {now_sql}"
        started: set[Hold] = set()
        for holds in batches(claim.hold for claim in claims):
            for row in self.update_held(changes, now_params, holds):
                started.add((self.load_uuid(row[0]), self.load_uuid(row[1])))
        return started

    @statement
    def note_progress(self, claim: Claim, progress: str) -> bool:
        """Show how far a running job is; *progress* is JSON text. False if the claim lost it."""
        rows = self.live().filter(pk=claim.id, token=claim.token, state=State.RUNNING)
        with self.together():
            self.lock(LiveJob, [claim.id])
            return bool(rows.update(progress=EncodedJSON(progress)))

    @statement
    def update_held(
        self,
        changes: str,
        params: Sequence[Any],
        holds: Sequence[Hold],
        returning: Sequence[str] = (),
        *,
        skip_locked: bool = False,
    ) -> list[tuple[Any, ...]]:
        """Change running rows that *holds* still hold; return their id, token and *returning*.

        With *skip_locked*, rows that another transaction has locked are passed over.
        """
        where, where_params = self.held_sql(holds, skip_locked=skip_locked)
        columns = ", ".join(map(self.quote, ("id", "token", *returning)))
        with self.connection.cursor() as cursor:
            cursor.execute(
                f"UPDATE {self.live_table} SET {changes} WHERE {where} RETURNING {columns}",
                [*params, *where_params],
            )
            return list(cursor.fetchall())

    def held_sql(
        self, holds: Sequence[Hold], *, skip_locked: bool = False
    ) -> tuple[str, list[Any]]:
        """Return the condition under which a row is running under one of *holds*.

        The ids once more by themselves, since no planner looks for a primary key in pairs.
        *skip_locked* is for databases that lock rows.
        """
        ids, pairs = ", ".join(["%s"] * len(holds)), ", ".join(["(%s, %s)"] * len(holds))
        sql = (
            f"{self.quote('id')} IN ({ids}) AND {self.quote('state')} = 'running' "
            f"AND ({self.quote('id')}, {self.quote('token')}) IN (VALUES {pairs})"
        )
        params = [self.dump_uuid(job_id) for job_id, _ in holds]
        return sql, params + [self.dump_uuid(part) for hold in holds for part in hold]


def seconds_between(row: Sequence[Any] | None) -> float | None:
    """Return the seconds from the second to the first moment of *row*; None: there is none."""
    if row is None or row[0] is None:
        return None
    due, current = map(from_database, row)
    assert due is not None
    assert current is not None
    return max((due - current).total_seconds(), 0.0)


def batches(holds: Iterable[Hold]) -> Iterable[Sequence[Hold]]:
    """Yield *holds* by id, so that extender and settler lock in one order."""
    ordered = sorted(holds)
    for start in range(0, len(ordered), PAIRS_PER_STATEMENT):
        yield ordered[start : start + PAIRS_PER_STATEMENT]
