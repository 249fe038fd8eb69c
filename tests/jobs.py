"""Jobs of the tests' tasks: what they do, a worker in this thread, and where they are now."""

from __future__ import annotations

import itertools
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final, cast

import pytest
from django.test import override_settings

from django_workqueue.compat import TaskResult
from django_workqueue.ids import new_token
from django_workqueue.models import DeadJob, LiveJob, Result
from django_workqueue.settler import Settled
from django_workqueue.states import DeathReason, Lane
from django_workqueue.store import Claim, ErrorRecord, get_store
from django_workqueue.worker import Options, Worker
from tests.app import tasks

app: Any = tasks
"""The tasks, untyped: tests call them wrongly too."""

TERMINAL: Final = DeathReason.TERMINAL

_numbers = itertools.count()


def body(function: Callable[..., Any]) -> str:
    """Return the name under which the task `tasks.run` and its kin find *function*."""
    name = f"{next(_numbers)} {getattr(function, '__name__', '')}"
    tasks.bodies[name] = function
    return name


def raising(error: BaseException) -> str:
    """Return the name of a body that raises *error*."""

    def fail(*args: Any) -> None:
        raise error

    return body(fail)


def enqueue(function: Callable[..., Any], *args: Any, **options: Any) -> TaskResult[..., Any]:
    """Enqueue a job that calls *function* in this process; *options* are those of ``using``."""
    return tasks.run.using(**options).enqueue(body(function), *args)


def new_worker(
    on_settled: Callable[[Settled], None] = lambda settled: None, **options: Any
) -> Worker:
    """Return a worker for this process that ends when nothing is due, unless *options* differ."""
    defaults: dict[str, Any] = {"threads": 1, "poll_seconds": 0.02, "drain": True, "sweep": False}
    return Worker(Options(**{**defaults, **options}), on_settled=on_settled)


def drain(**options: Any) -> list[Settled]:
    """Run a worker in this thread until nothing is due; return its settles in order."""
    settled: list[Settled] = []
    new_worker(settled.append, **options).run()
    return settled


def claim(queue_name: str = "default", limit: int = 1, lease_seconds: float = 30) -> list[Claim]:
    """Claim ready jobs for a worker that does not exist."""
    return get_store().claim(
        Lane.TASK,
        queue_name,
        worker_id="a-worker-of-the-tests",
        token=new_token(),
        limit=limit,
        lease_seconds=lease_seconds,
    )


def error_of(claim: Claim, outcome: str = "failed") -> ErrorRecord:
    """Return the record of an attempt that raised ValueError."""
    return ErrorRecord(
        attempt=claim.attempt,
        worker=claim.worker_id,
        started=claim.claimed_at,
        ended=claim.claimed_at,
        outcome=outcome,
        exception_class="builtins.ValueError",
        message="boom",
    )


def in_an_hour() -> datetime:
    return get_store().now() + timedelta(hours=1)


def live(result: TaskResult[..., Any]) -> Any:
    return LiveJob.objects.get(pk=uuid.UUID(result.id))


def dead(result: TaskResult[..., Any]) -> Any:
    return DeadJob.objects.get(pk=uuid.UUID(result.id))


def finished(result: TaskResult[..., Any]) -> Any:
    return Result.objects.get(pk=uuid.UUID(result.id))


def counts() -> tuple[int, int, int]:
    """Return how many jobs are live, dead and finished."""
    return LiveJob.objects.count(), DeadJob.objects.count(), Result.objects.count()


def outcomes(errors: Iterable[dict[str, Any]]) -> list[str]:
    return [cast("str", error["outcome"]) for error in errors]


def logged(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    """Return the messages of our own loggers, of *level* and above."""
    records = [each for each in caplog.records if each.name.startswith("django_workqueue")]
    return [record.message for record in records if record.levelno >= level]


@contextmanager
def workqueue(**settings: Any) -> Iterator[None]:
    """Put *settings* in the place of those of WORKQUEUE."""
    with override_settings(WORKQUEUE=settings):
        yield
