"""insert: a new job's row, in the caller's transaction."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from ..models.fields import from_database, to_database
from ..states import HeldReason, State
from .core import StoreCore, statement, transition
from .records import Inserted, NewJob

ROWS_PER_STATEMENT: Final = 500
"""Keeps a statement under SQLite's 32,766 and PostgreSQL's 65,535 parameters."""

MOMENTS: Final = ("enqueued_at", "run_after", "expires_at")
FACTS: Final = (
    "id",
    "lane",
    "queue_name",
    "task",
    "kind",
    "backend",
    "payload",
    "rank",
    "state",
    "held_reason",
    "max_attempts",
    "unique_key",
    "unique_while",
    "unique_hash",
    "order_key",
    "seq",
    "schedule",
    "scheduled_for",
    "timeout",
    "result_ttl",
    "dead_letter",
    "atomic",
    "headers",
)
CONSTANTS: Final = {
    "attempt": "0",
    "fence": "0",
    "worker_ids": "'[]'",
    "errors": "'[]'",
    "deaths": "0",
}


def unique_hash(queue_name: str, task: str, key: str) -> str:
    """Return the 64 hex digits under which *key* constrains, within its queue and task."""
    return hashlib.sha256(json.dumps([queue_name, task, key]).encode()).hexdigest()


def hash_of(job: NewJob) -> str | None:
    """Return the hash of a new job's key; None: it has none."""
    key = job.unique_key
    return None if key is None else unique_hash(job.queue_name, job.task, key)


def is_behind(job: NewJob) -> bool:
    """True for a message whose key has an earlier one that has not left; see store.ordering."""
    return job.seq is not None and job.seq > 1


def state_of(job: NewJob) -> State:
    """Return the state in which a new job begins."""
    if is_behind(job):
        return State.HELD
    # A moment given may be past: the next claim pass promotes what is due.
    later = job.run_after is not None or job.delay_seconds > 0
    return State.SCHEDULED if later else State.READY


class Inserting(StoreCore):
    """The start of a job's life."""

    def insert(
        self, jobs: Sequence[NewJob], *, wake: bool = False, now: datetime | None = None
    ) -> list[Inserted]:
        """Write *jobs* in one statement for each 500; return those written, in their order.

        With *wake*, for callers in autocommit, the statement also wakes waiting workers.
        A job whose unique key is held by a live job is left out, without an error, so that the
        caller's transaction goes on. Of several in *jobs* with one key, the first is written.
        Commits only where the caller is in autocommit, and then all of them together.
        """
        if not jobs:
            return []
        # In the order of the unique index: two transactions that insert A, B and B, A would wait
        # for each other, and on MariaDB for the gaps between them too (O11).
        ordered = sorted(jobs, key=lambda job: hash_of(job) or "")
        insert = self._insert_batch if len(jobs) <= ROWS_PER_STATEMENT else self._insert_batches
        written = {row.id: row for row in insert(ordered, now, wake=wake)}
        return [written[job.id] for job in jobs if job.id in written]

    @transition
    def _insert_batches(
        self, jobs: Sequence[NewJob], now: datetime | None, *, wake: bool
    ) -> list[Inserted]:
        starts = range(0, len(jobs), ROWS_PER_STATEMENT)
        parts = [jobs[start : start + ROWS_PER_STATEMENT] for start in starts]
        return [row for part in parts for row in self._insert_batch(part, now, wake=wake)]

    @statement
    def _insert_batch(
        self, jobs: Sequence[NewJob], now: datetime | None, *, wake: bool
    ) -> list[Inserted]:
        rows, params = [], []
        for job in jobs:
            row, row_params = self._insert_row(job, now)
            rows.append(row)
            params += row_params
        columns = [*FACTS, "suspect", *CONSTANTS, *MOMENTS]
        sql = (
            f"INSERT INTO {self.live_table} "
            f"({', '.join(map(self.quote, columns))}) VALUES {', '.join(rows)} "
            f"{self.on_conflict_sql()}"
        )
        columns_read = (
            f"{self.quote('id')}, {self.read_moment_sql(self.quote('enqueued_at'))}, "
            f"{self.read_moment_sql(self.quote('run_after'))}"
        )
        ids = [self.dump_uuid(job.id) for job in jobs]
        rows_written = self.insert_rows(sql, params, columns_read, ids, wake=wake)
        return [self._inserted(row) for row in rows_written]

    def insert_rows(
        self, sql: str, params: Sequence[Any], columns: str, ids: Sequence[Any], *, wake: bool
    ) -> list[tuple[Any, ...]]:
        """Run an INSERT of rows with *ids*; return *columns* of those that were written."""
        with self.connection.cursor() as cursor:
            cursor.execute(self.insert_sql(f"{sql} RETURNING {columns}", wake=wake), params)
            return list(cursor.fetchall())

    def _insert_row(self, job: NewJob, now: datetime | None) -> tuple[str, list[Any]]:
        vendor = self.connection.vendor
        key = job.unique_key
        facts = [
            self.dump_uuid(job.id),
            job.lane.value,
            job.queue_name,
            job.task,
            job.kind,
            job.backend,
            job.payload,
            -job.priority,
            state_of(job).value,
            HeldReason.KEY.value if is_behind(job) else "",
            job.max_attempts,
            key or "",
            "" if key is None else job.unique_while,
            hash_of(job),
            job.order_key,
            job.seq,
            job.schedule,
            None if job.scheduled_for is None else to_database(job.scheduled_for, vendor),
            job.timeout,
            job.result_ttl,
            job.dead_letter,
            job.atomic,
            job.headers,
            False,
        ]
        moments: list[str] = []
        params: list[Any] = []
        due = now if job.run_after is None else job.run_after
        delay = job.delay_seconds if job.run_after is None else 0.0
        expires = None if job.expires_seconds is None else delay + job.expires_seconds
        for base, offset in ((now, 0.0), (due, delay), (due, expires)):
            sql, sql_params = ("NULL", []) if offset is None else self.now_sql(base, offset)
            moments.append(sql)
            params += sql_params
        row = ", ".join([*["%s"] * len(facts), *CONSTANTS.values(), *moments])
        return f"({row})", facts + params

    def insert_sql(self, statement: str, *, wake: bool) -> str:
        """Return *statement* such that it wakes waiting workers too, where the database can."""
        return statement

    def on_conflict_sql(self) -> str:
        return f"ON CONFLICT ({self.quote('unique_hash')}) DO NOTHING"

    def _inserted(self, row: tuple[Any, ...]) -> Inserted:
        enqueued_at, run_after = from_database(row[1]), from_database(row[2])
        assert enqueued_at is not None
        assert run_after is not None
        return Inserted(self.load_uuid(row[0]), enqueued_at, run_after)
