"""An expression read whole: five fields, six with leading seconds, a macro, or ``@every``."""

from __future__ import annotations

import copy
import functools
import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from croniter import CroniterBadDateError, croniter

from ..exceptions import CronError
from . import fields

MAX_CHARS: Final = 1000
MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
EVERY: Final = re.compile(r"@every[ \t]+((?:[0-9]+[smhd])+)", re.ASCII)
EVERY_PART: Final = re.compile(r"([0-9]+)([smhd])", re.ASCII)
UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
MAX_EVERY_SECONDS: Final = 10 * 365 * 86_400

KINDS: Final = (fields.MINUTE, fields.HOUR, fields.DAY, fields.MONTH, fields.WEEKDAY)
FROM_CRONITER: Final = (ValueError, TypeError, AttributeError, OverflowError, KeyError, IndexError)
"""What escapes from it, beside its own errors, which are ValueErrors."""

A_START: Final = datetime(2000, 1, 1)  # noqa: DTZ001  # a wall time
"""From here every date that can come does so within the 50 years that croniter looks ahead."""


@dataclass(frozen=True)
class Every:
    """A rhythm of real seconds, whatever the clocks on the walls do."""

    period: timedelta

    @property
    def cautions(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True)
class Cron:
    """The fields of an expression, in the order minute, hour, day, month, weekday; *second* is
    None for five of them.
    """

    minute: fields.Field
    hour: fields.Field
    day: fields.Field
    month: fields.Field
    weekday: fields.Field
    second: fields.Field | None
    cautions: tuple[str, ...]

    @property
    def fixed_time(self) -> bool:
        """Whether it means times of day, which are made up after a gap, and not a rhythm."""
        return not (self.minute.starred or self.hour.starred)

    @property
    def either_day(self) -> bool:
        """Whether a day is right if one day field says so; else both must."""
        return not (self.day.starred or self.weekday.starred)

    def next_wall(self, after: datetime) -> datetime:
        """Return the first time after *after*, a naive one, that a clock never changed shows.

        Raises CronError where none comes before the end of the calendar.
        """
        try:
            found: datetime = self._search(after).get_next(datetime)
        except FROM_CRONITER as error:
            raise CronError(
                f"An expression must have a tick ahead, and this one has none after {after}: "
                f"{error}. Correct its dates."
            ) from error
        return found

    def _search(self, after: datetime) -> Any:
        # A copy: reading the fields costs more than the search, and a search moves its start.
        search = copy.copy(_searcher(self))
        search.set_current(after)
        return search


@functools.lru_cache(maxsize=1024)
def _searcher(cron: Cron) -> Any:
    day, weekday = cron.day.numbers, cron.weekday.numbers
    if cron.either_day and "*" in (day, weekday):
        day = weekday = "*"
    texts = [cron.minute.numbers, cron.hour.numbers, day, cron.month.numbers, weekday]
    if cron.second is not None:
        texts.append(cron.second.numbers)
    return croniter(" ".join(texts), A_START, day_or=cron.either_day)


@functools.lru_cache(maxsize=1024)
def parse(expression: object) -> Cron | Every:
    """Return what *expression* says. Raises CronError for one that is refused, and says why."""
    if not isinstance(expression, str) or len(expression) > MAX_CHARS:
        raise CronError(
            f"An expression must be text of at most {MAX_CHARS} characters, got {expression!r:.80}."
        )
    text = expression.strip(" \t")
    if text.lower().startswith("@every"):
        return _every(text)
    if text.startswith("@"):
        if text.lower() not in MACROS:
            raise CronError(
                f"A macro must be @every or one of {', '.join(MACROS)}, got {expression!r:.80}."
            )
        text = MACROS[text.lower()]
    if not text.isascii() or re.search(r"[^\S \t]", text):
        raise CronError(
            "An expression must be ASCII with spaces or tabs between its fields, got "
            f"{expression!r:.80}."
        )
    return _cron(text.split())


def _every(text: str) -> Every:
    found = EVERY.fullmatch(text.lower())
    parts = EVERY_PART.findall(found[1]) if found else []
    # So many digits that they cannot be a number of seconds are not even multiplied.
    seconds = sum(int(count[:12]) * UNIT_SECONDS[unit] for count, unit in parts)
    if not 1 <= seconds <= MAX_EVERY_SECONDS:
        raise CronError(
            f"@every must be followed by whole seconds from 1 to {MAX_EVERY_SECONDS}, such as 90s, "
            f"15m, 2h or 1d, got {text!r:.80}."
        )
    return Every(timedelta(seconds=seconds))


def _cron(texts: list[str]) -> Cron:
    if len(texts) not in (5, 6):
        raise CronError(
            "An expression must have five fields (minute, hour, day of month, month, day of week), "
            f"or six with the second first, got {len(texts)}: {' '.join(texts)!r:.80}."
        )
    second = fields.read(fields.SECOND, texts[0]) if len(texts) == 6 else None
    minute, hour, day, month, weekday = map(fields.read, KINDS, texts[-5:])
    told = [] if second is None else list(second.cautions)
    told += [each for one in (minute, hour, day, month, weekday) for each in one.cautions]
    cron = Cron(minute, hour, day, month, weekday, second, cautions=())
    if cron.either_day:
        if any(special != "l" for special in cron.weekday.specials):
            raise CronError(
                f"A numbered weekday must stand with * as the day of month, got "
                f"{cron.day.text!r:.40} and {cron.weekday.text!r:.40}. Make two schedules."
            )
        told.append(
            f"{cron.day.text} as day of month and {cron.weekday.text} as day of week: a day is "
            "right if either says so, not only if both do."
        )
    _refuse_impossible(cron, texts)
    return replace(cron, cautions=tuple(told))


def _refuse_impossible(cron: Cron, texts: list[str]) -> None:
    try:
        _searcher(cron).get_next(datetime, start_time=A_START, update_current=False)
    except CroniterBadDateError as error:
        raise CronError(
            "An expression must name a date that can come, and no calendar has one for "
            f"{' '.join(texts)!r:.80}. Correct the day of month, the month or the day of week."
        ) from error
    except FROM_CRONITER as error:
        raise CronError(
            f"An expression must be one that croniter can search for, got {' '.join(texts)!r:.80}: "
            f"{error}."
        ) from error
