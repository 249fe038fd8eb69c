"""A job that is part of the data's transaction, wherever its queue is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .databases import database_of

if TYPE_CHECKING:
    from ..compat import Task, TaskResult


def enqueue(
    task: Task[..., Any], /, *args: Any, using: str | None = None, **kwargs: Any
) -> TaskResult[..., Any]:
    """Write a job of *task* in the caller's transaction of *using*; return its result, READY.

    *using* None: the first of OUTBOX_DATABASES. Where the queue is in another database, the job is
    moved there after the commit, under the same id, once. Everything else is as in
    ``task.enqueue``. Raises ValueError for a database whose outbox nobody relays.
    """
    from ..store import queue_alias

    alias = using if using == queue_alias() else database_of(using, "outbox.enqueue()")
    enqueue_in = getattr(task.get_backend(), "enqueue_in", None)
    if enqueue_in is None:
        # Django's Immediate or Dummy, say: there is no queue to be in another database.
        return task.enqueue(*args, **kwargs)
    result: TaskResult[..., Any] = enqueue_in(alias, task, args, kwargs)
    return result
