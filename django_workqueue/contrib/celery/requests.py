"""What a Celery task knows of its present run: ``self.request``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One run of a task. *retries*: how often it was run before; *id* None: called directly."""

    id: str | None = None
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    retries: int = 0
    called_directly: bool = True
    is_eager: bool = False
    hostname: str | None = None
    headers: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, context: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Request:
        """Return the request of a job that runs. *context* is Django's where another backend is."""
        result = context.task_result
        workers = result.worker_ids
        return cls(
            id=result.id,
            args=args,
            kwargs=kwargs,
            retries=max(context.attempt - 1, 0),
            called_directly=False,
            hostname=workers[-1] if workers else None,
            headers=getattr(context, "headers", {}),
        )


_current: ContextVar[Request | None] = ContextVar("workqueue_celery_request", default=None)
_DIRECT = Request()


def current() -> Request:
    """Return the request of the task that runs in this thread; of a direct call elsewhere."""
    return _current.get() or _DIRECT


@contextmanager
def running(request: Request | None) -> Iterator[None]:
    """Let *request* be the current one; None: a body that is called directly."""
    token = _current.set(request)
    try:
        yield
    finally:
        _current.reset(token)
