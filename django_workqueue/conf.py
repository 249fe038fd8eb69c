"""The only reader of ``settings.WORKQUEUE``.

`problems` judges a raw value and writes nothing; `current` returns the settings in force or raises.
Nothing is read at import, and nothing remembered outlives a change of the settings: what is
remembered is compared with the whole content of the dict at each call.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from .backoff import Backoff, from_setting
from .exceptions import BackoffError

NAME: Final = "WORKQUEUE"

DAY_SECONDS: Final = 86_400
YEAR_SECONDS: Final = 366 * DAY_SECONDS
MAX_LEASE_SECONDS: Final = DAY_SECONDS
# The smallest integer column of the supported databases, and far above any budget that helps.
MAX_MAX_ATTEMPTS: Final = 32_767
MIN_BYTES: Final = 1_024
# PostgreSQL refuses a longer string inside jsonb.
MAX_BYTES: Final = 0x0FFF_FFFF
SHOWN_CHARS: Final = 60

DEFAULT_BACKOFF: Final[Mapping[str, object]] = {
    "base": 5,
    "factor": 2,
    "maximum": 3600,
    "jitter": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings in force. Each field is the key of ``WORKQUEUE`` in lower case."""

    database: str = "default"
    lease_seconds: float = 30
    poll_seconds: float = 1.0
    sweep_seconds: float = 10
    grace_seconds: float = 30
    max_attempts: int = 3
    backoff: Backoff = field(default_factory=lambda: from_setting(DEFAULT_BACKOFF))
    result_ttl_seconds: float | None = 86_400
    dead_ttl_seconds: float | None = 7_776_000
    unknown_task_seconds: float = 86_400
    payload_max_bytes: int = 1_048_576
    result_max_bytes: int = 1_048_576
    error_max_bytes: int = 65_536
    notify: bool = True
    outbox_databases: tuple[str, ...] = ("default",)
    task_modules: tuple[str, ...] = ("tasks",)
    redact: tuple[str, ...] = ()


