"""How MariaDB and MySQL find and take what is ready: without UPDATE … RETURNING, by primary key."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from django.db import DatabaseError

from ..models import Queue
from ..states import Lane
from .base import BaseStore
from .claiming import Part
from .core import compiled
from .looking import seconds_between
from .records import CLAIM_COLUMNS

NAMES_KEPT: Final = 50
"""Names of queues that are asked behind though they were not seen last."""
NAMES_ASKED: Final = 1_000
"""In one statement, which may be no longer than a packet."""
LONG: Final = ("payload", "worker_ids", "headers", "errors")
"""Texts of any length: not in the array of a row, which may be no longer than a packet."""
LONG_PLACES: Final = tuple(CLAIM_COLUMNS.index(name) for name in LONG)


class MySQLClaiming(BaseStore):
    """The claim, and the look that comes before it."""

    def __init__(self, alias: str) -> None:
        super().__init__(alias)
        self.names_seen: dict[Lane, frozenset[str]] = {}

    def look(self, lane: Lane, *, now: datetime | None = None) -> tuple[list[str], float | None]:
        names, seconds = self._ready_and_due(lane, now)
        if seconds == 0.0:
            self.promote(now=now)
            names, seconds = self._ready_and_due(lane, now)
        return names, seconds

    def ready_queues(self, lane: Lane, *, now: datetime | None = None) -> list[str]:
        return self._ready_and_due(lane, now)[0]

    def _ready_and_due(self, lane: Lane, now: datetime | None) -> tuple[list[str], float | None]:
        """Return ready_queues and seconds_to_due, in one statement where no name is new.

        It asks for the first name, and for the next behind each that was seen before. What it finds
        besides those is asked behind in its turn: where it finds nothing else, there is no other.
        """
        asked: set[str | None] = set()
        ready: set[str] = set()
        new = {None, *self.names_seen.get(lane, ())}
        while new:
            some = list(new)[:NAMES_ASKED]
            asked |= {*some}
            found, paused, seconds = self._names_behind(lane, some, now)
            ready |= found
            new = (new | found) - asked
        names = {name for name in asked if name is not None}
        self.names_seen[lane] = frozenset(names if len(names) <= NAMES_KEPT else ready)
        return sorted(ready - paused), seconds

    def _names_behind(
        self, lane: Lane, names: Sequence[str | None], now: datetime | None
    ) -> tuple[set[str], set[str], float | None]:
        """Return the first ready queue behind each of *names*, the paused, and seconds_to_due."""
        # A part for each name: where the name is no constant, as in a recursion, every row of a
        # queue is read to come to the next (seen: 1,571 reads for one queue of 1,500 rows).
        q, live, name = self.quote, self.live_table, self.quote("queue_name")
        now_sql, now_params = self.now_sql(now)
        ready = (
            f"(SELECT 'ready', {name}, NULL, NULL FROM {live} FORCE INDEX (workqueue_live_ready) "
            f"WHERE {q('state')} = 'ready' AND {q('lane')} = %s"
        )
        first = f"ORDER BY {name} LIMIT 1)"
        parts = [
            f"{ready} {first}" if each is None else f"{ready} AND {name} > %s {first}"
            for each in names
        ]
        params = [each for name in names for each in (lane.value, name) if each is not None]
        parts.append(
            f"(SELECT 'paused', {q('name')}, NULL, NULL FROM {q(Queue._meta.db_table)} "
            f"WHERE {q('paused_until')} > {now_sql})"
        )
        parts.append(
            f"(SELECT 'due', NULL, {q('run_after')}, {now_sql} FROM {live} "
            f"WHERE {q('state')} = 'scheduled' ORDER BY {q('run_after')} LIMIT 1)"
        )
        with self.connection.cursor() as cursor:
            cursor.execute(" UNION ALL ".join(parts), [*params, *now_params, *now_params])
            rows = cursor.fetchall()
        found = {kind: {row[1] for row in rows if row[0] == kind} for kind in ("ready", "paused")}
        due = next((row[2:] for row in rows if row[0] == "due"), None)
        return found["ready"], found["paused"], seconds_between(due)

    def claim_unpaused(self, claimable: Part, unpaused: Part, taken: Part, limit: int) -> list[Any]:
        # The obvious SELECT … LIMIT n FOR UPDATE SKIP LOCKED locks what it reads in the index on
        # the way, gaps between the entries too under REPEATABLE READ, and deadlocks with inserts
        # and with whoever locks the row first. So candidates are read without a lock, walking
        # workqueue_live_ready, and taken by primary key.
        ids: list[Any] = []
        count = 0
        while True:
            asked = len(ids) + limit - count
            found = self._candidates(claimable, unpaused, asked)
            candidates = [each for each in found if each not in ids][: limit - count]
            ids += candidates
            try:
                count += self._take_ready(candidates, claimable, taken) if candidates else 0
            except DatabaseError as error:
                if not count or self.connection.in_atomic_block or not self.is_conflict(error):
                    raise
                # What was taken is committed: begun once more, the claim would not return it.
                break
            # Another claim may have some of them. It is no answer that there is nothing: look on.
            if count == limit or len(found) < asked:
                break
        return self._read_taken(ids, token=taken[1][0]) if count else []

    def _candidates(self, claimable: Part, unpaused: Part, limit: int) -> list[Any]:
        q = self.quote
        with self.connection.cursor() as cursor:
            cursor.execute(
                f"SELECT {q('id')} FROM {self.live_table} FORCE INDEX (workqueue_live_ready) "
                f"WHERE {claimable[0]} AND {unpaused[0]} "
                f"ORDER BY {q('rank')}, {q('run_after')}, {q('id')} LIMIT %s",
                [*claimable[1], *unpaused[1], limit],
            )
            return [row[0] for row in cursor.fetchall()]

    def _take_ready(self, ids: Sequence[Any], claimable: Part, taken: Part) -> int:
        """Change those of *ids* that are claimable and that nobody has locked; return how many."""
        # One statement, which locks by primary key and then changes what it has locked. The limit
        # is for the planner, which would merge a subquery without one, and then skip nothing.
        # STRAIGHT_JOIN: the chosen first, or every row is locked to be looked up among them.
        # The queue is not looked at again: that would wait for a pause that is not committed.
        q = self.quote
        with self.connection.cursor() as cursor:
            cursor.execute(
                f"UPDATE (SELECT {q('id')} FROM {self.live_table} FORCE INDEX (PRIMARY) "
                f"WHERE {q('id')} IN ({places(ids)}) AND {claimable[0]} "
                f"ORDER BY {q('id')} LIMIT %s FOR UPDATE SKIP LOCKED) AS chosen "
                f"STRAIGHT_JOIN {self.live_table} AS job FORCE INDEX (PRIMARY) "
                f"ON job.{q('id')} = chosen.{q('id')} SET {taken[0]} "
                f"WHERE job.{q('state')} = 'ready'",
                [*ids, *claimable[1], len(ids), *taken[1]],
            )
            return int(cursor.rowcount)

    def _read_taken(self, ids: Sequence[Any], *, token: Any) -> list[Any]:
        """Return the CLAIM_COLUMNS of those of *ids* that are held under *token*."""
        q = self.quote
        with self.connection.cursor() as cursor:
            cursor.execute(
                f"SELECT {self._read_sql()} FROM {self.live_table} FORCE INDEX (PRIMARY) "
                f"WHERE {q('id')} IN ({places(ids)}) AND {q('state')} = 'running' "
                f"AND {q('token')} = %s",
                [*ids, token],
            )
            found = cursor.fetchall()
        # One text again: json.loads costs as much to begin as a row does.
        rows: list[Any] = json.loads(f"[{','.join([row[0] for row in found])}]")
        for row, (_, *texts) in zip(rows, found, strict=True):
            for place, text in zip(LONG_PLACES, texts, strict=True):
                row[place] = text
        return rows

    @compiled
    def _read_sql(self) -> str:
        # One text for the many columns that are short: a driver written in Python takes half a
        # microsecond for each that it reads.
        short = ["NULL" if name in LONG else self.quote(name) for name in CLAIM_COLUMNS]
        return ", ".join([f"JSON_ARRAY({', '.join(short)})", *map(self.quote, LONG)])


def places(values: Sequence[Any]) -> str:
    """Return as many placeholders as there are *values*."""
    return ", ".join(["%s"] * len(values))
