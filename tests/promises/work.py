"""Jobs whose body is a function of the test, and workers in this process or in others."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from django_workqueue.tasks import Context
from django_workqueue.worker import Options, Worker
from tests.crash import tasks
from tests.ledger import START, Ledger


def enqueue(body: Callable[[Context], Any], **options: Any) -> uuid.UUID:
    """Enqueue a job that does *body* in this process."""
    name = uuid.uuid4().hex
    tasks.bodies[name] = body
    return uuid.UUID(tasks.call.using(**options).enqueue(name).id)


def nap(ledger: Ledger, length: float, **options: Any) -> uuid.UUID:
    """Enqueue a job that sleeps, in whatever process takes it."""
    return uuid.UUID(tasks.nap.using(**options).enqueue(str(ledger), length).id)


def drain(**options: Any) -> None:
    """Run a worker in this thread until nothing is due."""
    defaults: dict[str, Any] = {"threads": 1, "poll_seconds": 0.02, "drain": True, "sweep": False}
    Worker(Options(**{**defaults, **options})).run()


def starts(ledger: Ledger, count: int) -> Callable[[], bool]:
    return lambda: len(ledger.entries(START)) >= count
