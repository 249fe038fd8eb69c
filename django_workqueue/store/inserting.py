"""insert: a new job's row, in the caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from ..models.fields import from_database
from ..states import HeldReason, State
from .columns import Columns, bounded, most_bytes
from .core import compiled, statement, transition
from .newrows import CONSTANTS, FACTS, PLAIN, hash_of, literal, parted, state_of, steady
from .records import Inserted, NewJob

MOST_KEPT: Final = 256
"""Insertions of a store whose making is not repeated; a process has few tasks."""


class Insertion(NamedTuple):
    """An INSERT, without and with RETURNING, and its parameters.

    *keyed*: a job may have to give way to one that has its unique key.
    """

    sql: str
    returned: str
    text: str
    params: dict[str, Any]
    keyed: bool


class Inserting(Columns):
    """The start of a job's life."""

    def __init__(self, alias: str) -> None:
        super().__init__(alias)
        # By what is the same in most calls of a task, the clock, and whether workers are woken.
        self._steady: dict[tuple[Any, str, bool], Insertion] = {}

    def insert(
        self, jobs: Sequence[NewJob], *, wake: bool = False, now: datetime | None = None
    ) -> list[Inserted]:
        """Write *jobs* in one statement for each 2,000; return those written, in their order.

        With *wake*, for callers in autocommit, the statement also wakes waiting workers.
        A job whose unique key is held by a live job is left out, without an error, so that the
        caller's transaction goes on. Of several in *jobs* with one key, the first is written.
        Commits only where the caller is in autocommit, and then all of them together.
        """
        if not jobs:
            return []
        if len(jobs) == 1:
            return self._insert_batch(jobs, now, wake=wake)
        if all(job.unique_key is None for job in jobs):
            return self._insert_parts(jobs, now, wake=wake)
        # In the order of the unique index: two transactions that insert A, B and B, A would
        # wait for each other, and on MariaDB for the gaps between them too (O11).
        in_order = sorted(jobs, key=lambda job: hash_of(job) or "")
        written = {row.id: row for row in self._insert_parts(in_order, now, wake=wake)}
        return [written[job.id] for job in jobs if job.id in written]

    def _insert_parts(
        self, jobs: Sequence[NewJob], now: datetime | None, *, wake: bool
    ) -> list[Inserted]:
        parts = list(bounded(jobs, [most_bytes(job.payload, job.headers) for job in jobs]))
        if len(parts) == 1:
            return self._insert_batch(jobs, now, wake=wake)
        return self._insert_batches(parts, now, wake=wake)

    @transition
    def _insert_batches(
        self, parts: Sequence[Sequence[NewJob]], now: datetime | None, *, wake: bool
    ) -> list[Inserted]:
        return [row for part in parts for row in self._insert_batch(part, now, wake=wake)]

    @statement
    def _insert_batch(
        self, jobs: Sequence[NewJob], now: datetime | None, *, wake: bool
    ) -> list[Inserted]:
        """Write *jobs*; return those written, in any order where one has a unique key."""
        insertion, params = self._insertion(jobs, now, wake=wake)
        found = self.insert_rows(insertion, params, jobs)
        if insertion.keyed:
            # MariaDB returns, for a key that is taken, the row of its holder.
            own = {job.id for job in jobs}
            written = [Inserted(self.load_uuid(row[1]), moment_of(row)) for row in found]
            return [row for row in written if row.id in own]
        # Without a conflict to give way to, all are written or none, at one moment.
        enqueued_at = moment_of(found[0])
        return [Inserted(job.id, enqueued_at) for job in jobs]

    def _insertion(
        self, jobs: Sequence[NewJob], now: datetime | None, *, wake: bool
    ) -> tuple[Insertion, dict[str, Any]]:
        """Return how to write *jobs*, and with what parameters."""
        now_sql, now_params = self.named_now_sql(now)
        facts = steady(jobs[0]) if len(jobs) == 1 else None
        if facts is None:
            made = self._made(jobs, now_sql, now_params, wake=wake)
            return made, made.params
        own = {**now_params, "id": jobs[0].id.hex, "payload": jobs[0].payload}
        key = (facts, now_sql, wake)
        kept = self._steady.get(key)
        if kept is None:
            made = self._made(jobs, now_sql, now_params, wake=wake)
            shared = {name: value for name, value in made.params.items() if name not in own}
            kept = made._replace(params=shared)
            if len(self._steady) >= MOST_KEPT:
                # What is called often is soon there again; what was called once is not.
                self._steady.clear()
            self._steady[key] = kept
        return kept, kept.params | own

    def _made(
        self, jobs: Sequence[NewJob], now_sql: str, now_params: dict[str, Any], *, wake: bool
    ) -> Insertion:
        differing, shared = parted(list(map(self._row, jobs)))
        params = now_params | self.given_params(differing) if differing else now_params
        params = params | shared
        keyed = "unique_hash" in shared or "unique_hash" in differing
        sql = self._insert_sql(now_sql, tuple(differing), tuple(shared))
        if len(jobs) == 1:
            sql, params = self.with_constants(sql, params)
        returned = self.written_sql(keyed=keyed, wake=wake)
        return Insertion(sql, returned, f"{sql} RETURNING {returned}", params, keyed)

    def with_constants(self, sql: str, params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return *sql* with some of *params* in it, and the others, where that costs less."""
        return sql, params

    def written_sql(self, *, keyed: bool, wake: bool) -> str:
        """Return what an INSERT is to return; with *wake* it wakes waiting workers, if it can."""
        moment = self.read_moment_sql(self.quote("enqueued_at"))
        return f"{moment}, {self.quote('id')}" if keyed else moment

    @compiled
    def _insert_sql(self, now_sql: str, differing: tuple[str, ...], shared: tuple[str, ...]) -> str:
        """Return an INSERT of any number of rows with *differing* columns, and *shared* ones.

        All others are as PLAIN has them.
        """
        q = self.quote
        given = {name: f"given.{q(name)}" for name in differing}
        given |= {name: f"%({name})s" for name in shared}
        due = f"COALESCE({given['due']}, {now_sql})" if "due" in given else now_sql
        values = {
            **{name: given[name] if name in given else literal(PLAIN[name]) for name in FACTS},
            **CONSTANTS,
            "enqueued_at": now_sql,
            "run_after": self.later_sql(due, given["delay"]) if "delay" in given else due,
            "expires_at": self.later_sql(due, given["expires"]) if "expires" in given else "",
        }
        values = {name: value for name, value in values.items() if value}
        listed = ", ".join(values.values())
        # WHERE, without which SQLite would take ON CONFLICT for part of a join.
        rows = f"SELECT {listed} FROM {self.given_sql(differing)} WHERE 1 = 1"
        return (
            f"INSERT INTO {self.live_table} ({', '.join(map(q, values))}) "
            f"{rows if differing else f'VALUES ({listed})'}"
            f"{f' {self.on_conflict_sql()}' if 'unique_hash' in given else ''}"
        )

    def insert_rows(
        self, insertion: Insertion, params: Mapping[str, Any], jobs: Sequence[NewJob]
    ) -> list[tuple[Any, ...]]:
        """Write *jobs*; return what the insertion returns of those that were written."""
        return self.run(insertion.text, params)

    def _row(self, job: NewJob) -> tuple[Any, ...]:
        """Return the values of FACTS and TIMES."""
        key, state = job.unique_key, state_of(job)
        delay = job.delay_seconds if job.run_after is None else 0.0
        return (
            job.id.hex,
            str(job.lane),
            job.queue_name,
            job.task,
            job.kind,
            job.backend,
            job.payload,
            -job.priority,
            str(state),
            HeldReason.KEY.value if state is State.HELD else "",
            job.max_attempts,
            key or "",
            "" if key is None else job.unique_while,
            hash_of(job),
            job.order_key,
            job.seq,
            job.schedule,
            job.scheduled_for and self.dump_moment(job.scheduled_for),
            job.timeout,
            job.result_ttl,
            job.dead_letter,
            job.atomic,
            job.headers,
            job.run_after and self.dump_moment(job.run_after),
            delay,
            None if job.expires_seconds is None else delay + job.expires_seconds,
        )

    def on_conflict_sql(self) -> str:
        unique_hash = self.quote("unique_hash")
        return f"ON CONFLICT ({unique_hash}) WHERE {unique_hash} IS NOT NULL DO NOTHING"


def moment_of(row: tuple[Any, ...]) -> datetime:
    """Return the moment that a row of ``_written_sql`` begins with."""
    moment = from_database(row[0])
    assert moment is not None
    return moment
