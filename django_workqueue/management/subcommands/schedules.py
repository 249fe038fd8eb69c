"""workqueue schedules: every schedule with its next ticks."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any, Final

from django_workqueue import cron
from django_workqueue.exceptions import CronError
from django_workqueue.models import Schedule
from django_workqueue.scheduler import planning

from ..base import WorkQueueCommand

HELP: Final = "List the schedules with their next ticks."
TICKS: Final = 3


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--next", type=int, default=TICKS, metavar="N", help=f"Ticks to show (default: {TICKS})."
    )
    parser.add_argument("--json", action="store_true", help="Print JSON: a list.")


def run(command: WorkQueueCommand, given: dict[str, Any]) -> None:
    with command.usable_store() as store:
        rows = store.schedules().order_by("pk")
        listed = [as_json(row, max(given["next"], 0)) for row in rows]
    if given["json"]:
        command.stdout.write(json.dumps(listed, sort_keys=True, ensure_ascii=False))
        return
    for each in listed:
        command.stdout.write(told(each))
    if not listed:
        command.stdout.write("no schedules")


def as_json(schedule: Schedule, ticks: int) -> dict[str, Any]:
    """Return what is told of a schedule; moments in its own zone."""
    try:
        upcoming = [] if schedule.error else planning.upcoming(schedule, ticks)[:ticks]
    except CronError:
        upcoming = []
    return {
        "name": schedule.name,
        "state": state(schedule),
        "expression": schedule.expression,
        "words": cron.describe(schedule.expression),
        "timezone": schedule.timezone,
        "task": schedule.task,
        "queue": schedule.queue_name,
        "source": schedule.source,
        "module": schedule.module,
        "next": [tick.isoformat() for tick in upcoming],
        "last": schedule.last_fire_at and schedule.last_fire_at.isoformat(),
        "last_job": schedule.last_job_id and str(schedule.last_job_id),
        "fired": schedule.fire_count,
        "missed": schedule.missed_count,
        "error": schedule.error,
    }


def state(schedule: Schedule) -> str:
    if schedule.error:
        return "error"
    if not schedule.enabled:
        return "disabled"
    return "paused" if schedule.paused else "on"


def told(each: dict[str, Any]) -> str:
    """Return the lines of one schedule."""
    when = each["words"]
    if when != each["expression"]:
        when += f" ({each['expression']})"
    lines = [
        f"{each['name']}  {each['state']}  {when}, {each['timezone']}  {each['task']}",
        f"  fired {each['fired']}, missed {each['missed']}, last {each['last'] or 'never'}",
    ]
    if each["error"]:
        lines.append(f"  error: {' '.join(each['error'].split())}")
    lines += [f"  next  {tick}" for tick in each["next"]]
    return "\n".join(lines)
