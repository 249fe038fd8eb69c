"""What the contestants of `latency` share: jobs sent one by one to a worker that waits for them."""

from __future__ import annotations

import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.app.files import append
from tests.processes import lines, wait_until

SETTLE_SECONDS: Final = 2.0
"""After the first job, so that what a worker does at its start is over."""


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds from before a job was sent to the start of its task, and how long the sending took.

    *note* says what else is known.
    """

    started: list[float]
    sent: list[float]
    note: str = ""


Send = Callable[[str, float], object]
"""Sends a job that is to call `stamp` with these two."""


def stamp(path: str, sent: float) -> None:
    """Write how many seconds ago *sent* was: monotonic time is one for all of a machine."""
    append(path, f"{time.monotonic() - sent:.6f}")


@contextmanager
def stamps() -> Iterator[str]:
    """Make the path of a file in which tasks leave their stamps."""
    with tempfile.TemporaryDirectory() as folder:
        yield str(Path(folder) / "stamps")


def served(count: int, spacing: float, send: Send, serve: Callable[[], None]) -> Latencies:
    """Measure a worker that is a function *serve* of a contestant's module.

    It works in a process of its own, which imports that module for itself and is killed at the
    end.
    """
    with stamps() as path:
        process = multiprocessing.get_context("spawn").Process(target=serve)
        process.start()
        try:
            first(send, path)
            return spaced(count, spacing, send, path)
        finally:
            process.kill()
            process.join()


def first(send: Send, path: str) -> None:
    """Send one job and wait until it has run, so that the worker is up; then forget it."""
    send(path, time.monotonic())
    wait_until(lambda: stamped(path), "the first job")
    time.sleep(SETTLE_SECONDS)
    os.truncate(path, 0)


def spaced(count: int, spacing: float, send: Send, path: str) -> Latencies:
    """Send *count* jobs, *spacing* seconds from one to the next on average; wait for them all."""
    sent = []
    for _ in range(count):
        # Jittered, so that no rhythm of the worker's is met again and again.
        time.sleep(random.uniform(0.5, 1.5) * spacing)
        began = time.monotonic()
        send(path, began)
        sent.append(time.monotonic() - began)
    wait_until(lambda: len(stamped(path)) >= count, "the last job")
    assert len(stamped(path)) == count
    return Latencies(stamped(path), sent)


def stamped(path: str) -> list[float]:
    return [float(line) for line in lines(Path(path))]
