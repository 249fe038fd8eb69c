"""An expression, a zone and a moment to the next tick.

The rule for clocks that are changed (Vixie's): a fixed-time expression, whose minute and hour
fields begin with no star, fires once, at the first instant after a gap that swallowed its time, and
the first time where a time comes twice. A wildcard one fires at every real instant whose local time
matches, and at none that is made up.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from ..exceptions import CronError
from . import zones
from .expressions import Cron, Every, parse
from .words import describe

__all__ = [
    "CronError",
    "cautions",
    "check",
    "check_timezone",
    "describe",
    "forget_timezones",
    "has_timezones",
    "is_rhythm",
    "next_tick",
    "ticks",
    "timezone",
]

MOST_GAPS: Final = 60
"""Matches in a row that all fall into a gap, one a year: then none will ever come."""

forget_timezones = zones.forget
has_timezones = zones.are_there


def check(expression: str) -> None:
    """Raise CronError unless *expression* can be planned with."""
    parse(expression)


def check_timezone(name: str) -> None:
    """Raise CronError unless *name* is a time zone."""
    zones.find(name)


def timezone(name: str) -> ZoneInfo:
    """Return the time zone *name*. Raises CronError where there is none."""
    return zones.find(name)


def cautions(expression: str) -> list[str]:
    """Return what in *expression* people may read otherwise than it is meant here."""
    return list(parse(expression).cautions)


def is_rhythm(expression: str) -> bool:
    """Tell an ``@every``, counted from the tick before, from an expression of the calendar."""
    return isinstance(parse(expression), Every)


def next_tick(expression: str, timezone: str, after: datetime) -> datetime:
    """Return the first tick later than *after*, in that zone.

    ``@every`` counts real seconds from *after*, which must be a tick or the anchor.
    """
    plan, zone = parse(expression), zones.find(timezone)
    if after.tzinfo is None:
        raise CronError(f"after must be an aware datetime, got {after!r}. Give it a tzinfo.")
    try:
        start = after.astimezone(UTC)
        if isinstance(plan, Every):
            return (start + plan.period).astimezone(zone)
        found = _fixed(plan, zone, start) if plan.fixed_time else _wildcard(plan, zone, start)
        found = found.astimezone(zone)
    except OverflowError as error:
        raise CronError(
            f"A tick must lie within the calendar, and none of {expression!r:.80} does after "
            f"{after}."
        ) from error
    if found <= start:
        # A schedule that stood still would fire without end (case 53).
        raise CronError(f"A tick must be later than {after}, got {found} for {expression!r:.80}.")
    return found


def ticks(expression: str, timezone: str, after: datetime) -> Iterator[datetime]:
    """Yield the ticks later than *after*, in order, until the end of the calendar."""
    while True:
        after = next_tick(expression, timezone, after)
        yield after


def _fixed(plan: Cron, zone: ZoneInfo, after: datetime) -> datetime:
    wall = _wall(after, zone)
    first, second = (zones.offset(wall, zone, fold=fold) for fold in (0, 1))
    if first > second and after.astimezone(zone).fold:
        # The second time of a repeated stretch: all its times had their turn.
        wall = _last_wall(zones.change_near(wall, zone), first)
    wall = plan.next_wall(wall)
    first, second = (zones.offset(wall, zone, fold=fold) for fold in (0, 1))
    return zones.change_near(wall, zone) if first < second else zones.instant(wall, first)


def _wildcard(plan: Cron, zone: ZoneInfo, after: datetime) -> datetime:
    wall = _wall(after, zone)
    found = _after_wall(plan, zone, after, wall)
    first, second = (zones.offset(wall, zone, fold=fold) for fold in (0, 1))
    if first <= second or after.astimezone(zone).fold:
        return found
    # The first time of a stretch that comes again: what is past now may match then.
    change = zones.change_near(wall, zone)
    again = zones.instant(plan.next_wall(_last_wall(change, second)), second)
    return min(found, again)


def _after_wall(plan: Cron, zone: ZoneInfo, after: datetime, wall: datetime) -> datetime:
    for _ in range(MOST_GAPS):
        wall = plan.next_wall(wall)
        first, second = (zones.offset(wall, zone, fold=fold) for fold in (0, 1))
        if first >= second:
            at = zones.instant(wall, first)
            return at if at > after else zones.instant(wall, second)
        # It does not exist: go on at the last time that is missing with it.
        wall = _last_wall(zones.change_near(wall, zone), second)
    raise CronError(
        f"An expression must have a tick ahead, and every time of this one is skipped by the "
        f"clocks of {zone.key}. Use another hour."
    )


def _wall(moment: datetime, zone: ZoneInfo) -> datetime:
    """Return what the zone's clocks show, without fractions: ticks are whole seconds."""
    return moment.astimezone(zone).replace(tzinfo=None, microsecond=0, fold=0)


def _last_wall(change: datetime, utc_offset: timedelta) -> datetime:
    """Return the last second that clocks with *utc_offset* show before *change*."""
    return change.replace(tzinfo=None) + utc_offset - zones.SECOND
