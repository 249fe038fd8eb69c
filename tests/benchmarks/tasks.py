"""Tasks of the benchmarks."""

from __future__ import annotations

import os
import time

from django_workqueue.tasks import task
from tests.app.files import append
from tests.benchmarks import spaced


@task
def nothing() -> None:
    """Do nothing: what is measured is the way of a job."""


@task
def stamp(path: str, sent: float) -> None:
    """Write how many seconds ago *sent* was."""
    spaced.stamp(path, sent)


@task
def nap(path: str, name: str, seconds: float) -> None:
    """Write start and end with name, process and monotonic time."""
    append(path, f"start {name} {os.getpid()} {time.monotonic():.6f}")
    time.sleep(seconds)
    append(path, f"end {name} {os.getpid()} {time.monotonic():.6f}")
