"""Time zones by name, and the moments at which their clocks are changed."""

from __future__ import annotations

import difflib
import functools
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from ..exceptions import CronError

SECOND: Final = timedelta(seconds=1)


@functools.lru_cache(maxsize=512)
def find(name: str) -> ZoneInfo:
    """Return the zone *name* of the IANA database. Raises CronError, with a hint, for any other."""
    known = _names()
    if name not in known:
        raise CronError(
            f"A time zone must be a name of the IANA database, got {name!r:.80}. {_hint(name)}"
        )
    # Not ZoneInfo(name), which keeps what it read for ever: see forget().
    return ZoneInfo.no_cache(name)


def forget() -> None:
    """Read the zones anew the next time: their data may have been replaced on disk."""
    find.cache_clear()
    _names.cache_clear()


@functools.lru_cache(maxsize=1)
def _names() -> frozenset[str]:
    # Empty where neither the system nor the package tzdata has the data.
    return frozenset(available_timezones()) | {"UTC"}


def are_there() -> bool:
    """Return whether there is data of any zone beside UTC."""
    return len(_names()) > 1


def _hint(name: object) -> str:
    text = str(name)
    same = [each for each in _names() if each.rpartition("/")[2].lower() == text.lower()]
    near = sorted(same) or difflib.get_close_matches(text, sorted(_names()), n=1)
    if near:
        return f"Did you mean {near[0]!r}?"
    return 'Name a region and city, such as "Europe/Paris", or "UTC".'


def offset(wall: datetime, zone: ZoneInfo, *, fold: int) -> timedelta:
    """Return how far *zone* is from UTC when its clocks show *wall*, the first or second time."""
    found = wall.replace(tzinfo=zone, fold=fold).utcoffset()
    assert found is not None
    return found


def instant(wall: datetime, utc_offset: timedelta) -> datetime:
    return (wall - utc_offset).replace(tzinfo=UTC)


def change_near(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return the instant of the change that makes *wall* missing, or twice there.

    The zone's data knows it, but zoneinfo does not tell: bisected to the second.
    """
    ends = [offset(wall, zone, fold=fold) for fold in (0, 1)]
    before, at = instant(wall, max(ends)), instant(wall, min(ends))
    old = before.astimezone(zone).utcoffset()
    while at - before > SECOND:
        middle = before + timedelta(seconds=(at - before) // SECOND // 2)
        if middle.astimezone(zone).utcoffset() == old:
            before = middle
        else:
            at = middle
    return at
