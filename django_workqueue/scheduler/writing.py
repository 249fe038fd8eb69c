"""Bring the declared schedules into the table, without fighting over it with other processes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from .. import registry
from ..exceptions import CronError, WorkQueueError
from ..models import Schedule
from ..schedules.declaring import Declared, declared, discover, looked_into
from ..schedules.definition import Definition, as_columns, define
from ..store import BaseStore
from ..store.scheduling import SOURCE_ADMIN, SOURCE_CODE
from . import planning

logger = logging.getLogger("django_workqueue.scheduler")

UNDECLARED_SECONDS: Final = 86_400
"""How long a schedule of code must have been declared by nobody before it is disabled."""

EDIT_ROUNDS: Final = 5


@dataclass(slots=True)
class Written:
    """The names of schedules that were added, changed, disabled, or are in the way of code."""

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    disabled: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def write(store: BaseStore, *, now: datetime | None = None) -> Written:
    """Write what this process declares, and disable what nobody has declared for a day."""
    discover()
    written = Written()
    for name, each in declared().items():
        try:
            _write(store, name, each, written, now)
        except planning.BAD_ROW as error:
            # One row must not keep all others from being written, and from firing.
            written.refused.append(name)
            logger.warning("schedule not written", extra={"schedule": name}, exc_info=error)
    keep_alive(store, written, now=now)
    _refresh_options(store)
    return written


def keep_alive(
    store: BaseStore, written: Written | None = None, *, now: datetime | None = None
) -> None:
    """Note that this process still declares its schedules, and disable those that nobody does.

    Only that: a process of old code that lives on writes no old definition back.
    """
    names = set(declared())
    store.touch_schedules(names, now=now)
    gone = store.disable_undeclared(looked_into(), names, UNDECLARED_SECONDS, now=now)
    for name in gone:
        logger.warning("schedule disabled: no code declares it", extra={"schedule": name})
    if written is not None:
        written.disabled += gone


def _write(
    store: BaseStore, name: str, each: Declared, written: Written, now: datetime | None
) -> None:
    for _ in range(EDIT_ROUNDS):
        row, current = store.read_schedule(name, now=now)
        if row is None:
            if store.add_schedule(new_row(each.definition, current, module=each.module), now=now):
                written.added.append(name)
                return
            continue
        if row.source != SOURCE_CODE:
            written.refused.append(name)
            logger.warning(
                "schedule of code not written: one of that name was made in the admin",
                extra={"schedule": name},
            )
            return
        changes = changes_to(row, each.definition, current)
        if row.module != each.module:
            changes["module"] = each.module
        if not changes:
            return
        if store.edit_schedule(row, changes, now=now):
            written.changed.append(name)
            return
    logger.warning("schedule changes too often to be written", extra={"schedule": name})


def new_row(
    definition: Definition, now: datetime, *, module: str = "", source: str = SOURCE_CODE
) -> Schedule:
    """Return the row of a schedule that begins *now*. Raises CronError if it can never tick."""
    return Schedule(
        name=definition.name,
        **as_columns(definition),
        module=module,
        source=source,
        next_fire_at=_first(definition, now),
    )


def changes_to(row: Schedule, definition: Definition, now: datetime) -> dict[str, Any]:
    """Return the columns in which *row* differs, and the plan where it must be made anew.

    A changed expression or zone plans from *now*, and so does a schedule that is enabled again;
    for all else ``next_fire_at`` is left alone, so that an overdue tick still fires.
    """
    columns = as_columns(definition)
    changes = {name: value for name, value in columns.items() if getattr(row, name) != value}
    if changes.keys() & {"expression", "timezone", "enabled"} or (changes and row.error):
        changes |= {"next_fire_at": _first(definition, now), "error": ""}
    return changes


def _first(definition: Definition, now: datetime) -> datetime | None:
    if not definition.enabled:
        return None
    return planning.first_tick(definition.expression, definition.timezone, now)


def _refresh_options(store: BaseStore) -> None:
    """Let schedules of the admin follow the options of tasks whose code this process has."""
    for row in store.schedules().filter(source=SOURCE_ADMIN).only("pk", "task").iterator():
        task = registry.get(row.task)
        if task is not None:
            _refresh(store, row.pk, task)


def _refresh(store: BaseStore, name: str, task: Any) -> None:
    try:
        row, _ = store.read_schedule(name)
        if row is None:
            return
        fresh = define(name, task, cron=row.expression, timezone=row.timezone, **call_of(row))
    except (CronError, WorkQueueError, ValueError, TypeError):
        # It fires with the options it has; its page says what is wrong.
        return
    if row.options != as_columns(fresh)["options"]:
        store.edit_schedule(row, {"options": fresh.options})


def call_of(row: Schedule) -> Mapping[str, Any]:
    return {"args": row.args, "kwargs": row.kwargs}
