"""Tasks of the crash tests: what they do is told to a ledger outside of the database."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.db.models import F

from django_workqueue.models import Lock
from django_workqueue.tasks import Context, task
from tests import ledger

bodies: dict[str, Callable[[Context], Any]] = {}
"""What `call` does, by name, in the process of the test itself."""


def note(path: str, event: str, context: Context) -> None:
    """Write down what the job of *context* does."""
    ledger.write(
        path,
        event,
        job_id=context.job_id,
        attempt=context.charged_attempt,
        fence=context.fence,
    )


@task(takes_context=True, backoff=0)
def call(context: Context, name: str) -> Any:
    return bodies[name](context)


@task(takes_context=True, backoff=0)
def nap(context: Context, path: str, seconds: float) -> str:
    """Say that it starts, sleep, say that it ended."""
    note(path, ledger.START, context)
    time.sleep(seconds)
    note(path, ledger.END, context)
    return "slept"


@task(takes_context=True, backoff=0)
def reckon(context: Context, path: str, seconds: float) -> int:
    """Keep the processor busy in Python, without a pause in which another thread could run."""
    note(path, ledger.START, context)
    ends, number = time.monotonic() + seconds, 1
    while time.monotonic() < ends:
        number = number * 31 % 1_000_003
    note(path, ledger.END, context)
    return number


@task(takes_context=True, backoff=0)
def work_on(context: Context, path: str, marker: str) -> None:
    """Say again and again that it works, until there is a file *marker*.end."""
    note(path, ledger.START, context)
    while not Path(f"{marker}.end").exists():
        with Path(marker).open("a") as file:
            file.write(".")
        time.sleep(0.01)
    note(path, ledger.END, context)


@task(takes_context=True, backoff=0, max_attempts=3)
def kill_worker(context: Context, path: str) -> None:
    """End the process as the kernel does when memory is short."""
    note(path, ledger.START, context)
    os._exit(137)


@task(takes_context=True, backoff=0, max_attempts=50, atomic=True)
def add_one(context: Context, path: str, name: str, seconds: float) -> None:
    """Add one to a counter, in one transaction with the job's completion."""
    add(context, path, name, seconds)


@task(takes_context=True, backoff=0, max_attempts=50)
def add_one_plainly(context: Context, path: str, name: str, seconds: float) -> None:
    """Add one to a counter, in a transaction of its own."""
    add(context, path, name, seconds)


def add(context: Context, path: str, name: str, seconds: float) -> None:
    note(path, ledger.START, context)
    # A row of a table that is there anyway; nothing sweeps it.
    Lock.objects.filter(name=name).update(token=F("token") + 1)
    time.sleep(seconds)
    note(path, ledger.END, context)


@task(takes_context=True, backoff=0)
async def doze(context: Context, path: str, seconds: float) -> str:
    """Do as `nap` does, on the event loop; say if it was cancelled."""
    note(path, ledger.START, context)
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        note(path, "cancelled", context)
        raise
    note(path, ledger.END, context)
    return "slept"


@task(takes_context=True, backoff=0, max_attempts=3)
async def akill_worker(context: Context, path: str) -> None:
    """End the process from a coroutine."""
    note(path, ledger.START, context)
    os._exit(137)
