"""The bare loops: the least that a queue can do on each database, by hand and without Django.

A table of jobs with an id, a state and a payload; a batch is claimed and committed, deleted and
committed. No lease, no result, no retry: the figure that ours are held against.
"""

from __future__ import annotations

import json
import sqlite3
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final

import django

django.setup()

from django.db import connection  # noqa: E402  # settings come first

from tests.benchmarks.spaced import Latencies, served, stamp  # noqa: E402
from tests.benchmarks.trials import Figure, timed  # noqa: E402

BATCH: Final = 100
POLL_SECONDS: Final = 0.002
"""Between two looks for a new row, where the database tells of none."""
PAYLOAD: Final = '{"args":[],"kwargs":{}}'


class Bare:
    """The statements of one database; what differs is overridden."""

    mark = "%s"
    id_type = "uuid"
    told_sql = " RETURNING pg_notify('bare_job', '')"
    claim_sql = (
        "WITH chosen AS MATERIALIZED (SELECT id FROM bare_job WHERE state = 'ready' ORDER BY id "
        "LIMIT {limit} FOR UPDATE SKIP LOCKED) UPDATE bare_job SET state = 'running' FROM chosen "
        "WHERE bare_job.id = chosen.id RETURNING bare_job.id, payload"
    )

    def __init__(self) -> None:
        self.connection = self.connect()

    def create(self) -> None:
        cursor = self.connection.cursor()
        cursor.execute("DROP TABLE IF EXISTS bare_job")
        cursor.execute(
            f"CREATE TABLE bare_job (id {self.id_type} PRIMARY KEY, "
            "state varchar(12) NOT NULL, payload text NOT NULL)"
        )
        cursor.execute(self.index_sql())

    def connect(self) -> Any:
        import psycopg

        given = connection.settings_dict
        return psycopg.connect(
            host=given["HOST"], dbname=given["NAME"], user=given["USER"], autocommit=True
        )

    def index_sql(self) -> str:
        return "CREATE INDEX bare_ready ON bare_job (id) WHERE state = 'ready'"

    def new_row(self, payload: str) -> tuple[Any, str, str]:
        return self.dump(uuid.uuid4()), "ready", payload

    def dump(self, value: uuid.UUID) -> Any:
        return value

    def insert(self, payload: str = PAYLOAD, told: str = "") -> None:
        mark = self.mark
        self.connection.cursor().execute(
            f"INSERT INTO bare_job (id, state, payload) VALUES ({mark}, {mark}, {mark}){told}",
            self.new_row(payload),
        )

    def insert_stamp(self, path: str, sent: float) -> None:
        """Insert what is to be stamped, and tell who waits for it where the database can."""
        self.insert(json.dumps([path, sent]), self.told_sql)

    def insert_each(self, count: int) -> None:
        for _ in range(count):
            self.insert()

    def insert_many(self, count: int, rows: int = 500) -> None:
        """Insert in statements of many rows, in one transaction."""
        cursor = self.connection.cursor()
        cursor.execute("BEGIN")
        for start in range(0, count, rows):
            batch = [self.new_row(PAYLOAD) for _ in range(min(rows, count - start))]
            self.insert_batch(cursor, batch)
        cursor.execute("COMMIT")

    def insert_batch(self, cursor: Any, batch: Sequence[tuple[Any, str, str]]) -> None:
        values = ", ".join([f"({', '.join([self.mark] * 3)})"] * len(batch))
        cursor.execute(
            f"INSERT INTO bare_job (id, state, payload) VALUES {values}",
            [each for row in batch for each in row],
        )

    def claim(self, limit: int = BATCH) -> list[Any]:
        """Return the ids and payloads of up to *limit* rows."""
        cursor = self.connection.cursor()
        cursor.execute(self.claim_sql.format(limit=limit))
        return list(cursor.fetchall())

    def delete(self, ids: list[Any]) -> None:
        self.connection.cursor().execute("DELETE FROM bare_job WHERE id = ANY(%s)", [ids])

    def drain(self) -> None:
        while rows := self.claim():
            self.delete([row[0] for row in rows])

    def listen(self) -> None:
        self.connection.execute("LISTEN bare_job")

    def wait(self) -> None:
        """Wait until there may be a new row."""
        list(self.connection.notifies(stop_after=1))


