"""An expression in words for people: the usual forms; the expression itself for the rest."""

from __future__ import annotations

import calendar
from collections.abc import Sequence
from typing import Final

from ..exceptions import CronError
from .expressions import UNIT_SECONDS, Cron, Every, parse
from .fields import Field

UNITS: Final = {"d": "day", "h": "hour", "m": "minute", "s": "second"}
MOST_TIMES: Final = 4


def describe(expression: str) -> str:
    """Return *expression* in words, or as it is where words would be longer. Never raises."""
    try:
        plan = parse(expression)
    except CronError:
        return expression
    words = _every(plan) if isinstance(plan, Every) else _cron(plan)
    return words or expression


def _every(plan: Every) -> str:
    seconds = int(plan.period.total_seconds())
    for unit, name in UNITS.items():
        if seconds % UNIT_SECONDS[unit] == 0:
            return _rhythm(seconds // UNIT_SECONDS[unit], name)
    raise AssertionError(plan)


def _cron(plan: Cron) -> str:
    time, days = _time(plan), _days(plan)
    return f"{time}, {days}" if time and days else time if days == "" else ""


def _time(plan: Cron) -> str:
    """Return the time of day in words; empty: there are none."""
    if plan.second is not None and plan.second.values != (0,):
        others = plan.minute.full and plan.hour.full
        return _steps(plan.second, 60, "second") if others else ""
    if plan.hour.full:
        if len(plan.minute.values) == 1:
            return f"every hour at :{plan.minute.values[0]:02}"
        return _steps(plan.minute, 60, "minute")
    if len(plan.minute.values) * len(plan.hour.values) <= MOST_TIMES:
        times = [
            f"{hour:02}:{minute:02}" for hour in plan.hour.values for minute in plan.minute.values
        ]
        return f"at {_list(times)}"
    return _steps(plan.hour, 24, "hour") if plan.minute.values == (0,) else ""


def _days(plan: Cron) -> str | None:
    """Return the days in words; empty: every day; None: there are none."""
    if plan.day.specials not in ((), ("l",)) or plan.weekday.specials or plan.either_day:
        return None
    parts = []
    if not plan.weekday.full:
        parts.append(
            "on " + _list([calendar.day_name[(day - 1) % 7] for day in plan.weekday.values])
        )
    if plan.day.specials or not plan.day.full:
        last = ["the last day"] if plan.day.specials else []
        if len(plan.day.values) > MOST_TIMES:
            return None
        parts.append("on " + _list([*(f"day {day}" for day in plan.day.values), *last]))
    if not plan.month.full:
        parts.append("in " + _list([calendar.month_name[month] for month in plan.month.values]))
    return ", ".join(parts)


def _steps(field: Field, cycle: int, unit: str) -> str:
    """Return the rhythm of *field*; empty where it is not an even one from 0 on."""
    if field.full:
        return _rhythm(1, unit)
    step = cycle // len(field.values)
    even = field.values == tuple(range(0, cycle, step)) and cycle % step == 0
    return _rhythm(step, unit) if even else ""


def _rhythm(count: int, unit: str) -> str:
    return f"every {unit}" if count == 1 else f"every {count} {unit}s"


def _list(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
