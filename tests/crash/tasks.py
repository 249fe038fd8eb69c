"""Tasks of the crash tests: what they do is told to a ledger outside of the database."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

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


@task(takes_context=True, backoff=0, max_attempts=3)
def kill_worker(context: Context, path: str) -> None:
    """End the process as the kernel does when memory is short."""
    note(path, ledger.START, context)
    os._exit(137)