class BareSQLite(Bare):
    mark = "?"
    id_type = "text"
    told_sql = ""
    claim_sql = (
        "UPDATE bare_job SET state = 'running' WHERE id IN (SELECT id FROM bare_job "
        "WHERE state = 'ready' ORDER BY id LIMIT {limit}) RETURNING id, payload"
    )

    def connect(self) -> Any:
        bare = sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None, timeout=20)
        bare.execute("PRAGMA journal_mode=WAL")
        bare.execute("PRAGMA synchronous=NORMAL")
        return bare

    def dump(self, value: uuid.UUID) -> Any:
        return value.hex

    def delete(self, ids: list[Any]) -> None:
        marks = ", ".join("?" * len(ids))
        self.connection.execute(f"DELETE FROM bare_job WHERE id IN ({marks})", ids)

    def listen(self) -> None:
        self.seen = self.data_version()

    def wait(self) -> None:
        while (version := self.data_version()) == self.seen:
            time.sleep(POLL_SECONDS)
        self.seen = version

    def data_version(self) -> int:
        return int(self.connection.execute("PRAGMA data_version").fetchone()[0])


class BareMariaDB(Bare):
    id_type = "char(32)"
    told_sql = ""

    def connect(self) -> Any:
        import pymysql

        given = connection.settings_dict
        return pymysql.connect(
            host=given["HOST"],
            port=given["PORT"],
            user=given["USER"],
            password=given["PASSWORD"],
            database=given["NAME"],
            autocommit=True,
        )

    def index_sql(self) -> str:
        return "CREATE INDEX bare_ready ON bare_job (state, id)"

    def dump(self, value: uuid.UUID) -> Any:
        return value.hex

    def claim(self, limit: int = BATCH) -> list[Any]:
        cursor = self.connection.cursor()
        cursor.execute("BEGIN")
        cursor.execute(
            f"SELECT id, payload FROM bare_job WHERE state = 'ready' ORDER BY id LIMIT {limit} "
            "FOR UPDATE SKIP LOCKED"
        )
        rows = list(cursor.fetchall())
        if ids := [row[0] for row in rows]:
            marks = ", ".join(["%s"] * len(ids))
            cursor.execute(f"UPDATE bare_job SET state = 'running' WHERE id IN ({marks})", ids)
        cursor.execute("COMMIT")
        return rows

    def delete(self, ids: list[Any]) -> None:
        marks = ", ".join(["%s"] * len(ids))
        self.connection.cursor().execute(f"DELETE FROM bare_job WHERE id IN ({marks})", ids)

    def listen(self) -> None:
        pass

    def wait(self) -> None:
        time.sleep(POLL_SECONDS)


KINDS: Final[dict[str, Callable[[], Bare]]] = {
    "postgresql": Bare,
    "sqlite": BareSQLite,
    "mysql": BareMariaDB,
}


def empty() -> Bare:
    """Connect, and make the table anew."""
    bare = KINDS[connection.vendor]()
    bare.create()
    return bare


def enqueue(count: int) -> Figure:
    """Insert and commit one by one."""
    bare = empty()
    return timed(count, lambda: bare.insert_each(count))


def enqueue_many(count: int) -> Figure:
    """Insert in statements of 500 rows, in one transaction."""
    bare = empty()
    return timed(count, lambda: bare.insert_many(count))


def drain(count: int) -> Figure:
    """Claim 100, delete 100, until nothing is left."""
    bare = empty()
    bare.insert_many(count)
    return timed(count, bare.drain)


def drain_analyzed(count: int) -> Figure:
    """The same, with statistics of the full table: without, a claim sorts all that is ready."""
    bare = empty()
    bare.insert_many(count)
    bare.connection.cursor().execute("ANALYZE bare_job")
    return timed(count, bare.drain)


def latency(count: int, spacing: float) -> Latencies:
    """Insert spaced rows, which another process claims one by one."""
    bare = empty()
    return served(count, spacing, bare.insert_stamp, serve)


def serve() -> None:
    """Claim and commit each row as it comes, stamp, then delete it."""
    bare = KINDS[connection.vendor]()
    bare.listen()
    while True:
        while rows := bare.claim(1):
            ((row_id, payload),) = rows
            stamp(*json.loads(payload))
            bare.delete([row_id])
        bare.wait()
