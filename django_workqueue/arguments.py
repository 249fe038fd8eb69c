"""Numbers, names and moments that callers pass: judged by name, kept exactly, never truncated.

Each function returns the value in the form the store takes, or raises a ValueError that says which
argument, what must hold and what came.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from django.utils import timezone

from . import payload
from .payload.refusals import cut

NAME_LENGTH: Final = 255
"""Characters of the columns that hold names."""

MAX_SECONDS: Final = 10 * 365 * 86_400
"""Ten years: far above any delay that helps, and never the end of a calendar."""

FIRST_YEAR: Final = 1970
LAST_YEAR: Final = 8999


def seconds(
    argument: str, value: Any, *, may_be_zero: bool = True, most: float = MAX_SECONDS, hint: str
) -> float:
    """Return *value* as seconds, fractions kept; at most *most*."""
    # bool is an int to isinstance, and True is no number of seconds to anybody.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and (0 < value <= most or (may_be_zero and value == 0)):
        return float(value)
    low = "from 0 to" if may_be_zero else "above 0 and at most"
    raise refusal(argument, f"a number of seconds {low} {most:g}", value, hint)


def whole(argument: str, value: Any, *, least: int, most: int, hint: str) -> int:
    """Return *value* as a whole number from *least* to *most*."""
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return int(value)
    raise refusal(argument, f"a whole number from {least} to {most}", value, hint)


def name(argument: str, value: object, *, may_be_empty: bool = False) -> str:
    """Return *value* as a name that every database stores and compares exactly."""
    if not isinstance(value, str) or len(value) > NAME_LENGTH or not (value or may_be_empty):
        least = 0 if may_be_empty else 1
        rule = f"a string of {least} to {NAME_LENGTH} characters"
        raise refusal(argument, rule, value, "Use a short name that people recognize.")
    # A PayloadError, which is a ValueError, for what no database stores: NUL, lone surrogates.
    payload.encode(value, max_bytes=8 * NAME_LENGTH, root=argument)
    return str(value)


def moment(argument: str, value: object, *, hint: str) -> datetime:
    """Return *value* as an aware moment; a naive one is in Django's current time zone."""
    if isinstance(value, datetime) and FIRST_YEAR <= value.year <= LAST_YEAR:
        aware = timezone.make_aware(value) if timezone.is_naive(value) else value
        return aware.astimezone(UTC)
    rule = f"a datetime from {FIRST_YEAR} to {LAST_YEAR}"
    raise refusal(argument, rule, value, hint)


def refusal(argument: str, rule: str, value: object, hint: str) -> ValueError:
    """Return the error for *value*: what must hold, what came, what to do."""
    return ValueError(f"{argument} must be {rule}, got {_shown(value)}. {hint}")


def _shown(value: object) -> str:
    # The repr of other classes is their author's code, and may raise.
    if not isinstance(value, int | float | str | datetime | bytes | None):
        return f"an instance of {cut(type(value).__qualname__)}"
    try:
        return cut(repr(value))
    except ValueError:  # An int of more digits than may be written out.
        return "an int without a repr"
