"""The backend for Django's Tasks: one class on Django 5.2 (backport), 6.0 and 6.1.

``django.tasks`` and the backport may each hold an instance, so none keeps state.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.core.checks import CheckMessage

from . import conf, registry
from .compat import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
)
from .exceptions import UnknownTask
from .states import Lane
from .tasks import WorkQueueTask


class WorkQueueBackend(BaseTaskBackend):
    """Jobs as rows of the queue's database."""

    task_class = WorkQueueTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    # The store is imported inside the methods: a module with tasks imports before apps are ready.

    def enqueue(  # type: ignore[override]  # looser than a signature's own types
        self, task: Task[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> TaskResult[..., Any]:
        """Write a job in the caller's transaction of the queue's database; return its result.

        Raises ArgumentsError for a call that does not fit the task's signature and PayloadError
        for arguments that JSON lacks, both before any SQL.
        """
        from . import calls, enqueueing

        ours, settings = self._ours(task), conf.current()
        job = calls.new_job(ours, args, kwargs, settings)
        placed = enqueueing.enqueue(job, ours.on_conflict, settings)
        return calls.result(type(self), ours, job, placed)

    def enqueue_in(
        self, alias: str, task: Task[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> TaskResult[..., Any]:
        """As enqueue(), in the caller's transaction of *alias*: the outbox's part.

        Where that is not the queue's database, a relay moves the job there after the commit,
        under the id that the result has.
        """
        from . import calls, moving
        from .store import queue_alias

        if alias == queue_alias():
            return self.enqueue(task, args, kwargs)
        ours = self._ours(task)
        job = calls.new_job(ours, args, kwargs, conf.current())
        return calls.result(type(self), ours, job, moving.leave(alias, job, ours.on_conflict))

    def enqueue_many(
        self, task: Task[..., Any], calls: Iterable[tuple[Sequence[Any], Mapping[str, Any]]]
    ) -> list[TaskResult[..., Any]]:
        """Write one job for each ``(args, kwargs)``, all or none; return results in order."""
        from . import calls as as_jobs
        from . import enqueueing

        ours, settings = self._ours(task), conf.current()
        jobs = as_jobs.new_jobs(ours, calls, settings)
        placed = enqueueing.enqueue_many(jobs, ours.on_conflict, settings)
        pairs = zip(jobs, placed, strict=True)
        return [as_jobs.result(type(self), ours, job, each) for job, each in pairs]

    def get_result(self, result_id: str) -> TaskResult[..., Any]:
        """Return the result of the job, live, dead or finished.

        Raises TaskResultDoesNotExist where there is none (any more), and UnknownTask where its
        task is not declared in this process.
        """
        from . import moving, results
        from .store import outbox_aliases, queue_alias

        found = None
        try:
            job_id = uuid.UUID(str(result_id))
        except ValueError:
            pass
        else:
            # Once more: it may have been moved between the first look and the second.
            found = (
                results.find(queue_alias(), job_id)
                or moving.find(job_id)
                or (results.find(queue_alias(), job_id) if outbox_aliases() else None)
            )
        if found is None or found.lane != Lane.TASK:
            raise TaskResultDoesNotExist(result_id)
        task = registry.find(found.task)
        if task is None:
            raise UnknownTask(
                f"The task of a result must be declared in this process, and {found.task!r} of job "
                f"{result_id} is not. Import the module that declares it, or restore the task."
            )
        return results.task_result(found, task)

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        return []

    def _ours(self, task: Task[..., Any]) -> WorkQueueTask:
        if not isinstance(task, WorkQueueTask):
            raise InvalidTask(
                f"{type(self).__qualname__} takes tasks declared for it, got {task!r:.80}. "
                "Declare the function with @task and this backend's alias."
            )
        self.validate_task(task)
        return task
