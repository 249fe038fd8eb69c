"""SQLite 3.37 and later: one writer at a time, one host, one clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import F, QuerySet

from ..models import LiveJob, OutboxKey
from .base import BaseStore


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
            cursor.execute(
                f"UPDATE {self.quote(LiveJob._meta.db_table)} SET {self.quote('attempt')} = 0 "
                f"WHERE 1 = 0"
            )

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
        q, live = self.quote, self.quote(LiveJob._meta.db_table)
        sql = (
            f"UPDATE {live} SET {changes} WHERE {q('state')} = 'ready' AND {q('id')} IN "
            f"(SELECT {q('id')} FROM {live} WHERE {where} "
            f"ORDER BY {q('rank')}, {q('run_after')}, {q('id')} LIMIT %s) "
            f"RETURNING {self.claim_columns_sql()}"
        )
        with self.connection.cursor() as cursor:
            cursor.execute(sql, [*changes_params, *where_params, limit])
            return list(cursor.fetchall())
