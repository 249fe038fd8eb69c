"""What a page says of a schedule: how it stands, its next ticks, what became of the last ones."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils.formats import date_format
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from .. import cron, registry
from ..exceptions import CronError
from ..models import DeadJob, LiveJob, Result, Schedule
from ..models.fields import EncodedJSON
from ..scheduler import planning
from ..states import ResultOutcome
from ..store.scheduling import SOURCE_CODE
from . import showing
from .base import SEARCHED_ROWS
from .confirming import job_link
from .redaction import MASK, redacted_call

TICKS_SHOWN: Final = 10
JOBS_SHOWN: Final = 10


JSON_COLUMNS: Final = ("args", "kwargs", "options")


def read_json(rows: Sequence[Schedule], alias: str) -> bool:
    """Read the deferred columns of *rows*; False if one of them holds no JSON, and stays unread."""
    found = {row.pk: row for row in rows}
    table = Schedule._default_manager.using(alias).filter(pk__in=list(found))
    readable = True
    for read in table.values("pk", *JSON_COLUMNS) if found else ():
        if any(isinstance(read[name], EncodedJSON) for name in JSON_COLUMNS):
            readable = False
            continue
        for name in JSON_COLUMNS:
            setattr(found[read["pk"]], name, read[name])
    return readable


def is_unread(schedule: Schedule) -> bool:
    return bool(schedule.get_deferred_fields())


@dataclass(frozen=True, slots=True)
class Tick:
    """A tick to come, as its zone's clocks show it, and what is unusual about it."""

    local: str
    utc: str
    age: SafeString
    note: str = ""


@dataclass(frozen=True, slots=True)
class Made:
    """A job that a schedule made, and what became of it."""

    id: uuid.UUID
    link: SafeString
    tick: str
    state: str
    enqueued: SafeString


def verdict(schedule: Schedule) -> str:
    """Return in a word or two whether a schedule ticks."""
    if schedule.error:
        return _("cannot be planned")
    if not schedule.enabled:
        return _("disabled in code") if schedule.source == SOURCE_CODE else _("disabled")
    if schedule.paused:
        return _("paused")
    return _("on")


def warnings(schedule: Schedule) -> list[str]:
    """Return what somebody should know about a schedule, the worst first."""
    told = []
    if schedule.error:
        told.append(_("It fires no more: %(error)s") % {"error": schedule.error})
    if not schedule.enabled and schedule.source == SOURCE_CODE:
        text = _(
            "The module %(module)s disables it, or declares it no more. It keeps its row; declared "
            "again, it plans from then on."
        )
        told.append(text % {"module": schedule.module or "?"})
    if registry.find(schedule.task) is None:
        text = _(
            "This process does not know the task. Ticks make jobs all the same; a worker that does "
            "not know it either holds them."
        )
        told.append(text)
    return told + cautions(schedule.expression)


def cautions(expression: str) -> list[str]:
    try:
        return cron.cautions(expression)
    except CronError:
        return []


def next_ticks(schedule: Schedule, now: datetime) -> list[Tick]:
    """Return the next ticks; none of a schedule that cannot be planned, or is disabled."""
    try:
        found = planning.upcoming(schedule, TICKS_SHOWN)
        before = now.astimezone(cron.timezone(schedule.timezone)).utcoffset()
    except (CronError, ValueError):
        return []
    return list(_ticks(found, before, now))


def _ticks(found: Iterable[datetime], before: timedelta | None, now: datetime) -> Iterator[Tick]:
    for tick in found:
        offset = tick.utcoffset()
        note = ""
        if offset != before:
            note = _("The clocks were changed: %(before)s before, %(after)s now.")
            note %= {"before": _offset_text(before), "after": _offset_text(offset)}
        before = offset
        local = _local_text(tick)
        utc = showing.utc_text(tick).replace(".000000", "")
        yield Tick(local, utc, showing.age(tick, now), note)


def _local_text(tick: datetime) -> str:
    return f"{date_format(tick, 'D Y-m-d H:i:s')} {_offset_text(tick.utcoffset())}"


