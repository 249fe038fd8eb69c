"""The rule once more, minute by minute: slow, and with nothing of croniter or of ours in it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
ZONES = (
    "America/New_York",
    "Europe/Berlin",
    "America/Santiago",
    "Australia/Lord_Howe",
    "Africa/Cairo",
    "America/Havana",
    "Pacific/Chatham",
    "Africa/Casablanca",
    "Antarctica/Troll",
    "America/Sao_Paulo",
)


@dataclass(frozen=True)
class Expected:
    """An expression, and for each of its five fields the numbers it means."""

    text: str
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]

    @property
    def fixed_time(self) -> bool:
        return not any(field.startswith("*") for field in self.text.split()[:2])

    @property
    def either_day(self) -> bool:
        fields = self.text.split()
        return not (fields[2].startswith("*") or fields[4].startswith("*"))

    def matches(self, wall: datetime) -> bool:
        days = (wall.day in self.days, wall.isoweekday() % 7 in self.weekdays)
        return (
            wall.minute in self.minutes
            and wall.hour in self.hours
            and wall.month in self.months
            and (any(days) if self.either_day else all(days))
        )


def next_tick(expected: Expected, zone: ZoneInfo, after: datetime, within: timedelta) -> datetime:
    """Return the first tick after *after*; the end of the window if there is none *within*."""
    ends = after + within
    found = _fixed if expected.fixed_time else _wildcard
    return min((at for at in found(expected, zone, after, ends) if at > after), default=ends)


def _wildcard(
    expected: Expected, zone: ZoneInfo, after: datetime, ends: datetime
) -> Iterator[datetime]:
    at = after.replace(second=0, microsecond=0)
    while at < ends:
        if expected.matches(at.astimezone(zone).replace(tzinfo=None)):
            yield at
            if at > after:
                return
        at += MINUTE


def _fixed(
    expected: Expected, zone: ZoneInfo, after: datetime, ends: datetime
) -> Iterator[datetime]:
    # From before any change that the moment may lie behind.
    wall = (after.astimezone(zone) - timedelta(hours=26)).replace(
        tzinfo=None, second=0, microsecond=0
    )
    last = ends.astimezone(zone).replace(tzinfo=None)
    while wall < last:
        if expected.matches(wall):
            yield first_valid(wall, zone)
        wall += MINUTE


def first_valid(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return the first instant at which the zone's clocks show *wall* or later, on that day."""
    while True:
        at = wall.replace(tzinfo=zone).astimezone(UTC)
        if at.astimezone(zone).replace(tzinfo=None) == wall:
            return at
        wall += MINUTE


@functools.cache
def changes(zone_name: str, first_year: int = 2015, last_year: int = 2030) -> tuple[datetime, ...]:
    """Return the moments at which the zone's clocks are changed, to the minute."""
    zone, found = ZoneInfo(zone_name), []
    at, end = datetime(first_year, 1, 1, tzinfo=UTC), datetime(last_year, 12, 31, tzinfo=UTC)
    while at < end:
        later = at + timedelta(days=1)
        if at.astimezone(zone).utcoffset() != later.astimezone(zone).utcoffset():
            low = at
            while low.astimezone(zone).utcoffset() == at.astimezone(zone).utcoffset():
                low += MINUTE
            found.append(low)
        at = later
    return tuple(found)
