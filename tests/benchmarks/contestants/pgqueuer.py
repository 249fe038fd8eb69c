"""pgqueuer with asyncpg, as its documentation has it, in batches of 100."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import asyncpg
from django.conf import settings
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import AsyncpgDriver
from pgqueuer.types import QueueExecutionMode

from tests.benchmarks.trials import Figure, timed

BATCH: Final = 100


async def connected() -> tuple[Any, Any]:
    given = settings.DATABASES["default"]
    connection = await asyncpg.connect(
        host=given["HOST"], user=given["USER"], database=given["NAME"]
    )
    driver = AsyncpgDriver(connection)
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
        driver, queries = await connected()
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
        _, queries = runner.run(connected())
        return timed(count, lambda: runner.run(run(queries)))
