"""``shared_task``: Celery's decorator, for tasks of this queue."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, overload

from ... import backoff, conf
from ...compat import (
    DEFAULT_TASK_BACKEND_ALIAS,
    DEFAULT_TASK_PRIORITY,
    DEFAULT_TASK_QUEUE_NAME,
    InvalidTask,
)
from ...tasks import WorkQueueTask
from .requests import Request, running
from .tasks import SharedTask

Errors = tuple[type[BaseException], ...]

UNSUPPORTED: Final[dict[str, str]] = {
    "base": "A task has no class of its own: put what it did around the body, in a decorator.",
    "rate_limit": "Give it a queue with few threads: runworker --queues … --threads 1.",
    "soft_time_limit": "Nothing is raised inside a task. Use time_limit, and leave the rest.",
    "pydantic": "Make the models in the task, from its arguments.",
    "typing": "Arguments are always checked against the signature.",
    "compression": "Arguments are columns of the database.",
    "link": "Enqueue the next task at the end of this one.",
    "link_error": "Dead jobs are in the admin; Django's task_finished tells of each.",
}
"""Options of Celery that mean something which this queue does not do, and what to do instead."""

ALREADY_SO: Final = frozenset(
    {"acks_late", "acks_on_failure_or_timeout", "reject_on_worker_lost", "track_started"}
    | {"trail", "throws", "store_errors_even_if_ignored", "send_events", "shared"}
)
"""Options of Celery that change nothing here: see the reference for what is always so."""

DEFAULT_RETRIES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of Celery's decorator that are taken, with Celery's defaults."""

    name: str = ""
    bind: bool = False
    max_retries: int | None = DEFAULT_RETRIES
    default_retry_delay: float = 180
    autoretry_for: Errors = ()
    dont_autoretry_for: Errors = ()
    retry_kwargs: Mapping[str, Any] = field(default_factory=dict)
    retry_backoff: bool | float = False
    retry_backoff_max: float = 600
    retry_jitter: bool = True
    ignore_result: bool = False
    time_limit: float | None = None
    expires: float | None = None
    queue: str | None = None
    priority: int | None = None
    serializer: str = "json"

    @property
    def most_retries(self) -> int | None:
        """The budget of a job: a retry may ask for less, and never for more."""
        given: int | None = self.retry_kwargs.get("max_retries", self.max_retries)
        if given is None or self.max_retries is None:
            return None
        return max(given, self.max_retries)


class AskedOnly(backoff.Backoff):
    """Gives up on every error, as Celery does, but leaves delays that a task asks for alone."""

    __slots__ = ()

    def delay_seconds(self, *_: Any, **__: Any) -> None:  # type: ignore[override]  # None: give up
        """Return None: only a retry that the task itself asks for is one."""


KNOWN: Final = frozenset(each.name for each in fields(Options))


@overload
def shared_task(function: Callable[..., Any], /) -> SharedTask: ...


@overload
def shared_task(**options: Any) -> Callable[[Callable[..., Any]], SharedTask]: ...


def shared_task(
    function: Callable[..., Any] | None = None, /, **options: Any
) -> SharedTask | Callable[[Callable[..., Any]], SharedTask]:
    """Declare a task of this queue in the way of Celery's ``shared_task``.

    Raises InvalidTask for an option, by its name, that this queue does not do.
    """
    given = _checked(options)

    def declare(func: Callable[..., Any]) -> SharedTask:
        _check_function(func, bind=given.bind)
        task = SharedTask(func, given)
        task.task = _work_queue_task(task)
        return task

    return declare if function is None else declare(function)


def _work_queue_task(task: SharedTask) -> WorkQueueTask:
    """Return the task of this queue whose body is *task*'s, retries and all."""
    options = task.options
    most = options.most_retries
    return WorkQueueTask(
        func=_body(task),
        takes_context=True,
        run_after=None,
        queue_name=DEFAULT_TASK_QUEUE_NAME if options.queue is None else options.queue,
        priority=DEFAULT_TASK_PRIORITY if options.priority is None else options.priority,
        backend=DEFAULT_TASK_BACKEND_ALIAS,
        max_attempts=conf.MAX_MAX_ATTEMPTS if most is None else most + 1,
        backoff=AskedOnly(
            base=options.default_retry_delay, factor=1, maximum=backoff.MAX_SECONDS, jitter=False
        ),
        timeout=options.time_limit,
        expires=options.expires,
        result_ttl=0 if options.ignore_result else None,
    )


def _body(task: SharedTask) -> Callable[..., Any]:
    """Return the function that a worker calls: the task's own, known as that one."""
    func = task.run

    def body(context: Any, *args: Any, **kwargs: Any) -> Any:
        with running(Request.of(context, args, kwargs)):
            return task.attempt(*args, **kwargs)

    body.__module__, body.__doc__ = func.__module__, func.__doc__
    body.__name__, body.__qualname__ = func.__name__, func.__qualname__
    given = list(inspect.signature(func).parameters.values())
    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_ONLY)
    rest = given[1:] if task.options.bind else given
    body.__signature__ = inspect.Signature([context, *rest])  # type: ignore[attr-defined]
    return body


def _checked(options: Mapping[str, Any]) -> Options:
    for name in options:
        if name in UNSUPPORTED:
            raise InvalidTask(
                f"{name} of Celery's shared_task is not supported, got {options[name]!r:.80}. "
                f"{UNSUPPORTED[name]}"
            )
        if name not in KNOWN | ALREADY_SO:
            known = sorted(KNOWN | ALREADY_SO)
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise InvalidTask(
                f"shared_task takes the options {', '.join(known)}; got {name!r}.{hint}"
            )
    given = Options(**{name: value for name, value in options.items() if name in KNOWN})
    if given.serializer != "json":
        raise _refusal("serializer", "json: nothing else is stored", given.serializer)
    for name in ("autoretry_for", "dont_autoretry_for"):
        value = getattr(given, name)
        if not all(isinstance(each, type) and issubclass(each, BaseException) for each in value):
            raise _refusal(name, "a tuple of exception classes", value)
    unknown = given.retry_kwargs.keys() - {"max_retries", "countdown"}
    if unknown:
        raise _refusal("retry_kwargs", "a dict of max_retries and countdown", given.retry_kwargs)
    for name, value in (
        ("max_retries", given.max_retries),
        ("retry_kwargs['max_retries']", given.retry_kwargs.get("max_retries")),
    ):
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and not (whole and 0 <= value < conf.MAX_MAX_ATTEMPTS):
            raise _refusal(name, f"None or from 0 to {conf.MAX_MAX_ATTEMPTS - 1}", value)
    return given


def _check_function(func: Callable[..., Any], *, bind: bool) -> None:
    name = getattr(func, "__qualname__", repr(func))
    if inspect.iscoroutinefunction(func):
        raise InvalidTask(
            f"shared_task takes plain functions, as Celery does, got the coroutine {name}. "
            "Declare it with django_workqueue.tasks.task."
        )
    if bind and not inspect.signature(func).parameters:
        raise InvalidTask(
            f"A task with bind=True must take itself as its first argument, got {name}(). "
            f"Write def {func.__name__}(self), or leave bind out."
        )


def _refusal(option: str, rule: str, value: Any) -> InvalidTask:
    return InvalidTask(f"{option} of shared_task must be {rule}, got {value!r:.80}.")
