"""huey: its consumer of four threads, results kept; on SQLite with WAL and NORMAL, as ours."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

from django.conf import settings
from huey import Huey
from huey.storage import PostgresStorage, SqliteStorage

from tests.benchmarks.spaced import Latencies, served, stamp
from tests.benchmarks.trials import Figure, timed


class Storage(SqliteStorage):  # type: ignore[misc,unused-ignore]  # huey has no types
    """huey knows of ``synchronous`` only OFF and FULL."""

    def _create_connection(self) -> Any:
        connection = super()._create_connection()
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection


def opened() -> Any:
    """Return its queue in the database that is measured."""
    given = settings.DATABASES["default"]
    if given["ENGINE"].endswith("postgresql"):
        server = {"host": given["HOST"], "user": given["USER"], "dbname": given["NAME"]}
        return Huey("benchmark", storage_class=PostgresStorage, **server)
    path = Path(given["NAME"]).with_name("huey.sqlite3")
    return Huey("benchmark", storage_class=Storage, filename=str(path), journal_mode="wal")


def consumer_of(queue: Any) -> Any:
    return queue.create_consumer(workers=4, periodic=False, check_worker_health=False)


def emptied() -> tuple[Any, Any, threading.Event, list[int]]:
    """Return an empty queue, its task, and what says that all of them have run."""
    queue = opened()
    queue.storage.flush_all()
    ended, left = threading.Event(), [0]
    lock = threading.Lock()

    @queue.task()  # type: ignore[untyped-decorator,unused-ignore]  # huey has no types
    def nothing() -> int:
        with lock:
            left[0] -= 1
            if not left[0]:
                ended.set()
        return 1

    return queue, nothing, ended, left


def enqueue(count: int) -> Figure:
    """Enqueue one job after another."""
    _, nothing, _, _ = emptied()
    return timed(count, lambda: [nothing() for _ in range(count)])


def drain(count: int) -> Figure:
    """Run all jobs."""
    queue, nothing, ended, left = emptied()
    left[0] = count
    for _ in range(count):
        nothing()
    consumer = consumer_of(queue)

    def run() -> None:
        consumer.start()
        assert ended.wait(300)

    figure = timed(count, run)
    consumer.stop()
    return figure


def latency(count: int, spacing: float) -> Latencies:
    """Enqueue spaced jobs."""
    queue = opened()
    queue.storage.flush_all()
    return served(count, spacing, queue.task()(stamp), serve)


def serve() -> None:
    queue = opened()
    queue.task()(stamp)
    consumer_of(queue).start()
    signal.pause()
