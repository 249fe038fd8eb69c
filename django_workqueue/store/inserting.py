"""insert: a new job's row, in the caller's transaction."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from ..models.fields import from_database
from ..states import HeldReason, State
from .columns import Columns, bounded, most_bytes
from .core import compiled, statement, transition
from .records import Inserted, NewJob

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
TIMES: Final = ("due", "delay", "expires")
"""When it is due, if a moment was given; the seconds from then, or now, to both others."""
CONSTANTS: Final = {
    "suspect": "FALSE",
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


class Inserting(Columns):
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
        if any(job.unique_key is not None for job in jobs):
            # In the order of the unique index: two transactions that insert A, B and B, A would
            # wait for each other, and on MariaDB for the gaps between them too (O11).
            jobs_to_write: Sequence[NewJob] = sorted(jobs, key=lambda job: hash_of(job) or "")
        else:
            jobs_to_write = jobs
        lengths = [most_bytes(job.payload, job.headers) for job in jobs_to_write]
        parts = list(bounded(jobs_to_write, lengths))
        if len(parts) == 1:
            rows = self._insert_batch(parts[0], now, wake=wake)
        else:
            rows = self._insert_batches(parts, now, wake=wake)
        written = {row.id: row for row in rows}
        return [written[job.id] for job in jobs if job.id in written]

    @transition
    def _insert_batches(
        self, parts: Sequence[Sequence[NewJob]], now: datetime | None, *, wake: bool
    ) -> list[Inserted]:
        return [row for part in parts for row in self._insert_batch(part, now, wake=wake)]

    @statement
    def _insert_batch(
        self, jobs: Sequence[NewJob], now: datetime | None, *, wake: bool
    ) -> list[Inserted]:
        now_sql, params = self.named_now_sql(now)
        names = (*FACTS, *TIMES)
        columns = dict(zip(names, zip(*map(self._row, jobs), strict=True), strict=True))
        # What all rows of the statement share is said once.
        shared = {
            name: values[0]
            for name, values in columns.items()
            if len(jobs) == 1 or (name != "id" and values.count(values[0]) == len(jobs))
        }
        differing = {name: columns[name] for name in columns if name not in shared}
        if differing:
            params |= self.given_params(differing)
        unset = tuple(name for name in TIMES if name in shared and not shared[name])
        sql = self._insert_sql(now_sql, tuple(differing), unset)
        ids = [self.dump_uuid(job.id) for job in jobs]
        rows = self.insert_rows(sql, params | shared, self._written_sql(), ids, wake=wake)
        return [self._inserted(row) for row in rows]

    @compiled
    def _written_sql(self) -> str:
        names = ("enqueued_at", "run_after")
        moments = (self.read_moment_sql(self.quote(name)) for name in names)
        return ", ".join([self.quote("id"), *moments])

    @compiled
    def _insert_sql(self, now_sql: str, differing: tuple[str, ...], unset: tuple[str, ...]) -> str:
        """Return an INSERT of any number of rows with *differing* columns, the others shared.

        *unset* are those of TIMES that no row has.
        """
        q = self.quote
        source = {
            name: f"given.{q(name)}" if name in differing else f"%({name})s"
            for name in (*FACTS, *TIMES)
        }
        due = now_sql if "due" in unset else f"COALESCE({source['due']}, {now_sql})"
        run_after = due if "delay" in unset else self.later_sql(due, source["delay"])
        expires = "NULL" if "expires" in unset else self.later_sql(due, source["expires"])
        values = {
            **{name: source[name] for name in FACTS},
            **CONSTANTS,
            "enqueued_at": now_sql,
            "run_after": run_after,
            "expires_at": expires,
        }
        listed = ", ".join(values.values())
        # WHERE, without which SQLite would take ON CONFLICT for part of a join.
        rows = f"SELECT {listed} FROM {self.given_sql(differing)} WHERE 1 = 1"
        return (
            f"INSERT INTO {self.live_table} ({', '.join(map(q, values))}) "
            f"{rows if differing else f'VALUES ({listed})'} {self.on_conflict_sql()}"
        )

    def insert_rows(
        self, sql: str, params: Mapping[str, Any], columns: str, ids: Sequence[Any], *, wake: bool
    ) -> list[tuple[Any, ...]]:
        """Run an INSERT of rows with *ids*; return *columns* of those that were written."""
        with self.connection.cursor() as cursor:
            # Mapping: Django's stubs know no parameters by name.
            named: Any = params
            cursor.execute(self.insert_sql(f"{sql} RETURNING {columns}", wake=wake), named)
            return list(cursor.fetchall())

    def _row(self, job: NewJob) -> tuple[Any, ...]:
        """Return the values of FACTS and TIMES."""
        key = job.unique_key
        behind = is_behind(job)
        delay = job.delay_seconds if job.run_after is None else 0.0
        return (
            self.dump_uuid(job.id),
            job.lane.value,
            job.queue_name,
            job.task,
            job.kind,
            job.backend,
            job.payload,
            -job.priority,
            state_of(job).value,
            HeldReason.KEY.value if behind else "",
            job.max_attempts,
            key or "",
            "" if key is None else job.unique_while,
            hash_of(job),
            job.order_key,
            job.seq,
            job.schedule,
            self.dump_moment(job.scheduled_for),
            job.timeout,
            job.result_ttl,
            job.dead_letter,
            job.atomic,
            job.headers,
            self.dump_moment(job.run_after),
            delay,
            None if job.expires_seconds is None else delay + job.expires_seconds,
        )

    def insert_sql(self, statement: str, *, wake: bool) -> str:
        """Return *statement* such that it wakes waiting workers too, where the database can."""
        return statement

    def on_conflict_sql(self) -> str:
        unique_hash = self.quote("unique_hash")
        return f"ON CONFLICT ({unique_hash}) WHERE {unique_hash} IS NOT NULL DO NOTHING"

    def _inserted(self, row: tuple[Any, ...]) -> Inserted:
        enqueued_at, run_after = from_database(row[1]), from_database(row[2])
        assert enqueued_at is not None
        assert run_after is not None
        return Inserted(self.load_uuid(row[0]), enqueued_at, run_after)
