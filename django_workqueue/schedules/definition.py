"""What a schedule is, judged by the same rules whether code or a person says it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from django.conf import settings as django_settings

from .. import arguments, conf, payload
from .. import cron as expressions
from ..compat import InvalidTask, Task
from ..exceptions import CronError, ScheduleError, WorkQueueError
from ..tasks import WorkQueueTask

CATCH_UP: Final = ("skip", "latest", "all")
OVERLAP: Final = ("allow", "skip")
DEFAULT_MAX_CATCH_UP: Final = 64
MOST_CATCH_UP: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A schedule that was judged: what its row says, but for where it stands in time."""

    name: str
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    expression: str
    timezone: str
    queue_name: str
    priority: int
    expires_seconds: float | None
    max_attempts: int | None
    enabled: bool
    catch_up: str
    max_catch_up: int
    deadline_seconds: float | None
    overlap: str
    jitter_seconds: float
    options: dict[str, Any]


def define(
    name: str,
    task: Any,
    *,
    cron: str | None = None,
    every: timedelta | None = None,
    timezone: str | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    catch_up: str = "latest",
    max_catch_up: int = DEFAULT_MAX_CATCH_UP,
    deadline: float | None = None,
    overlap: str = "allow",
    expires: float | None = None,
    jitter: float = 0,
    enabled: bool = True,
) -> Definition:
    """Return the judged definition of a schedule.

    Raises CronError for an expression or zone, ScheduleError for anything else that is refused,
    and what `enqueue` raises for a call that the task or JSON refuses.
    """
    _checked(name, "its name", arguments.name, "name", name)
    ours = _task(name, task)
    facts = _call(name, ours, args, kwargs or {})
    zone = django_settings.TIME_ZONE if timezone is None else timezone
    expires = ours.expires if expires is None else expires
    definition = Definition(
        name=name,
        task=ours.module_path,
        **facts,
        expression=_expression(name, cron, every, zone),
        timezone=zone,
        queue_name=ours.queue_name,
        priority=int(ours.priority),
        expires_seconds=_seconds(name, "expires", expires, may_be_zero=False),
        max_attempts=ours.max_attempts,
        enabled=_flag(name, "enabled", enabled),
        catch_up=_choice(name, "catch_up", catch_up, CATCH_UP),
        max_catch_up=_max_catch_up(name, max_catch_up),
        deadline_seconds=_seconds(name, "deadline", deadline, may_be_zero=False),
        overlap=_choice(name, "overlap", overlap, OVERLAP),
        jitter_seconds=_seconds(name, "jitter", jitter) or 0.0,
    )
    if definition.expires_seconds is not None and jitter >= definition.expires_seconds:
        raise _refused(name, "jitter", "below its expires", jitter, "Jobs would expire unrun.")
    return definition


def _task(name: str, task: Any) -> WorkQueueTask:
    if isinstance(task, WorkQueueTask):
        return task
    if not isinstance(task, Task):
        told = getattr(task, "__qualname__", None) or repr(task)
        hint = "Decorate the function with @task."
        # A task in another's clothes, as contrib.celery has them.
        if isinstance(getattr(task, "task", None), Task):
            hint = f"Give {getattr(task, '__name__', 'it')}.task, the task of this queue."
        raise ScheduleError(f"The schedule {name!r} must have a task, got {told:.80}. {hint}")
    # Django's own class, where another backend is in the place of ours: in tests, say.
    return WorkQueueTask(
        func=task.func,
        priority=task.priority,
        queue_name=task.queue_name,
        backend=task.backend,
        takes_context=task.takes_context,
        run_after=None,
    )


def _call(
    name: str, task: WorkQueueTask, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what the row keeps of a call: arguments as the task gets them, and its options."""
    # The store is behind it, which needs the apps to be ready.
    from .. import calls

    try:
        job = calls.new_job(task, args, kwargs, conf.current())
    except (WorkQueueError, InvalidTask) as error:
        # In the message, for those who show that alone; class and attributes stay the fault's own.
        error.args = (f"The schedule {name!r}: {error}",)
        raise
    except Exception as error:
        error.add_note(f"In the schedule {name!r}.")
        raise
    call_args, call_kwargs = payload.decode_call(job.payload)
    return {
        "args": call_args,
        "kwargs": call_kwargs,
        # None stands for the setting, resolved when a job is made.
        "options": {
            "backend": job.backend,
            "timeout": job.timeout,
            "result_ttl": task.result_ttl,
            "dead_letter": job.dead_letter,
            "atomic": job.atomic,
            "unique_key": job.unique_key,
            "unique_while": job.unique_while,
        },
    }


def _expression(name: str, text: str | None, every: timedelta | None, zone: str) -> str:
    if (text is None) == (every is None):
        raise ScheduleError(
            f"The schedule {name!r} must have cron=… or every=…, got "
            f"{'neither' if text is None else 'both'}. Give one of them."
        )
    if every is not None:
        text = _rhythm(name, every)
    assert text is not None
    try:
        expressions.check(text)
        expressions.check_timezone(zone)
    except CronError as error:
        raise CronError(f"The schedule {name!r}: {error}") from error
    return text.strip()


def _rhythm(name: str, every: object) -> str:
    seconds = every.total_seconds() if isinstance(every, timedelta) else math.nan
    if not (seconds >= 1 and seconds.is_integer()):
        raise _refused(name, "every", "a timedelta of whole seconds, 1 or more", every)
    return f"@every {int(seconds)}s"


def _max_catch_up(name: str, value: Any) -> int:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if is_whole and 1 <= value <= MOST_CATCH_UP:
        return int(value)
    raise _refused(
        name,
        "max_catch_up",
        f"a whole number from 1 to {MOST_CATCH_UP}",
        value,
        f'The default is {DEFAULT_MAX_CATCH_UP}; for no catch-up use catch_up="skip".',
    )


def _seconds(name: str, option: str, value: Any, *, may_be_zero: bool = True) -> float | None:
    if value is None:
        return None
    seconds = _checked(
        name, option, arguments.seconds, option, value, may_be_zero=may_be_zero, hint=""
    )
    return float(seconds)


def _choice(name: str, option: str, value: Any, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise _refused(name, option, f"one of {', '.join(allowed)}", value)
    return str(value)


def _flag(name: str, option: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _refused(name, option, "True or False", value)
    return value


def _checked(name: object, option: str, check: Any, *given: Any, **rules: Any) -> Any:
    """Return what *check* returns; its refusal names the schedule."""
    try:
        return check(*given, **rules)
    except ValueError as error:
        told = str(error).strip()
        raise ScheduleError(f"The schedule {name!r:.80}: {told}", option=option) from error


def _refused(name: str, option: str, rule: str, value: object, hint: str = "") -> ScheduleError:
    text = f"{option} of the schedule {name!r} must be {rule}, got {value!r:.80}. {hint}"
    return ScheduleError(text.strip(), option=option)


def as_columns(definition: Definition) -> dict[str, Any]:
    """Return the columns of the row that *definition* decides, as they are compared and written."""
    names = Definition.__dataclass_fields__
    return {each: getattr(definition, each) for each in names if each != "name"}
