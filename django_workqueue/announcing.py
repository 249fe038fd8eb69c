"""Django's face of a run: its TaskResult, and the signals that tell of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from . import payload
from .compat import BaseTaskBackend, TaskResult, TaskResultStatus, task_finished, task_started
from .job import Job, Verb
from .results import task_error
from .store.records import Claim
from .tasks import WorkQueueTask

logger = logging.getLogger("django_workqueue.executor")


def tell_started(job: Job, task: WorkQueueTask, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Give the job its TaskResult and send ``task_started``."""
    job.result = _running_result(job.claim, task, args, kwargs)
    task_started.send_robust(type(task.get_backend()), task_result=job.result)


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
    if good:
        object.__setattr__(result, "_return_value", payload.decode(outcome.value))
    elif outcome.error is not None:
        result.errors.append(task_error(outcome.error.as_json()))
    backend: type[BaseTaskBackend] = type(result.task.get_backend())
    task_finished.send_robust(backend, task_result=result)


def _running_result(
    claim: Claim, task: WorkQueueTask, args: list[Any], kwargs: dict[str, Any]
) -> TaskResult[..., Any]:
    errors: list[dict[str, Any]] = payload.decode(claim.errors)
    worker_ids: list[str] = payload.decode(claim.worker_ids)
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
