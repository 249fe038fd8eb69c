"""What a row of django-celery-beat becomes here, or why nothing. Nothing is written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django_workqueue import registry
from django_workqueue.compat import InvalidTask
from django_workqueue.exceptions import WorkQueueError
from django_workqueue.models.fields import as_utc as as_aware
from django_workqueue.schedules import Definition, define

CELERY_S_OWN: Final = "celery."
SECONDS: Final = {"days": 86_400.0, "hours": 3_600.0, "minutes": 60.0, "seconds": 1.0} | {
    "microseconds": 1e-6
}


class Refused(Exception):
    """The row has no equal here. The message says why."""


@dataclass(frozen=True, slots=True)
class Converted:
    """A schedule; or, with *run_after*, a single job of *task*. *notes*: what is left behind."""

    definition: Definition
    task: Any
    paused: bool = False
    run_after: datetime | None = None
    notes: list[str] = field(default_factory=list)


def converted(row: Any, renamed: Mapping[str, str], now: datetime) -> Converted:
    """Return what a PeriodicTask becomes. Raises Refused."""
    if row.task.startswith(CELERY_S_OWN):
        raise Refused(f"{row.task} is Celery's own, and nothing here needs it")
    path = renamed.get(row.task, row.task)
    task = registry.find(path)
    if task is None:
        raise Refused(
            f"no task is declared under {path}; decorate it with @task, or name its new path with "
            f"--rename {row.task}=…"
        )
    run_after = _clocked(row, now)
    if row.one_off and run_after is None:
        raise Refused("it is one_off, and its rhythm has no one tick; enqueue a job in its place")
    when = {"every": timedelta(days=1)} if run_after is not None else _when(row)
    try:
        definition = define(
            row.name,
            task.using(queue_name=row.queue) if row.queue else task,
            args=json.loads(row.args or "[]"),
            kwargs=json.loads(row.kwargs or "{}"),
            expires=row.expire_seconds,
            **when,
        )
    except (WorkQueueError, InvalidTask, ValueError, TypeError) as error:
        raise Refused(str(error)) from error
    return Converted(definition, task, not row.enabled, run_after, _notes(row, now))


def _clocked(row: Any, now: datetime) -> datetime | None:
    """Return the moment of a clocked row; None: it is no such one."""
    if row.clocked is None:
        return None
    moment = as_aware(row.clocked.clocked_time)
    if moment <= now:
        raise Refused(f"its moment is past: {moment.isoformat()}")
    if not row.enabled:
        raise Refused("it is clocked and disabled: no job can wait like that")
    return moment


def _when(row: Any) -> dict[str, Any]:
    if row.crontab is not None:
        return _crontab(row.crontab)
    if row.interval is not None:
        seconds = row.interval.every * SECONDS[row.interval.period]
        if seconds < 1 or seconds % 1:
            raise Refused(f"its interval is {seconds:g} s, and ticks are whole seconds")
        return {"every": timedelta(seconds=seconds), "timezone": "UTC"}
    if row.solar is not None:
        raise Refused(f"solar events are not known here: {row.solar.event}")
    raise Refused("it has no crontab, interval or clocked moment")


def _crontab(crontab: Any) -> dict[str, Any]:
    day, weekday = crontab.day_of_month, crontab.day_of_week
    if not day.startswith("*") and not weekday.startswith("*"):
        raise Refused(
            f"Celery asks for day of month {day} and day of week {weekday}, a cron expression for "
            "either; keep one, and ask for the other in the task"
        )
    texts = (crontab.minute, crontab.hour, day, crontab.month_of_year, weekday)
    # Celery takes spaces after commas.
    expression = " ".join("".join(text.split()) for text in texts)
    return {"cron": expression, "timezone": str(crontab.timezone)}


def _notes(row: Any, now: datetime) -> list[str]:
    notes = []
    if row.start_time is not None and as_aware(row.start_time) > now:
        notes.append(f"start_time {row.start_time} is not kept: it begins at once")
    if row.expires is not None:
        notes.append(f"expires at {row.expires} is not kept: it goes on")
    if row.priority is not None:
        notes.append(f"priority {row.priority} is not kept: Celery's depends on its broker")
    if row.headers and row.headers != "{}":
        notes.append("headers are not kept")
    if row.exchange or row.routing_key:
        notes.append("exchange and routing key are not kept")
    return notes