def _offset_text(offset: timedelta | None) -> str:
    minutes = int((offset or timedelta()).total_seconds() // 60)
    return f"UTC{minutes // 60 if minutes >= 0 else -(-minutes // 60):+03d}:{abs(minutes) % 60:02d}"


def last_jobs(schedule: Schedule, alias: str, now: datetime) -> list[Made]:
    """Return the newest jobs of a schedule, the newest first.

    Among the newest rows of each table, which has no index on schedules: ids rise with time.
    """
    rows = [row for model in (LiveJob, DeadJob, Result) for row in _newest(model, schedule, alias)]
    rows.sort(key=lambda row: row.pk.int, reverse=True)
    return [_made(row, schedule, now) for row in rows[:JOBS_SHOWN]]


def _newest(model: Any, schedule: Schedule, alias: str) -> list[Any]:
    table = model._default_manager.using(alias).order_by("-pk")
    oldest = next(iter(table.values_list("pk", flat=True)[SEARCHED_ROWS : SEARCHED_ROWS + 1]), None)
    rows = table.filter(schedule=schedule.name)
    if oldest is not None:
        rows = rows.filter(pk__gt=oldest)
    state = {LiveJob: "state", DeadJob: "reason", Result: "outcome"}[model]
    return list(rows.only("pk", "scheduled_for", "enqueued_at", state)[:JOBS_SHOWN])


def _made(row: Any, schedule: Schedule, now: datetime) -> Made:
    return Made(
        row.pk,
        job_link(row._meta.model_name, row.pk),
        _tick_of(row, schedule),
        _state(row),
        showing.age(row.enqueued_at, now),
    )


def _tick_of(row: Any, schedule: Schedule) -> str:
    if row.scheduled_for is None:
        return _("run by hand")
    try:
        return _local_text(row.scheduled_for.astimezone(cron.timezone(schedule.timezone)))
    except CronError:
        return showing.moment(row.scheduled_for)


def _state(row: Any) -> str:
    if isinstance(row, LiveJob):
        return str(row.state)
    if isinstance(row, DeadJob):
        return _("dead: %(reason)s") % {"reason": row.reason}
    return _("succeeded") if row.outcome == ResultOutcome.SUCCEEDED else _("cancelled")


def shown_call(schedule: Schedule) -> Any:
    """Return a schedule's arguments with what is to be hidden behind the mask."""
    call = {"args": schedule.args, "kwargs": schedule.kwargs}
    return redacted_call(call, registry.find(schedule.task))


def hides_values(schedule: Schedule) -> bool:
    return MASK in showing.as_json(shown_call(schedule))


def facts(schedule: Schedule) -> list[tuple[str, SafeString | str]]:
    """Return the policies and the jobs' options, with words where a value says nothing."""
    none = "—"
    seconds = _("%(count)s s")
    catch_up = {
        "skip": _("skip: none of them gets a job"),
        "latest": _("latest: the newest gets a job"),
        "all": _("all: each gets a job, at most %(count)d") % {"count": schedule.max_catch_up},
    }.get(schedule.catch_up, schedule.catch_up)
    overlap = {
        "allow": _("allow: another job while the last one is live"),
        "skip": _("skip: no job while the last one is live"),
    }.get(schedule.overlap, schedule.overlap)

    def told(value: float | None) -> str:
        return none if not value else seconds % {"count": f"{value:g}"}

    return [
        (_("Task"), showing.name(showing.visible(schedule.task))),
        (_("Queue, priority"), f"{showing.visible(schedule.queue_name)}, {schedule.priority}"),
        (_("Missed ticks"), catch_up),
        (_("Overlap"), overlap),
        (_("Missed in any case after"), told(schedule.deadline_seconds)),
        (_("Jobs expire after"), told(schedule.expires_seconds)),
        (_("Jitter"), told(schedule.jitter_seconds)),
        (_("Attempts"), str(schedule.max_attempts or _("as the setting says"))),
        (
            _("Declared by"),
            showing.name(schedule.module) if schedule.source == SOURCE_CODE else _("the admin"),
        ),
        (_("Ticks that made a job"), str(schedule.fire_count)),
        (_("Ticks without a job"), str(schedule.missed_count)),
    ]
