"""insert: a new job's row, in the caller's transaction."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from ..models.fields import from_database
from ..states import HeldReason, Lane, State
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
NAMES: Final = (*FACTS, *TIMES)
PLAIN: Final[dict[str, Any]] = {
    "lane": Lane.TASK.value,
    "kind": "",
    "rank": 0,
    "state": State.READY.value,
    "held_reason": "",
    "unique_key": "",
    "unique_while": "",
    "unique_hash": None,
    "order_key": "",
    "seq": None,
    "schedule": "",
    "scheduled_for": None,
    "timeout": None,
    "dead_letter": True,
    "atomic": False,
    "headers": "{}",
    "due": None,
    "delay": 0.0,
    "expires": None,
}
"""What most jobs have: it stands in the statement's text, where a parameter would cost more."""
PLAINS: Final = tuple(PLAIN.get(name, ...) for name in NAMES)
OF_A_TASK: Final = ("queue_name", "task", "backend", "max_attempts", "result_ttl")
"""What is the same in most calls of a task, and has no value that most jobs have."""
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
        now_sql, params = self.named_now_sql(now)
        rows = list(map(self._row, jobs))
        differing, shared = parted(rows)
        if differing:
            params |= self.given_params(differing)
        sql = self._insert_sql(now_sql, tuple(differing), tuple(shared))
        keyed = "unique_hash" in shared or "unique_hash" in differing
        returned = self._written_sql(keyed=keyed)
        ids = [row[0] for row in rows]
        found = self.insert_rows(sql, params | shared, returned, ids, wake=wake)
        if keyed:
            # MariaDB returns, for a key that is taken, the row of its holder.
            own = {job.id for job in jobs}
            written = [Inserted(self.load_uuid(row[1]), moment_of(row)) for row in found]
            return [row for row in written if row.id in own]
        # Without a conflict to give way to, all are written or none, at one moment.
        enqueued_at = moment_of(found[0])
        return [Inserted(job.id, enqueued_at) for job in jobs]

    @compiled
    def _written_sql(self, *, keyed: bool) -> str:
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
        self, sql: str, params: Mapping[str, Any], columns: str, ids: Sequence[Any], *, wake: bool
    ) -> list[tuple[Any, ...]]:
        """Run an INSERT of rows with *ids*; return *columns* of those that were written.

        With *wake* it wakes waiting workers too, where the database can.
        """
        with self.connection.cursor() as cursor:
            constants = OF_A_TASK if len(ids) == 1 else ()
            self.execute(cursor, f"{sql} RETURNING {columns}", params, constants)
            return list(cursor.fetchall())

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


def parted(
    rows: Sequence[tuple[Any, ...]],
) -> tuple[dict[str, Sequence[Any]], dict[str, Any]]:
    """Return the columns in which *rows* differ, and the values of the rest that are not plain.

    What all rows of a statement share is said once.
    """
    differing: dict[str, Sequence[Any]] = {}
    if len(rows) > 1:
        columns = zip(NAMES, zip(*rows, strict=True), strict=True)
        differing = {
            name: values
            for name, values in columns
            if name == "id" or values.count(values[0]) < len(rows)
        }
    first = zip(NAMES, PLAINS, rows[0], strict=True)
    shared = {
        name: value for name, plain, value in first if value != plain and name not in differing
    }
    return differing, shared


def literal(value: Any) -> str:
    """Return the SQL of one of PLAIN; none for null, which a column has that is not named."""
    if value is None:
        return ""
    return f"'{value}'" if isinstance(value, str) else str(value).upper()


def moment_of(row: tuple[Any, ...]) -> datetime:
    """Return the moment that a row of ``_written_sql`` begins with."""
    moment = from_database(row[0])
    assert moment is not None
    return moment
