"""The ``task`` decorator and what it makes: Django's Task with this queue's options."""

from __future__ import annotations

import difflib
import inspect
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from threading import Event
from typing import Any, Final, Literal, overload

from asgiref.sync import sync_to_async

from . import clock, registry
from .backoff import Backoff, Policy, check_policy
from .compat import (
    DEFAULT_TASK_BACKEND_ALIAS,
    DEFAULT_TASK_PRIORITY,
    DEFAULT_TASK_QUEUE_NAME,
    InvalidTask,
    Task,
    TaskContext,
    TaskResult,
)
from .exceptions import BackoffError, Retry, Snooze, Terminal
from .states import UniqueWhile

__all__ = [
    "Backoff",
    "Context",
    "Retry",
    "Snooze",
    "Terminal",
    "WorkQueueTask",
    "task",
]

Errors = type[BaseException] | tuple[type[BaseException], ...]
UniqueKey = str | Callable[..., str] | None
Conflict = Literal["return", "raise", "replace"]

CONFLICTS: Final = ("return", "raise", "replace")
MAX_MAX_ATTEMPTS: Final = 32_767
# A moment that far from now is still within every database's calendar, and Python's.
MAX_SECONDS: Final = 100 * 366 * 86_400


# Without slots: `calls` leaves on it what it has found out of a task.
@dataclass(frozen=True, kw_only=True)
class WorkQueueTask(Task):  # type: ignore[type-arg]  # not generic when it runs
    """A task with options. None stands for the setting, resolved when a job is enqueued."""

    max_attempts: int | None = None
    backoff: Policy = None
    retry_on: Errors = (Exception,)
    terminal_on: Errors = ()
    # Seconds: for one attempt; after it became due; that a result is kept.
    timeout: float | None = None
    expires: float | None = None
    result_ttl: float | None = None
    unique_key: UniqueKey = None
    unique_while: str = UniqueWhile.LIVE.value
    on_conflict: Conflict = "return"
    atomic: bool = False
    dead_letter: bool = True
    headers: Mapping[str, Any] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        check_options(self)
        super().__post_init__()
        registry.add(self)

    def using(self, **changes: Any) -> WorkQueueTask:
        """Return a copy with other options: those that a job carries, ``run_after`` and
        ``headers``. Raises TypeError for any other name.
        """
        for name in changes:
            # A worker finds the declared task, not this copy: such a change would do nothing.
            if name in OF_THE_TASK:
                raise TypeError(
                    f"{name} belongs to the task, and no job carries another one. "
                    f"Declare it: @task({name}=…)."
                )
            if name not in JOB_OPTIONS:
                raise _unknown("using()", JOB_OPTIONS, name)
        # As in Django, None leaves these as they are.
        kept = ("priority", "queue_name", "run_after", "backend")
        given = {k: v for k, v in changes.items() if v is not None or k not in kept}
        return replace(self, **given)

    def enqueue_many(
        self, calls: Iterable[tuple[Sequence[Any], Mapping[str, Any]]]
    ) -> list[TaskResult[..., Any]]:
        """Enqueue one job for each ``(args, kwargs)`` in bounded statements; results in order."""
        backend: Any = self.get_backend()
        many = getattr(backend, "enqueue_many", None)
        if many is None:
            return [backend.enqueue(self, list(args), dict(kwargs)) for args, kwargs in calls]
        results: list[TaskResult[..., Any]] = many(self, calls)
        return results

    async def aenqueue_many(
        self, calls: Iterable[tuple[Sequence[Any], Mapping[str, Any]]]
    ) -> list[TaskResult[..., Any]]:
        """Do as enqueue_many() does, from a coroutine."""
        return await sync_to_async(self.enqueue_many, thread_sensitive=True)(calls)


OPTIONS: Final = frozenset(each.name for each in fields(WorkQueueTask)) - {"func", "takes_context"}
OF_THE_TASK: Final = frozenset({"backoff", "retry_on", "terminal_on", "atomic", "takes_context"})
OF_A_CALL: Final = frozenset({"run_after", "headers"})
JOB_OPTIONS: Final = OPTIONS - OF_THE_TASK


@overload
def task(function: Callable[..., Any], /) -> WorkQueueTask: ...


@overload
def task(
    *,
    queue_name: str = ...,
    priority: int = ...,
    takes_context: bool = ...,
    backend: str = ...,
    max_attempts: int | None = ...,
    backoff: Policy = ...,
    retry_on: Errors = ...,
    terminal_on: Errors = ...,
    timeout: float | None = ...,
    expires: float | None = ...,
    unique_key: UniqueKey = ...,
    unique_while: Literal["queued", "live"] = ...,
    on_conflict: Conflict = ...,
    atomic: bool = ...,
    result_ttl: float | None = ...,
    dead_letter: bool = ...,
) -> Callable[[Callable[..., Any]], WorkQueueTask]: ...


