"""Celery on either side of the queue.

``shared_task``: a Celery project's task modules, with one import changed.
``celery_destination``: messages of the outbox for a Celery task of another service.
"""

from typing import TYPE_CHECKING, Any

from ...exceptions import MaxRetriesExceededError, TaskFailed
from .declaring import shared_task
from .results import AsyncResult
from .tasks import SharedTask

if TYPE_CHECKING:
    from .destination import celery_destination

__all__ = [
    "AsyncResult",
    "MaxRetriesExceededError",
    "SharedTask",
    "TaskFailed",
    "celery_destination",
    "shared_task",
]

_CANVAS = frozenset({"chain", "group", "chord", "signature", "subtask", "chunks", "xmap"})


def __getattr__(name: str) -> Any:
    if name == "celery_destination":
        # Only it needs Celery: a project that left Celery has it installed no more.
        from .destination import celery_destination

        return celery_destination
    if name in _CANVAS:
        raise ImportError(
            f"{name} of Celery is not supported: signatures, chains and groups are not. "
            "Enqueue the next task at the end of the one before it."
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
