"""workqueue import_beat: the schedules of django-celery-beat, shown and then created here."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, ArgumentTypeError
from typing import Any, Final

from django.apps import apps
from django.core.management.base import CommandError
from django.db import DatabaseError, transaction

from django_workqueue import calls, conf, enqueueing, notifying, registry
from django_workqueue.scheduler import writing
from django_workqueue.store import BaseStore, Inserted
from django_workqueue.store.scheduling import SOURCE_ADMIN

from ..base import USAGE, WorkQueueCommand
from ..beat import Converted, Refused, converted

HELP: Final = (
    "Show what the schedules of django-celery-beat would be here; with --create, create them."
)
APP: Final = "django_celery_beat"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--create", action="store_true", help="Create them; default: only show.")
    parser.add_argument(
        "--rename",
        type=renaming,
        action="append",
        default=[],
        metavar="OLD=NEW",
        help="The dotted path here of a task that Celery knew under another name. Repeatable.",
    )
    parser.add_argument("--json", action="store_true", help="Print JSON: a list.")


def renaming(text: str) -> tuple[str, str]:
    old, separator, new = text.partition("=")
    if not (old and separator and new):
        raise ArgumentTypeError(f"must be OLD=NEW, got {text!r}")
    return old, new


def run(command: WorkQueueCommand, given: dict[str, Any]) -> None:
    registry.discover()
    with command.usable_store() as store:
        told = [
            imported(store, row, dict(given["rename"]), create=given["create"])
            for row in beat_rows()
        ]
    if given["create"]:
        notifying.tell_schedulers(store)
    if given["json"]:
        command.stdout.write(json.dumps(told, sort_keys=True))
    else:
        for each in told:
            command.stdout.write(line(each))
    if given["create"] and any(each["outcome"] == "refused" for each in told):
        sys.exit(1)


def beat_rows() -> list[Any]:
    """Return the rows of django-celery-beat, by name, read through its own models."""
    try:
        model: Any = apps.get_model(APP, "PeriodicTask")
        rows = model._default_manager.select_related("crontab", "interval", "clocked", "solar")
        return list(rows.order_by("name"))
    except LookupError as error:
        raise CommandError(
            f'INSTALLED_APPS must have "{APP}" while its schedules are imported. Add it, import, '
            "and remove it.",
            returncode=USAGE,
        ) from error
    except DatabaseError as error:
        raise CommandError(
            f"The tables of {APP} cannot be read: {' '.join(str(error).split())}", returncode=USAGE
        ) from error


def imported(
    store: BaseStore, row: Any, renamed: dict[str, str], *, create: bool
) -> dict[str, Any]:
    """Return what became, or would become, of one row."""
    try:
        found = converted(row, renamed, store.now())
    except Refused as error:
        return {"name": row.name, "outcome": "refused", "why": str(error)}
    told: dict[str, Any] = {
        "name": row.name,
        "outcome": "shown",
        "task": found.definition.task,
        "notes": found.notes,
        "paused": found.paused,
    }
    if found.run_after is None:
        definition = found.definition
        told |= {"expression": definition.expression, "timezone": definition.timezone}
    else:
        told |= {"run_after": found.run_after.isoformat()}
    if create:
        make = created if found.run_after is None else enqueued
        told["outcome"] = "created" if make(store, found) else "there"
    return told


def created(store: BaseStore, found: Converted) -> bool:
    """Add the schedule, paused where it was disabled; False if there is one of its name."""
    with transaction.atomic(using=store.alias):
        row = writing.new_row(found.definition, store.now(), source=SOURCE_ADMIN)
        row.paused = found.paused
        return store.add_schedule(row)


def enqueued(store: BaseStore, found: Converted) -> bool:
    """Enqueue the one job of a clocked row; False if it waits already."""
    definition = found.definition
    key = f"django-celery-beat:{definition.name}"
    task = found.task.using(
        run_after=found.run_after, queue_name=definition.queue_name, unique_key=key
    )
    settings = conf.current()
    job = calls.new_job(task, definition.args, definition.kwargs, settings)
    return isinstance(enqueueing.enqueue(job, "return", settings), Inserted)


def line(each: dict[str, Any]) -> str:
    """Return the lines of one row."""
    name, outcome = each["name"], each["outcome"]
    if outcome == "refused":
        return f"refused  {name}: {each['why']}"
    verb = {"shown": "would create", "created": "created", "there": "there already"}[outcome]
    what = f"{each.get('expression')}  {each.get('timezone')}"
    if "run_after" in each:
        what = f"one job at {each['run_after']}"
    paused = "  paused" if each["paused"] else ""
    lines = [f"{verb}  {name}  {what}  {each['task']}{paused}"]
    lines += [f"  note: {note}" for note in each["notes"]]
    return "\n".join(lines)
