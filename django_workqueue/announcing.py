"""Django's face of a run: its TaskResult, and the signals that tell of it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

from django.core.signals import setting_changed
from django.dispatch import receiver

from . import payload
from .compat import (
    BaseTaskBackend,
    TaskResult,
    TaskResultStatus,
    task_backends,
    task_finished,
    task_started,
)
from .job import Job, Verb
from .results import task_error
from .store.records import Claim
from .tasks import WorkQueueTask

logger = logging.getLogger("django_workqueue.executor")


@functools.cache
def sender(backend: str) -> type[BaseTaskBackend]:
    """Return the class of the backend of that alias, as which Django's signals are sent."""
    return type(task_backends[backend])


@receiver(setting_changed)
def _forget_senders(*, setting: str, **more: Any) -> None:
    if setting == "TASKS":
        sender.cache_clear()


def tell_started(job: Job) -> None:
    """Send Django's ``task_started`` for a job that has its result."""
    assert job.result is not None
    task_started.send_robust(job.sender, task_result=job.result)


async def atell_started(job: Job) -> None:
    """Do the same from an event loop: receivers may block, and run in the thread of the ORM."""
    assert job.result is not None
    await task_started.asend_robust(job.sender, task_result=job.result)


def tell_finished(jobs: Sequence[Job]) -> None:
    """Send Django's ``task_finished`` for settled jobs that came to their end. Never raises."""
    for job in jobs:
        try:
            _tell_finished(job)
        except BaseException:
            # sys.exit() of a receiver must not end a thread of the worker either.
            logger.exception("receiver of task_finished", extra=job.claim.log_fields)


def _tell_finished(job: Job) -> None:
    if job.result is None or job.outcome is None:
        return
    result, outcome = job.result, job.outcome
    good = outcome.verb is Verb.ACK
    status = TaskResultStatus.SUCCESSFUL if good else TaskResultStatus.FAILED
    object.__setattr__(result, "status", status)
    object.__setattr__(result, "finished_at", job.claim.moment(outcome.ended))
    if good and outcome.value != "null":
        object.__setattr__(result, "_return_value", payload.decode(outcome.value))
    elif outcome.error is not None:
        result.errors.append(task_error(outcome.error.as_json()))
    task_finished.send_robust(job.sender, task_result=result)


def running_result(
    claim: Claim, task: WorkQueueTask, args: list[Any], kwargs: dict[str, Any]
) -> TaskResult[..., Any]:
    """Return Django's TaskResult of a job that is about to run."""
    errors: list[dict[str, Any]] = _list(claim.errors)
    worker_ids: list[str] = _list(claim.worker_ids)
    return TaskResult(
        task=task,
        id=str(claim.id),
        status=TaskResultStatus.RUNNING,
        enqueued_at=claim.enqueued_at,
        started_at=claim.claimed_at,
        finished_at=None,
        last_attempted_at=claim.claimed_at,
        args=args,
        kwargs=kwargs,
        backend=claim.backend,
        errors=[task_error(error) for error in errors],
        worker_ids=[*worker_ids, claim.worker_id],
    )


def _list(text: str) -> list[Any]:
    """Return a stored list, which for most jobs is empty."""
    decoded: list[Any] = [] if text == "[]" else payload.decode(text)
    return decoded
