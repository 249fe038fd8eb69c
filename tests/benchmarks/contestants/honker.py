"""honker: its own worker with as many coroutines as cores, results kept; all on its defaults."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import honker
from django.conf import settings

from tests.benchmarks.spaced import Latencies, served, stamp
from tests.benchmarks.trials import Figure, timed

QUEUE = "benchmark"


def opened() -> Any:
    """Return its database, which is in WAL mode with ``synchronous`` NORMAL, as ours."""
    return honker.open(str(Path(settings.DATABASES["default"]["NAME"]).with_name("honker.sqlite3")))


def emptied() -> Any:
    """Return its database, without jobs."""
    folder = Path(settings.DATABASES["default"]["NAME"]).parent
    for path in folder.glob("honker.sqlite3*"):
        path.unlink()
    return opened()


def enqueue(count: int) -> Figure:
    """Enqueue one job after another."""
    nothing = emptied().task(queue=QUEUE)(int)
    return timed(count, lambda: [nothing() for _ in range(count)])


def drain(count: int) -> Figure:
    """Run all jobs."""
    database = emptied()
    left, ended = [count], asyncio.Event()

    @database.task(queue=QUEUE)  # type: ignore[untyped-decorator,unused-ignore]  # no types
    def nothing() -> int:
        left[0] -= 1
        if not left[0]:
            ended.set()
        return 1

    for _ in range(count):
        nothing()
    return timed(count, lambda: asyncio.run(database.run_workers(QUEUE, stop_event=ended)))


def latency(count: int, spacing: float) -> Latencies:
    """Enqueue spaced jobs."""
    return served(count, spacing, emptied().task(queue=QUEUE)(stamp), serve)


def serve() -> None:
    database = opened()
    database.task(queue=QUEUE)(stamp)
    asyncio.run(database.run_workers(QUEUE))
