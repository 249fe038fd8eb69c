"""One field of an expression: what it may hold, and the numbers it means.

Everything is judged and resolved here, so that croniter is only ever given lists of numbers: what
it reads otherwise (N-N as the whole cycle, stepped ranges that lose members, R and H) never
reaches it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ..exceptions import CronError

MONTHS: Final = "jan feb mar apr may jun jul aug sep oct nov dec".split()  # noqa: SIM905
WEEKDAYS: Final = "sun mon tue wed thu fri sat".split()  # noqa: SIM905

ITEM: Final = re.compile(
    r"(?P<star>\*)|(?P<first>[0-9]+|[a-z]{3})(?:-(?P<last>[0-9]+|[a-z]{3}))?", re.ASCII
)
STEPPED: Final = re.compile(r"(?P<range>[^/]+)(?:/(?P<step>[0-9]+))?", re.ASCII)
NTH_WEEKDAY: Final = re.compile(r"(?P<day>[0-7]|[a-z]{3})#(?P<nth>[0-9]+)", re.ASCII)
LAST_WEEKDAY: Final = re.compile(r"l(?P<day>[0-7]|[a-z]{3})", re.ASCII)


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """What a field is called and may hold; *cycle* is how many values come before the first one
    again, where steps can divide it evenly.
    """

    name: str
    least: int
    most: int
    cycle: int | None = None
    names: Mapping[str, int] = field(default_factory=dict)


SECOND: Final = Kind("second", 0, 59, 60)
MINUTE: Final = Kind("minute", 0, 59, 60)
HOUR: Final = Kind("hour", 0, 23, 24)
DAY: Final = Kind("day of month", 1, 31)
MONTH: Final = Kind("month", 1, 12, 12, {name: i for i, name in enumerate(MONTHS, start=1)})
WEEKDAY: Final = Kind("day of week", 0, 7, None, {name: i for i, name in enumerate(WEEKDAYS)})


@dataclass(frozen=True, slots=True)
class Field:
    """A field that was read. *specials* are ``l`` and numbered weekdays, which are no numbers."""

    kind: Kind
    text: str
    values: tuple[int, ...]
    specials: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()

    @property
    def starred(self) -> bool:
        """Whether it begins with a star, which makes it a wildcard to cron."""
        return self.text.startswith(("*", "?"))

    @property
    def full(self) -> bool:
        size = 7 if self.kind is WEEKDAY else self.kind.most - self.kind.least + 1
        return len(self.values) == size

    @property
    def numbers(self) -> str:
        """The field as a list of numbers, or a star for all of them."""
        if self.full and not self.specials:
            return "*"
        return ",".join([*map(str, self.values), *self.specials])


def read(kind: Kind, text: str) -> Field:
    """Return the field that *text* is. Raises CronError for what it may not hold."""
    reader = _Reader(kind, text)
    values: set[int] = set()
    specials: list[str] = []
    for item in text.lower().split(","):
        special = reader.special(item)
        if special is not None:
            specials.append(special)
        else:
            values |= reader.numbers(item)
    if specials and values and kind is WEEKDAY:
        raise reader.refused("numbered weekdays or plain ones, not both in one field")
    return Field(kind, text, tuple(sorted(values)), tuple(specials), tuple(reader.cautions))


@dataclass(slots=True)
class _Reader:
    """Reads the items of one field, and gathers what people may read otherwise."""

    kind: Kind
    text: str
    cautions: list[str] = field(default_factory=list)

    def special(self, item: str) -> str | None:
        """Return ``l`` for the last day, or a numbered weekday, as croniter takes it; else None."""
        if self.kind is DAY and item == "l":
            return "l"
        if self.kind is not WEEKDAY:
            return None
        if numbered := NTH_WEEKDAY.fullmatch(item):
            nth = int(numbered["nth"])
            if not 1 <= nth <= 5:
                raise self.refused("a weekday numbered from #1 to #5 within its month")
            return f"{self.value(numbered['day']) % 7}#{nth}"
        if last := LAST_WEEKDAY.fullmatch(item):
            return f"l{self.value(last['day']) % 7}"
        return None

    def numbers(self, item: str) -> set[int]:
        """Return the values of a number, a star or a range, with or without a step."""
        if self.text == "?" and self.kind in (DAY, WEEKDAY):
            item = "*"
        stepped = STEPPED.fullmatch(item)
        found = ITEM.fullmatch(stepped["range"]) if stepped else None
        if stepped is None or found is None:
            raise self.refused(_what(self.kind))
        step = None if stepped["step"] is None else int(stepped["step"])
        if step == 0:
            raise self.refused("a step of 1 or more")
        first, last = self._ends(found, stepped=step is not None)
        numbers = self._range(first, last, step)
        if step:
            self._judge_step(item, step, numbers, found)
        return {number % 7 for number in numbers} if self.kind is WEEKDAY else set(numbers)

    def value(self, text: str) -> int:
        kind = self.kind
        number = kind.names.get(text) if text.isalpha() else int(text)
        if number is None or not kind.least <= number <= kind.most:
            raise self.refused(_what(kind))
        return number

    def refused(self, rule: str) -> CronError:
        return CronError(f"The {self.kind.name} field must hold {rule}, got {self.text!r:.80}.")

    @property
    def _most(self) -> int:
        # Sunday is 0 at the end of a cycle of steps, and 7 only where it is written.
        return 6 if self.kind is WEEKDAY else self.kind.most

    def _ends(self, found: re.Match[str], *, stepped: bool) -> tuple[int, int]:
        if found["star"]:
            return self.kind.least, self._most
        first = self.value(found["first"])
        if found["last"] is not None:
            return first, self.value(found["last"])
        return first, self._most if stepped else first

    def _range(self, first: int, last: int, step: int | None) -> list[int]:
        if self.kind is WEEKDAY and first == 7 > last:
            first = 0
        if first <= last:
            return list(range(first, last + 1, step or 1))
        if step:
            raise self.refused(
                "a stepped range that does not run past its end: list the values instead"
            )
        self._caution("runs past its end and begins again.", self.text)
        return [*range(first, self._most + 1), *range(self.kind.least, last + 1)]

    def _judge_step(self, item: str, step: int, numbers: list[int], found: re.Match[str]) -> None:
        """Say where a step does not give the even rhythm that people read in it."""
        kind = self.kind
        told = ", ".join(map(str, numbers[:4])) + (", …" if len(numbers) > 4 else "")
        if kind is WEEKDAY and found["first"] and not found["last"]:
            self._caution(f"runs to Saturday: {told}. Others read it on.", item)
        elif len(numbers) == 1:
            self._caution(f"is only {numbers[0]}: the step does nothing.", item)
        elif kind is DAY:
            self._caution("begins again at each 1st, whatever came before.", item)
        elif kind.cycle and kind.cycle % step and not found["last"]:
            rest = kind.cycle - numbers[-1] + numbers[0]
            self._caution(
                f"does not divide {kind.cycle}: {told}, and from the last to the first are "
                f"{rest}, not {step}.",
                item,
            )

    def _caution(self, what: str, item: str) -> None:
        self.cautions.append(f"{item} in the {self.kind.name} field {what}")


def _what(kind: Kind) -> str:
    names = f" or {min(kind.names)}-like names" if kind.names else ""
    more = {DAY.name: ", or L for the last day", WEEKDAY.name: ", 5#3 or L5"}.get(kind.name, "")
    return (
        f"numbers from {kind.least} to {kind.most}{names}, ranges, *, and steps of them{more}; "
        "R, H and W are not taken"
    )