KEYS: Final[tuple[str, ...]] = tuple(each.name.upper() for each in fields(Settings))


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with ``WORKQUEUE``: what must hold and what came, then what to do."""

    kind: Literal["not_a_dict", "unknown_key", "illegal_value", "unknown_database"]
    key: str
    value: str
    message: str
    hint: str

    def __str__(self) -> str:
        return f"{self.message} {self.hint}"


# A rule answers what a value "must be" that it is not, or None for a legal value. It raises
# BackoffError where that says better what to do.
Rule = Callable[[object], str | None]


def _seconds(*, above: float = -math.inf, least: float = -math.inf, most: float) -> Rule:
    def broken(value: object) -> str | None:
        # bool is an int to isinstance, and True is no number of seconds to anybody.
        if isinstance(value, bool) or not isinstance(value, int | float):
            return "a number of seconds"
        if isinstance(value, float) and not math.isfinite(value):
            return "a finite number of seconds"
        if value <= above:
            return f"above {above}"
        if value < least:
            return f"{least} or more"
        return f"at most {most}" if value > most else None

    return broken


def _whole(*, least: int, most: int) -> Rule:
    def broken(value: object) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int):
            return "a whole number"
        if value < least:
            return f"{least} or more"
        return f"at most {most}" if value > most else None

    return broken


def _or_none(rule: Rule) -> Rule:
    def broken(value: object) -> str | None:
        must = None if value is None else rule(value)
        return must and f"{must}, or None"

    return broken


def _flag(value: object) -> str | None:
    return None if isinstance(value, bool) else "True or False"


def _name(value: object) -> str | None:
    return None if isinstance(value, str) and value else "a name"


def _dotted(value: object) -> str | None:
    parts = value.split(".") if isinstance(value, str) else [""]
    return None if all(part.isidentifier() for part in parts) else "a dotted module name"


def _each(rule: Rule, what: str) -> Rule:
    def broken(value: object) -> str | None:
        # A plain string is a sequence of letters: ("tasks") without its comma is such a string.
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            return f"a list or tuple of {what}"
        if any(rule(item) for item in value):
            return f"a list or tuple of {what} and nothing else"
        return f"a list of different {what}" if len(set(value)) < len(value) else None

    return broken


def _backoff(value: object) -> str | None:
    from_setting(value)
    return None


_BYTES: Final = _whole(least=MIN_BYTES, most=MAX_BYTES)

# Key: its rule, and what to do when it is broken.
_RULES: Final[Mapping[str, tuple[Rule, str]]] = {
    "DATABASE": (_name, "Name the alias in DATABASES whose database holds the jobs."),
    "LEASE_SECONDS": (
        _seconds(above=0, most=MAX_LEASE_SECONDS),
        "Set it above the longest pause a worker may have.",
    ),
    "POLL_SECONDS": (
        _seconds(above=0, most=3_600),
        "Set it to how late a job may start when no wake-up arrives.",
    ),
    "SWEEP_SECONDS": (
        _seconds(above=0, most=DAY_SECONDS),
        "Set it to how long after its lease the job of a dead worker may wait.",
    ),
    "GRACE_SECONDS": (
        _seconds(least=0, most=DAY_SECONDS),
        "Set it to how long running jobs may go on after a stop signal; 0 gives them no time.",
    ),
    "MAX_ATTEMPTS": (
        _whole(least=1, most=MAX_MAX_ATTEMPTS),
        "Set it to how often a job may be started; 1 means that it is never retried.",
    ),
    "BACKOFF": (_backoff, ""),
    "RESULT_TTL_SECONDS": (
        _or_none(_seconds(least=0, most=100 * YEAR_SECONDS)),
        "Use 0 to keep no results and None to keep them for ever.",
    ),
    "DEAD_TTL_SECONDS": (
        _or_none(_seconds(above=0, most=100 * YEAR_SECONDS)),
        "Use None to keep dead jobs for ever.",
    ),
    "UNKNOWN_TASK_SECONDS": (
        _seconds(least=0, most=YEAR_SECONDS),
        "Set it to how long a job may wait for a worker that knows its task.",
    ),
    "PAYLOAD_MAX_BYTES": (_BYTES, "Keep large data elsewhere and pass its key to the task."),
    "RESULT_MAX_BYTES": (_BYTES, "Keep large data elsewhere and return its key."),
    "ERROR_MAX_BYTES": (_BYTES, "Longer errors are cut, never refused."),
    "NOTIFY": (_flag, "Use False behind a pooler in transaction mode: workers then poll."),
    "OUTBOX_DATABASES": (
        _each(_name, "database aliases"),
        'Write ("default",) with its comma, or [] for no outbox.',
    ),
    "TASK_MODULES": (_each(_dotted, "dotted module names"), 'Write ("tasks",) with its comma.'),
    "REDACT": (_each(_name, "argument names"), 'Write ("password",) with its comma.'),
}


def problems(raw: object, *, aliases: Collection[str] | None = None) -> list[Problem]:
    """Return everything wrong with *raw* as a value of ``WORKQUEUE``, in its own order.

    With *aliases*, databases that are not among them are problems too.
    """
    if not isinstance(raw, Mapping):
        message = f"{NAME} must be a dict, got {_shown(raw)}."
        hint = "Remove it to take every default."
        return [Problem("not_a_dict", NAME, _shown(raw), message, hint)]
    return [found for key, value in raw.items() for found in _judged(key, value, aliases)]


def problem(key: str, value: object) -> Problem | None:
    """Return what is wrong with *value* under the known *key*: for options that override it."""
    rule, hint = _RULES[key]
    try:
        must = rule(value)
    except BackoffError as error:
        must, hint = "a backoff that can be used", f"There, {error}"
    if must is None:
        return None
    message = f'{NAME}["{key}"] must be {must}, got {_shown(value)}.'
    return Problem("illegal_value", key, _shown(value), message, hint)


def current_problems() -> list[Problem]:
    """Return everything wrong with the settings in force now."""
    return problems(_raw(), aliases=tuple(connections))


def current() -> Settings:
    """Return the settings in force now. Raises ImproperlyConfigured that names every problem."""
    global _remembered
    raw, aliases = _raw(), tuple(connections.settings)
    # repr, not equality: 1 == True == 1.0, and only one of them is legal at a time. It also sees
    # a dict changed in place, which no signal of Django's announces.
    content = _repr((raw, aliases))
    known, parsed = _remembered
    if known != content:
        if found := problems(raw, aliases=aliases):
            raise ImproperlyConfigured("\n".join(map(str, found)))
        parsed = _parsed(raw)
        _remembered = (content, parsed)
    return parsed


def is_given(key: str) -> bool:
    """Tell whether the project sets *key*, be it to its default."""
    return key in _raw()


def _raw() -> Any:
    return getattr(django_settings, NAME, {})


def _judged(key: object, value: object, aliases: Collection[str] | None) -> Iterator[Problem]:
    if key not in _RULES:
        yield _unknown_key(key, value)
    elif found := problem(str(key), value):
        yield found
    elif aliases is not None:
        yield from _unknown_databases(str(key), value, aliases)


def _unknown_key(key: object, value: object) -> Problem:
    near = difflib.get_close_matches(str(key).upper(), KEYS, n=1)
    hint = f'Did you mean "{near[0]}"?' if near else f"The settings are {', '.join(KEYS)}."
    shown = f'"{key}"' if isinstance(key, str) and len(key) <= SHOWN_CHARS else _shown(key)
    message = f"{NAME}[{shown}] is not a setting."
    return Problem("unknown_key", str(key), _shown(value), message, hint)


def _unknown_databases(key: str, value: Any, aliases: Collection[str]) -> Iterator[Problem]:
    named = {"DATABASE": [value], "OUTBOX_DATABASES": value}.get(key, [])
    for alias in named:
        if alias not in aliases:
            near = difflib.get_close_matches(alias, aliases, n=1)
            hint = f"DATABASES has {', '.join(map(repr, aliases))}."
            hint += f' Did you mean "{near[0]}"?' if near else ""
            must = "name only aliases in DATABASES" if key != "DATABASE" else "be in DATABASES"
            message = f'{NAME}["{key}"] must {must}, got {_shown(alias)}.'
            yield Problem("unknown_database", key, _shown(alias), message, hint)


def _parsed(raw: Mapping[str, Any]) -> Settings:
    values = {key.lower(): value for key, value in raw.items()}
    for name in ("outbox_databases", "task_modules", "redact"):
        if name in values:
            values[name] = tuple(values[name])
    if "backoff" in values:
        values["backoff"] = from_setting(values["backoff"])
    return Settings(**values)


def _shown(value: object) -> str:
    text = _repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS - 1]}…"


def _repr(value: object) -> str:
    try:
        return repr(value)
    except ValueError:  # An int of 5,000 digits has no repr, and is still to be refused by name.
        return f"<{type(value).__name__} without a repr>"


_remembered: tuple[str, Settings] = ("", Settings())
