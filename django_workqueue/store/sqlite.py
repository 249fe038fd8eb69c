"""SQLite 3.37 and later: one writer at a time, one host, one clock."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import F, QuerySet

from ..models import OutboxKey
from .acking import ACK_COLUMNS
from .base import BaseStore
from .core import compiled
from .records import Ack


class SQLiteStore(BaseStore):
    """Claims in one statement under the database's only write lock."""

    def clock_sql(self, offset_seconds: float) -> tuple[str, list[Any]]:
        # SQLite's own clock has milliseconds; texts of one format compare as moments do.
        return (
            "strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now', %s)",
            [f"{offset_seconds:+.3f} seconds"],
        )

    def begin_run(self, lease_seconds: float, timeout: float | None) -> None:
        # Takes the write lock at once, whatever transaction_mode says: a task that read first
        # could not write afterwards if another had written in between. No row is touched.
        with self.connection.cursor() as cursor:
            cursor.execute(f"UPDATE {self.live_table} SET {self.quote('attempt')} = 0 WHERE 1 = 0")

    def run_bound_seconds(self, lease_seconds: float) -> float | None:
        return lease_seconds / 2

    def lock_key(self, rows: QuerySet[OutboxKey]) -> bool:
        # There is no lock of a row, and select_for_update() is silently ignored. This takes the
        # write lock before anything is read, whatever transaction_mode says.
        return bool(rows.update(last_seq=F("last_seq")))

    def claim_rows(
        self,
        where: str,
        where_params: Sequence[Any],
        changes: str,
        changes_params: Sequence[Any],
        limit: int,
    ) -> list[tuple[Any, ...]]:
        # In autocommit: the statement takes the write lock before it reads, so the busy timeout
        # is waited for. Walks workqueue_live_ready.
        q, live = self.quote, self.live_table
        sql = (
            f"UPDATE {live} SET {changes} WHERE {q('state')} = 'ready' AND {q('id')} IN "
            f"(SELECT {q('id')} FROM {live} WHERE {where} "
            f"ORDER BY {q('rank')}, {q('run_after')}, {q('id')} LIMIT %s) "
            f"RETURNING {self.claim_columns_sql()}"
        )
        with self.connection.cursor() as cursor:
            cursor.execute(sql, [*changes_params, *where_params, limit])
            return list(cursor.fetchall())

    def ack_rows(
        self, acks: Sequence[Ack], now: datetime | None, *, keep_results: bool
    ) -> list[tuple[Any, ...]]:
        # A text for any number of jobs, so that it is compiled once. The results first: the first
        # statement takes the write lock, and until the end nobody else changes a row.
        now_sql, now_params = self.named_now_sql(now)
        params: Any = self.given_params(self.ack_columns(acks))
        with (
            transaction.atomic(using=self.alias, savepoint=False),
            self.connection.cursor() as cursor,
        ):
            if keep_results:
                cursor.execute(self._keep_sql(now_sql), params | now_params)
            cursor.execute(self._finish_sql(), params)
            return list(cursor.fetchall())

    @compiled
    def _keep_sql(self, now_sql: str) -> str:
        # CROSS JOIN: the given first, each to be found by its primary key.
        q = self.quote
        return (
            f"INSERT INTO {self.result_table} ({self.result_columns_sql()}) "
            f"SELECT {self.result_values_sql('job', 'given', now_sql)} "
            f"FROM {self.given_sql(ACK_COLUMNS)} CROSS JOIN {self.live_table} AS job "
            f"WHERE job.{q('id')} = given.{q('id')} AND job.{q('token')} = given.{q('token')} "
            f"AND job.{q('state')} = 'running' AND job.{q('result_ttl')} IS NOT 0"
        )

    @compiled
    def _finish_sql(self) -> str:
        q = self.quote
        given = self.given_sql(("id", "token"))
        return (
            f"DELETE FROM {self.live_table} "
            f"WHERE {q('id')} IN (SELECT {q('id')} FROM {given}) AND {q('state')} = 'running' "
            f"AND ({q('id')}, {q('token')}) IN (SELECT {q('id')}, {q('token')} FROM {given}) "
            f"RETURNING {q('id')}, {q('token')}"
        )

    def given_sql(self, names: Sequence[str]) -> str:
        columns = (
            f"json_extract({self.quote('value')}, '$[{place}]') AS {self.quote(name)}"
            for place, name in enumerate(names)
        )
        return f"(SELECT {', '.join(columns)} FROM json_each(%(given)s)) AS given"

    def appended_sql(self, array: str, item: str) -> str:
        return f"json_insert({array}, '$[#]', {item})"

    def later_sql(self, moment: str, seconds: str) -> str:
        # SQLite calculates in milliseconds: microseconds are added apart, and whole seconds moved.
        added = f"(CAST(substr({moment}, 21) AS INTEGER) + CAST(round({seconds} * 1e6) AS INTEGER))"
        # Not below 0, as the remainder of a negative number is.
        rest = f"(({added} %% 1000000 + 1000000) %% 1000000)"
        return (
            f"CASE WHEN {seconds} IS NOT NULL THEN strftime('%%Y-%%m-%%d %%H:%%M:%%S', "
            f"substr({moment}, 1, 19), (({added} - {rest}) / 1000000) || ' seconds') "
            f"|| printf('.%%06d', {rest}) END"
        )
