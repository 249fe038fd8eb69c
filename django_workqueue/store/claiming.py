"""claim: the way of a job to a worker."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from .. import clock
from ..models import Queue
from ..models.fields import from_database
from ..states import Lane
from .core import compiled, statement
from .keeping import Keeping
from .looking import Looking
from .records import CLAIM_COLUMNS, Claim

MOMENT_COLUMNS: Final = frozenset(
    {"run_after", "claimed_at", "lease_expires_at", "enqueued_at", "unknown_since"}
    | {"scheduled_for"}
)
FLAG_COLUMNS: Final = frozenset({"suspect", "atomic"})

Part = tuple[str, list[Any]]
"""A part of a statement, and its parameters."""


class Claiming(Looking, Keeping):
    """The way of a job to a worker, and its stay there."""

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
        for row in rows:
            values = list(row)
            for place, load in self._loads:
                if (value := values[place]) is not None:
                    values[place] = load(value)
            yield values

    @functools.cached_property
    def _loads(self) -> list[tuple[int, Callable[[Any], Any]]]:
        """What makes a value of a driver one of a Claim, by the place of its column."""
        loads: dict[str, Callable[[Any], Any]] = dict.fromkeys(MOMENT_COLUMNS, from_database)
        loads |= dict.fromkeys(FLAG_COLUMNS, bool)
        loads["id"] = self.load_uuid
        return [(CLAIM_COLUMNS.index(name), load) for name, load in loads.items()]