def task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    queue_name: str = DEFAULT_TASK_QUEUE_NAME,
    priority: int = DEFAULT_TASK_PRIORITY,
    takes_context: bool = False,
    backend: str = DEFAULT_TASK_BACKEND_ALIAS,
    **options: Any,
) -> WorkQueueTask | Callable[[Callable[..., Any]], WorkQueueTask]:
    """Make a module-level function a task, on whatever backend the project has.

    With Django's Immediate or Dummy backend, in tests say, the options are accepted and ignored.
    Raises InvalidTask for an option that cannot be used.
    """
    for name in options:
        if name not in OPTIONS - OF_A_CALL:
            raise _unknown("@task", OPTIONS - OF_A_CALL, name)

    def declare(func: Callable[..., Any]) -> WorkQueueTask:
        return WorkQueueTask(
            func=func,
            priority=priority,
            queue_name=queue_name,
            backend=backend,
            takes_context=takes_context,
            run_after=None,
            **options,
        )

    return declare if function is None else declare(function)


def _unknown(taker: str, known: frozenset[str], name: str) -> TypeError:
    """Return the error for an option that *taker* does not take: what to write in its place."""
    near = difflib.get_close_matches(name, sorted(known), n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    if name in OF_A_CALL:
        hint = f" It belongs to a call: use .using({name}=…)."
    return TypeError(f"{taker} takes the options {', '.join(sorted(known))}; got {name!r}.{hint}")


def check_options(target: WorkQueueTask) -> None:
    """Raise InvalidTask for the first option that cannot be used; put the rest in their form."""
    _check_numbers(target)
    _check_moment(target)
    for option in ("retry_on", "terminal_on"):
        object.__setattr__(target, option, _classes(target, option))
    for option, allowed in (("unique_while", tuple(UniqueWhile)), ("on_conflict", CONFLICTS)):
        if getattr(target, option) not in allowed:
            raise refusal(target, option, f"one of {', '.join(allowed)}")
    key = target.unique_key
    if key is not None and not isinstance(key, str) and not callable(key):
        raise refusal(target, "unique_key", "a string or a function of the arguments")
    for option in ("atomic", "dead_letter"):
        if not isinstance(getattr(target, option), bool):
            raise refusal(target, option, "True or False")
    if target.atomic and inspect.iscoroutinefunction(target.func):
        raise refusal(target, "atomic", "False for a coroutine: transactions belong to a thread")
    try:
        object.__setattr__(target, "backoff", check_policy(target.backoff))
    except BackoffError as error:
        raise InvalidTask(f"backoff of task {_name(target)}: {error}") from error


def _check_numbers(target: WorkQueueTask) -> None:
    most = target.max_attempts
    if most is not None and not (_is_whole(most) and 1 <= most <= MAX_MAX_ATTEMPTS):
        raise refusal(target, "max_attempts", f"a whole number from 1 to {MAX_MAX_ATTEMPTS}")
    for option, may_be_zero in (("timeout", False), ("expires", False), ("result_ttl", True)):
        value = getattr(target, option)
        if value is None:
            continue
        if not _is_seconds(value) or (value == 0 and not may_be_zero):
            rule = "0 or more seconds" if may_be_zero else "seconds above 0"
            raise refusal(target, option, f"{rule}, and at most {MAX_SECONDS}")


def _check_moment(target: WorkQueueTask) -> None:
    # The ends of the calendar: no offset can be added there, and SQLite's texts sort wrongly.
    moment: Any = target.run_after
    if moment is None or (isinstance(moment, datetime) and 1970 <= moment.year <= 9000):
        return
    raise refusal(target, "run_after", "a datetime of a year from 1970 to 9000")


def refusal(target: WorkQueueTask, option: str, rule: str) -> InvalidTask:
    """Return the error for an option of *target* that breaks its rule."""
    value = getattr(target, option)
    return InvalidTask(f"{option} of task {_name(target)} must be {rule}, got {value!r:.80}.")


def _name(target: WorkQueueTask) -> str:
    return getattr(target.func, "__qualname__", repr(target.func))


def _classes(target: WorkQueueTask, option: str) -> tuple[Any, ...]:
    value = getattr(target, option)
    classes = value if isinstance(value, tuple | list) else (value,)
    for each in classes:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise refusal(target, option, "exception classes")
    return tuple(classes)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_seconds(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 <= value <= MAX_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(TaskContext):  # type: ignore[misc,type-arg]  # frozen, and not generic, when it runs
    """What a task with ``takes_context=True`` is given first."""

    job_id: uuid.UUID
    charged_attempt: int
    fence: int
    scheduled_for: datetime | None
    headers: Mapping[str, Any]
    # Set when a cancel was asked, or the time limit passed; when another worker may have the job.
    cancelled: Event
    lease_lost: Event
    ends: float | None
    write_progress: Callable[[dict[str, Any]], None]

    @property
    def attempt(self) -> int:
        """The number of this charged start, from 1."""
        return self.charged_attempt

    def remaining(self) -> float | None:
        """Return the seconds until the attempt's time limit, 0.0 past it; None: no limit."""
        return None if self.ends is None else max(self.ends - clock.monotonic(), 0.0)

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Show how far the task is; written with the next extension of the lease."""
        self.write_progress({"done": done, "total": total, "note": note})
