"""MariaDB 10.6 and later, MySQL 8.0.11 and later."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, ClassVar, Final

from django.db import transaction
from django.db.models import Model, QuerySet

from ..models import OutboxKey
from .acking import ACK_COLUMNS
from .columns import KINDS
from .core import M, compiled, error_codes, statement
from .inserting import Insertion
from .mysql_claiming import MySQLClaiming, places
from .records import Ack, Hold, NewJob

RUN_SAVEPOINT: Final = "workqueue_run"
NO_SUCH_SAVEPOINT: Final = 1305


JSON_TYPES: Final = {
    # ASCII gives way to any other; two collations of one character set are not compared at all.
    "uuid": "CHAR(36) CHARACTER SET ascii",
    "text": "LONGTEXT CHARACTER SET utf8mb4",
    "whole": "BIGINT",
    "number": "DOUBLE",
    "flag": "BOOLEAN",
    "moment": "DATETIME(6)",
}


class MySQLStore(MySQLClaiming):
    """Locks rows by primary key, then changes them: neither database has UPDATE … RETURNING.

    Right under READ COMMITTED and REPEATABLE READ: what a plain SELECT saw is only a candidate,
    and what decides is the lock, taken on the row as it is now.
    """

    conflict_codes: ClassVar[frozenset[str | int]] = frozenset({1205, 1213})

    outage_codes: ClassVar[frozenset[str | int]] = frozenset({1053, 1290, 1792, 1836})

    too_large_codes: ClassVar[frozenset[str | int]] = frozenset({1153, 2020})

    gone_codes: ClassVar[frozenset[str | int]] = frozenset({2006, 2013})
    """Those of a connection that ended: so it does, too, where a statement is far too large."""

    by_primary_key: ClassVar[str] = "FORCE INDEX (PRIMARY)"

    def clock_sql(self, offset_seconds: float) -> tuple[str, list[Any]]:
        # Not NOW(6), which follows the session's time zone.
        if not offset_seconds:
            return "UTC_TIMESTAMP(6)", []
        return "(UTC_TIMESTAMP(6) + INTERVAL %s MICROSECOND)", [round(offset_seconds * 1_000_000)]

    def dump_uuids(self, values: Iterable[uuid.UUID]) -> list[Any]:
        # MariaDB's own type takes text; MySQL and older MariaDB hold 32 hex digits.
        if self.connection.features.has_native_uuid_field:
            return list(map(str, values))
        return [value.hex for value in values]

    def together(self) -> AbstractContextManager[Any]:
        # No savepoint: a deadlock rolls back the whole transaction, and a savepoint with it.
        return transaction.atomic(using=self.alias, savepoint=False)

    def lock(
        self, model: type[Model], ids: Collection[Any], *, skip_locked: bool = False
    ) -> Collection[Any]:
        # Every write of a row begins here, so that all wait for its primary key and none deadlocks
        # (seen: an UPDATE by id and state found the row by the state's index, beside an ack).
        key = model._meta.pk
        names = sorted(key.get_db_prep_value(each, self.connection) for each in ids)
        column = self.quote(key.attname)
        with self.connection.cursor() as cursor:
            cursor.execute(
                f"SELECT {column} FROM {self.quote(model._meta.db_table)} FORCE INDEX (PRIMARY) "
                f"WHERE {column} IN ({places(names)}) ORDER BY {column} FOR UPDATE"
                f"{' SKIP LOCKED' if skip_locked else ''}",
                [str(each) for each in names],
            )
            return [row[0] for row in cursor.fetchall()]

    def current(self, rows: QuerySet[M]) -> QuerySet[M]:
        # Under REPEATABLE READ a caller's transaction may have begun long ago.
        return rows.select_for_update() if self.connection.in_atomic_block else rows

    def on_conflict_sql(self) -> str:
        # INSERT IGNORE would hide every other error of the row too. A key that is taken leaves its
        # holder as it was; an id that is taken becomes NULL, which the column refuses.
        q, live = self.quote, self.live_table
        return (
            f"ON DUPLICATE KEY UPDATE {live}.{q('id')} = "
            f"IF({live}.{q('unique_hash')} = VALUES({q('unique_hash')}), {live}.{q('id')}, NULL)"
        )

    def given_sql(self, names: Sequence[str]) -> str:
        columns = ", ".join(
            f"{self.quote(name)} {JSON_TYPES[KINDS.get(name, 'text')]} PATH '$[{place}]'"
            for place, name in enumerate(names)
        )
        return f"JSON_TABLE(%(given)s, '$[*]' COLUMNS ({columns})) AS given"

    def insert_rows(
        self, insertion: Insertion, params: Mapping[str, Any], jobs: Sequence[NewJob]
    ) -> list[tuple[Any, ...]]:
        if self.connection.features.can_return_rows_from_bulk_insert:
            # The row of a taken key is its holder's, and told by its id.
            return super().insert_rows(insertion, params, jobs)
        # One transaction: once committed, a row may be claimed and finished before it is read.
        ids = [job.id.hex for job in jobs]
        with self.together(), self.connection.cursor() as cursor:
            named: Any = params
            cursor.execute(insertion.sql, named)
            cursor.execute(
                f"SELECT {insertion.returned} FROM {self.live_table} "
                f"WHERE {self.quote('id')} IN ({places(ids)})",
                ids,
            )
            return list(cursor.fetchall())

    def next_seq(self, queue_name: str, key: str) -> int:
        # Two statements: MySQL has no RETURNING. The lock taken by the first holds in between.
        q = self.quote
        table = q(OutboxKey._meta.db_table)
        columns = ", ".join(map(q, ("destination", "key", "last_seq")))
        with self.connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO {table} ({columns}) VALUES (%s, %s, 1) "
                f"ON DUPLICATE KEY UPDATE {q('last_seq')} = {q('last_seq')} + 1",
                [queue_name, key],
            )
            cursor.execute(
                f"SELECT {q('last_seq')} FROM {table} "
                f"WHERE {q('destination')} = %s AND {q('key')} = %s",
                [queue_name, key],
            )
            return int(cursor.fetchone()[0])

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
        with self.together():
            rows = self._lock_held(holds, returning, skip_locked=skip_locked)
            if rows:
                table = f"{self.live_table} FORCE INDEX (PRIMARY)"
                self._write_held(f"UPDATE {table} SET {changes}", params, rows)
            return rows

    def ack_rows(
        self, acks: Sequence[Ack], now: datetime | None, *, keep_results: bool
    ) -> list[tuple[Any, ...]]:
        holds = [ack.claim.hold for ack in acks]
        all_keep = all(ack.claim.result_ttl != 0 for ack in acks)
        with transaction.atomic(using=self.alias, savepoint=False):
            # Where each leaves a result, writing those locks the rows, by id too, and their number
            # tells that all are held: a statement less.
            if all_keep and self._keep(acks, now) == len(acks):
                rows = self.dump_holds(holds)
            else:
                rows = self._lock_held(holds)
                if rows and keep_results and not all_keep:
                    self._keep(acks, now)
            if rows:
                # The form for several tables: the other takes no index hint on MySQL.
                table = f"{self.live_table} FORCE INDEX (PRIMARY)"
                self._write_held(f"DELETE {self.live_table} FROM {table}", [], rows)
            return rows

    def _keep(self, acks: Sequence[Ack], now: datetime | None) -> int:
        """Write the results of those of *acks* that hold their jobs, and lock these; count them."""
        now_sql, params = self.named_now_sql(now)
        named: Any = params | self.given_params(self.ack_columns(acks))
        with self.connection.cursor() as cursor:
            cursor.execute(self._keep_sql(now_sql), named)
            return int(cursor.rowcount)

    @compiled
    def _keep_sql(self, now_sql: str) -> str:
        # STRAIGHT_JOIN: the given first, in the order of their ids, each to be found by its primary
        # key. A row with an old token is no match: the group may hold an older claim of the same
        # job. FOR UPDATE: a shared lock could not become the delete's beside another such.
        q = self.quote
        return (
            f"INSERT INTO {self.result_table} ({self.result_columns_sql()}) "
            f"SELECT {self.result_values_sql('job', 'given', now_sql)} "
            f"FROM {self.given_sql(ACK_COLUMNS)} "
            f"STRAIGHT_JOIN {self.live_table} AS job FORCE INDEX (PRIMARY) "
            f"ON job.{q('id')} = given.{q('id')} AND job.{q('token')} = given.{q('token')} "
            f"WHERE job.{q('state')} = 'running' AND NOT (job.{q('result_ttl')} <=> 0) "
            "FOR UPDATE"
        )

    def appended_sql(self, array: str, item: str) -> str:
        return f"JSON_ARRAY_APPEND({array}, '$', {item})"

    def later_sql(self, moment: str, seconds: str) -> str:
        return f"({moment} + INTERVAL ROUND({seconds} * 1000000) MICROSECOND)"

    def _lock_held(
        self, holds: Sequence[Hold], returning: Sequence[str] = (), *, skip_locked: bool = False
    ) -> list[tuple[Any, ...]]:
        """Lock the rows that *holds* still hold, by id; return their id, token and *returning*.

        As they are before the change: no caller asks for what it changes.
        """
        # The ids of one claim share its token. A row under the token of another of *holds* is
        # locked as well, and left out.
        given = set(self.dump_holds(holds))
        ids, tokens = [hold[0] for hold in given], list({hold[1] for hold in given})
        q = self.quote
        columns = ", ".join(map(q, ("id", "token", *returning)))
        with self.connection.cursor() as cursor:
            cursor.execute(
                f"SELECT {columns} FROM {self.live_table} FORCE INDEX (PRIMARY) "
                f"WHERE {q('id')} IN ({places(ids)}) AND {q('state')} = 'running' "
                f"AND {q('token')} IN ({places(tokens)}) "
                f"ORDER BY {q('id')} FOR UPDATE{' SKIP LOCKED' if skip_locked else ''}",
                [*ids, *tokens],
            )
            return [row for row in cursor.fetchall() if row[:2] in given]

    def _write_held(self, verb: str, params: Sequence[Any], rows: Sequence[Any]) -> None:
        ids = [row[0] for row in rows]
        with self.connection.cursor() as cursor:
            cursor.execute(
                f"{verb} WHERE {self.quote('id')} IN ({places(ids)}) "
                f"AND {self.quote('state')} = 'running'",
                [*params, *ids],
            )
            assert cursor.rowcount == len(ids), "a locked row changed (I9)"

    def dump_holds(self, holds: Sequence[Hold]) -> list[tuple[Any, ...]]:
        """Return *holds* as the database has them."""
        ids, tokens = zip(*holds, strict=True)
        return list(zip(self.dump_uuids(ids), self.dump_uuids(tokens), strict=True))

    def begin_run(self, lease_seconds: float, timeout: float | None) -> None:
        # Under REPEATABLE READ the task would not see what others commit while it waits for locks.
        with self.connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            # A deadlock rolls back the whole transaction, and a task that catches the error goes on
            # in another, without what it wrote before. This savepoint is gone then.
            cursor.execute(f"SAVEPOINT {RUN_SAVEPOINT}")

    def end_run(self) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(f"RELEASE SAVEPOINT {RUN_SAVEPOINT}")

    def is_run_broken(self, error: BaseException) -> bool:
        return NO_SUCH_SAVEPOINT in error_codes(error)

    # Errors

    def is_too_large(self, error: BaseException, texts: Iterable[str]) -> bool:
        """As in the base; asks the server for its largest packet where the connection ended."""
        if super().is_too_large(error, texts):
            # Whatever the server said, it has closed the connection.
            self.connection.close()
            return True
        if self.gone_codes.isdisjoint(error_codes(error)):
            return False
        self.connection.close()
        with self.connection.cursor() as cursor:
            cursor.execute("SELECT @@max_allowed_packet")
            return sum(map(_sent_bytes, texts)) > int(cursor.fetchone()[0])


def _sent_bytes(text: str) -> int:
    """Return the bytes that *text* has in a statement, in which quotes are escaped."""
    return len(text.encode()) + text.count('"') + text.count("\\")
