"""procrastinate with psycopg: ten coroutines at once in one worker, which deletes what it has run.

Coroutines, since its documentation keeps a concurrency above 1 for them. It claims and settles
one job a statement, whatever the concurrency.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import psycopg
from django.conf import settings
from procrastinate import App, PsycopgConnector, SyncPsycopgConnector

from tests.benchmarks.spaced import Latencies, served, stamp
from tests.benchmarks.trials import Figure, timed

CONCURRENCY: Final = 10
SCHEMA: Final = "procrastinate_trial"


async def nothing() -> None:
    """Do nothing."""


async def stamped(path: str, sent: float) -> None:
    stamp(path, sent)


def reached() -> dict[str, Any]:
    """Return what connects to a schema of its own."""
    given = settings.DATABASES["default"]
    server = {"host": given["HOST"], "user": given["USER"], "dbname": given["NAME"]}
    return {"kwargs": {**server, "options": f"-c search_path={SCHEMA}"}}


def emptied() -> dict[str, Any]:
    """Make that schema anew; return what connects to it."""
    options = reached()
    with psycopg.connect(**options["kwargs"], autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        connection.execute(f"CREATE SCHEMA {SCHEMA}")
    return options


def enqueue(count: int) -> Figure:
    """Call ``defer``, one job after another."""
    app = App(connector=SyncPsycopgConnector(**emptied()))
    task = app.task(name="nothing")(nothing)
    with app.open():
        app.schema_manager.apply_schema()
        task.defer()
        return timed(count, lambda: [task.defer() for _ in range(count)])


def drain_without_results(count: int) -> Figure:
    """Run all jobs; it keeps no results, and here no jobs that have run."""
    app = App(connector=PsycopgConnector(**emptied()))
    task = app.task(name="nothing")(nothing)

    async def fill() -> None:
        await app.open_async()
        await app.schema_manager.apply_schema_async()
        await task.batch_defer_async(*[{}] * count)

    async def work() -> None:
        await app.run_worker_async(concurrency=CONCURRENCY, wait=False, delete_jobs="always")

    with asyncio.Runner() as runner:
        runner.run(fill())
        figure = timed(count, lambda: runner.run(work()))
        left = runner.run(app.job_manager.list_jobs_async())
        runner.run(app.close_async())
    assert not list(left)
    return figure


def latency(count: int, spacing: float) -> Latencies:
    """Call ``defer`` for spaced jobs."""
    app = App(connector=SyncPsycopgConnector(**emptied()))
    task = app.task(name="stamp")(stamped)
    with app.open():
        app.schema_manager.apply_schema()

        def send(path: str, sent: float) -> None:
            task.defer(path=path, sent=sent)

        return served(count, spacing, send, serve)


def serve() -> None:
    app = App(connector=PsycopgConnector(**reached()))
    app.task(name="stamp")(stamped)
    app.run_worker(concurrency=CONCURRENCY, delete_jobs="always")
