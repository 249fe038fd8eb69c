"""PostgreSQL 14 and later."""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Final

from django.db import DatabaseError
from django.db.models import BooleanField, Q
from django.db.models.expressions import RawSQL

from ..models import LiveJob
from ..states import Lane, State
from .acking import ACK_COLUMNS, HOLD_COLUMNS, MOVED
from .base import BaseStore
from .columns import KINDS
from .core import compiled, error_codes
from .looking import BATCH, seconds_between
from .newrows import text_of
from .preparing import Preparing
from .records import Ack, Hold, Inserted, NewJob

logger = logging.getLogger("django_workqueue.store")

CHANNEL: Final = "workqueue"
"""One fixed channel: names of queues may be longer than a channel's 63 bytes."""


NOTIFICATIONS_FULL: Final = "54000"
"""The SQLSTATE of a notification that the server has no room for."""


ARRAYS: Final = {
    "uuid": "uuid",
    "text": "text",
    "whole": "bigint",
    "number": "double precision",
    "flag": "boolean",
    "moment": "timestamptz",
}


class PostgreSQLStore(Preparing, BaseStore):
    """Claims in one statement; waits for no row that another claim holds."""

    conflict_codes: ClassVar[frozenset[str | int]] = frozenset({"40P01", "40001"})

    outage_codes: ClassVar[frozenset[str | int]] = frozenset({"25006", "57P01", "57P02", "57P03"})

    too_large_codes: ClassVar[frozenset[str | int]] = frozenset({"54000"})

    def clock_sql(self, offset_seconds: float) -> tuple[str, list[Any]]:
        # statement_timestamp() moves within a transaction and, unlike clock_timestamp(), stands
        # still within a statement, so that an index can serve a comparison with it.
        if not offset_seconds:
            return "statement_timestamp()", []
        return "(statement_timestamp() + make_interval(secs => %s))", [offset_seconds]

    def read_moment_sql(self, sql: str) -> str:
        # Without USE_TZ, psycopg would return the session's local time with the zone cut off.
        return f"({sql} AT TIME ZONE 'UTC')"

    def look(self, lane: Lane, *, now: datetime | None = None) -> tuple[list[str], float | None]:
        # One read, which is most of what an idle worker costs its server, and an update where some
        # are due: while an old snapshot is held, each walk of an index steps over all that was in
        # it since then. So what is due is walked once, what is not is looked for behind it, and
        # the queues of what was made ready are known without a second look. They are those of all
        # that was seen due: another worker may make it ready, and the update waits for that.
        sql, params = self._look_sql(lane, now)
        with self.connection.cursor() as cursor:
            cursor.execute(sql, params)
            names, ids, due_names, *moments = cursor.fetchone()
        self.make_ready(ids, State.SCHEDULED, Q(run_after__lte=self.moment(now)))
        more = len(ids) == BATCH
        seconds = self.seconds_to_due(now=now) if more else seconds_between(moments)
        return sorted({*names, *due_names}), seconds

    def _look_sql(self, lane: Lane, now: datetime | None) -> tuple[str, list[Any]]:
        q = self.quote
        now_sql, now_params = self.now_sql(now)
        ready, ready_params = self.ready_queues_sql(lane, now)
        paused, paused_params = self.paused_queues_sql(now)
        scheduled = f"FROM {self.live_table} WHERE {q('state')} = 'scheduled' AND {q('run_after')}"
        sql = (
            f"WITH due AS MATERIALIZED (SELECT {q('id')}, {q('lane')}, {q('queue_name')} "
            f"{scheduled} <= {now_sql} ORDER BY {q('run_after')} LIMIT {BATCH}) "
            f"SELECT ARRAY({ready}), ARRAY(SELECT {q('id')} FROM due), "
            f"ARRAY(SELECT DISTINCT {q('queue_name')} FROM due WHERE {q('lane')} = %s "
            f"AND {q('queue_name')} NOT IN ({paused})), "
            f"(SELECT {self.read_moment_sql(q('run_after'))} "
            f"{scheduled} > {now_sql} ORDER BY {q('run_after')} LIMIT 1), "
            f"{self.read_moment_sql(now_sql)}"
        )
        params = [*now_params, *ready_params, lane.value, *paused_params]
        return sql, [*params, *now_params, *now_params]

    def still(self, ids: Collection[Any], state: State) -> Q:
        # As an array that the planner knows nothing of: for a long list it may read the whole table
        # (seen with 500 of 4,000 rows), and by the state every entry that an old snapshot keeps.
        sql = (
            f"{self.quote('id')} = ANY (ARRAY(SELECT unnest(%s::uuid[]))) "
            f"AND {self.restated_sql(state)}"
        )
        return Q(RawSQL(sql, [as_array(ids)], output_field=BooleanField()))  # noqa: S611  # our own

    def given_sql(self, names: Sequence[str]) -> str:
        arrays = ", ".join(
            f"%(given_{name})s::{ARRAYS[KINDS.get(name, 'text')]}[]" for name in names
        )
        return f"unnest({arrays}) AS given ({', '.join(map(self.quote, names))})"

    def given_params(self, columns: Mapping[str, Sequence[Any]]) -> dict[str, str]:
        return {f"given_{name}": as_array(values) for name, values in columns.items()}

    def written_sql(self, *, keyed: bool, wake: bool) -> str:
        # One statement: a second one would cost a third of an enqueue's speed.
        told = f", pg_notify('{CHANNEL}', '')" if wake else ""
        return f"{super().written_sql(keyed=keyed, wake=wake)}{told}"

    def _insert_batch(
        self, jobs: Sequence[NewJob], now: datetime | None, *, wake: bool
    ) -> list[Inserted]:
        try:
            return super()._insert_batch(jobs, now, wake=wake)
        except DatabaseError as error:
            if not wake or NOTIFICATIONS_FULL not in error_codes(error):
                raise
            # Nothing was written: the server takes both or neither, in autocommit.
            logger.warning("notification failed; a poll finds the job", exc_info=True)
            return super()._insert_batch(jobs, now, wake=False)

    def claim_rows(
        self,
        where: str,
        where_params: Sequence[Any],
        changes: str,
        changes_params: Sequence[Any],
        limit: int,
    ) -> list[tuple[Any, ...]]:
        # The obvious UPDATE … WHERE id IN (SELECT … LIMIT n FOR UPDATE SKIP LOCKED) may evaluate
        # its subquery again for each row, and then claims them all (seen: LIMIT 5 took 61 of 61
        # with stale statistics). A MATERIALIZED CTE is evaluated once. Walks workqueue_live_ready.
        # The update finds a row by its place, where the lock keeps it: by id, a planner that takes
        # a table for empty reads the whole of it (seen: 80 ms a claim from 10,000 rows).
        q, live = self.quote, self.live_table
        sql = (
            f"WITH chosen AS MATERIALIZED (SELECT ctid FROM {live} WHERE {where} "
            f"ORDER BY {q('rank')}, {q('run_after')}, {q('id')} LIMIT {'%s' if limit > 1 else '1'} "
            f"FOR UPDATE SKIP LOCKED) UPDATE {live} AS job SET {changes} FROM chosen "
            f"WHERE job.ctid = chosen.ctid AND {self.restated_sql('ready', 'job.')} "
            f"RETURNING {self.claim_columns_sql('job.')}"
        )
        # In SET, unqualified names on the right are the target's: chosen has no column of them.
        if limit == 1:
            # Somebody waits for it, and its plan can only walk the one index.
            params = numbered([*where_params, *changes_params])
            return self.run(sql % tuple(f"%({name})s" for name in params), params)
        with self.connection.cursor() as cursor:
            cursor.execute(sql, [*where_params, limit, *changes_params])
            return list(cursor.fetchall())

    def ack_rows(
        self, acks: Sequence[Ack], now: datetime | None, *, keep_results: bool
    ) -> list[tuple[Any, ...]]:
        # One statement, and a hold that is refused is refused alone. Rows are locked before any is
        # deleted, one look-up for each that was given, in that order, which is by id: nothing but
        # the primary key can be walked for it, whatever the planner takes the table for. The delete
        # finds them by id: a row that was extended since the snapshot has moved to another place.
        now_sql, params = self.named_now_sql(now)
        columns = self.ack_columns(acks)
        given = ACK_COLUMNS if keep_results else HOLD_COLUMNS
        params |= self.given_params({name: columns[name] for name in given})
        named: Any = params
        with self.connection.cursor() as cursor:
            cursor.execute(self._ack_sql(now_sql, keep_results=keep_results), named)
            return list(cursor.fetchall())

    @compiled
    def _ack_sql(self, now_sql: str, *, keep_results: bool) -> str:
        q, live, running = self.quote, self.live_table, self.restated_sql("running", "job.")
        given, facts = HOLD_COLUMNS, HOLD_COLUMNS
        if keep_results:
            given, facts = ACK_COLUMNS, (*MOVED, "attempt", "worker_ids", "worker_id", "result_ttl")
        returned = ", ".join(f"job.{q(name)}" for name in facts)
        kept = (
            f"kept AS (INSERT INTO {self.result_table} ({self.result_columns_sql()}) "
            f"SELECT {self.result_values_sql('gone', 'held', now_sql)} FROM gone JOIN held "
            f"ON gone.{q('id')} = held.{q('id')} WHERE gone.{q('result_ttl')} IS DISTINCT FROM 0) "
        )
        return (
            f"WITH held AS MATERIALIZED (SELECT given.* FROM {self.given_sql(given)} "
            f"CROSS JOIN LATERAL (SELECT 1 FROM {live} AS job "
            f"WHERE job.{q('id')} = given.{q('id')} AND job.{q('token')} = given.{q('token')} "
            f"AND {running} FOR UPDATE OF job) AS job), "
            f"gone AS (DELETE FROM {live} AS job "
            f"WHERE job.{q('id')} = ANY (ARRAY(SELECT {q('id')} FROM held)) AND {running} "
            f"AND job.{q('token')} = ANY (%(given_token)s::uuid[]) RETURNING {returned})"
            f"{', ' + kept if keep_results else ' '}"
            f"SELECT {q('id')}, {q('token')} FROM gone"
        )

    def appended_sql(self, array: str, item: str) -> str:
        return (
            f"CASE {array} WHEN '[]' THEN '[' ELSE left({array}, -1) || ',' END "
            f"|| to_json({item})::text || ']'"
        )

    def later_sql(self, moment: str, seconds: str) -> str:
        return f"({moment} + make_interval(secs => {seconds}))"

    def restated_sql(self, state: str, table: str = "") -> str:
        """Return the condition on the state of a row that is found by its id.

        Not as the indexes of one state have it: without statistics they seem to hold one row, and
        all of that state would be read for it.
        """
        return f"COALESCE({table}{self.quote('state')}, '') = '{state}'"

    def begin_run(self, lease_seconds: float, timeout: float | None) -> None:
        # The extender writes to the job's row while the task runs: under REPEATABLE READ the
        # settle at the end would fail for it.
        with self.connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            # A host that vanished must not hold the task's row locks for hours.
            cursor.execute(
                "SELECT set_config('tcp_keepalives_idle', %s, true), "
                "set_config('tcp_keepalives_interval', %s, true), "
                "set_config('tcp_keepalives_count', '3', true)",
                [str(math.ceil(lease_seconds)), str(math.ceil(lease_seconds / 10))],
            )
            if timeout is not None:
                cursor.execute(
                    "SELECT set_config('idle_in_transaction_session_timeout', %s, true)",
                    [str(math.ceil((timeout + lease_seconds) * 1000))],
                )

    def held_sql(
        self, holds: Sequence[Hold], *, skip_locked: bool = False
    ) -> tuple[str, list[Any]]:
        # Rows are locked by id before they are changed: the extender and the settler of a worker
        # would otherwise deadlock over two of its jobs.
        where, params = super().held_sql(holds)
        q = self.quote
        where = where.replace(f"{q('state')} = 'running'", self.restated_sql("running"))
        skip = " SKIP LOCKED" if skip_locked else ""
        sql = (
            f"{q('id')} IN (WITH held AS MATERIALIZED (SELECT {q('id')} "
            f"FROM {q(LiveJob._meta.db_table)} WHERE {where} ORDER BY {q('id')} FOR UPDATE{skip}) "
            f"SELECT {q('id')} FROM held) AND {where}"
        )
        return sql, [*params, *params]


def numbered(values: Sequence[Any]) -> dict[str, Any]:
    """Return *values* by names that say their places."""
    return {f"given_{place}": value for place, value in enumerate(values)}


def as_array(values: Iterable[Any]) -> str:
    """Return the literal of an array: one text, where a driver would quote value by value."""
    return f"{{{','.join(map(quoted, values))}}}"


def quoted(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, uuid.UUID):
        return value.hex
    text = text_of(value)
    if "\\" in text or '"' in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
