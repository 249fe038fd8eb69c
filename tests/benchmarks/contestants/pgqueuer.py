"""pgqueuer with asyncpg, as its documentation has it, in batches of 100."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import asyncpg
from django.conf import settings
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import AsyncpgDriver
from pgqueuer.types import QueueExecutionMode

from tests.benchmarks.spaced import Latencies, served, stamp
from tests.benchmarks.trials import Figure, timed

BATCH: Final = 100


async def connected() -> AsyncpgDriver:
    given = settings.DATABASES["default"]
    return AsyncpgDriver(
        await asyncpg.connect(host=given["HOST"], user=given["USER"], database=given["NAME"])
    )


async def installed() -> tuple[Any, Any]:
    """Connect, and make its tables anew."""
    driver = await connected()
    queries = Queries(driver)
    if await queries.schema_is_installed():
        await queries.uninstall()
    await queries.install()
    return driver, queries


async def fill(queries: Any, count: int) -> None:
    for start in range(0, count, 5_000):
        some = min(5_000, count - start)
        await queries.enqueue(["nothing"] * some, [None] * some, [0] * some)


def drain_without_results(count: int) -> Figure:
    """Run all jobs; it keeps no results."""

    async def filled() -> Any:
        driver, queries = await installed()
        await fill(queries, count)
        worker = PgQueuer(driver)

        async def nothing(job: Any) -> None:
            pass

        worker.entrypoint("nothing")(nothing)
        return worker

    async def run(worker: Any) -> None:
        await worker.run(batch_size=BATCH, mode=QueueExecutionMode.drain)

    with asyncio.Runner() as runner:
        worker = runner.run(filled())
        return timed(count, lambda: runner.run(run(worker)))


def enqueue(count: int) -> Figure:
    """Enqueue one job after another."""

    async def run(queries: Any) -> None:
        for _ in range(count):
            await queries.enqueue("nothing", None)

    with asyncio.Runner() as runner:
        _, queries = runner.run(installed())
        return timed(count, lambda: runner.run(run(queries)))


def latency(count: int, spacing: float) -> Latencies:
    """Enqueue spaced jobs for a worker of its default options."""
    with asyncio.Runner() as runner:
        _, queries = runner.run(installed())

        def send(path: str, sent: float) -> None:
            runner.run(queries.enqueue("stamp", json.dumps([path, sent]).encode()))

        return served(count, spacing, send, serve)


def serve() -> None:
    async def run() -> None:
        worker = PgQueuer(await connected())

        async def stamped(job: Any) -> None:
            stamp(*json.loads(job.payload))

        worker.entrypoint("stamp")(stamped)
        await worker.run()

    asyncio.run(run())
