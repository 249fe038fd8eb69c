"""Moments, ages, JSON and long texts as people read them. Everything returned is escaped."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any, Final

from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.timesince import timesince, timeuntil
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

EMPTY: Final = mark_safe("—")  # a constant
SHOWN_CHARS: Final = 100_000
"""What a page shows of one value or traceback; the rest is said to be there."""

LINE_CHARS: Final = 200
MINUTE_SECONDS: Final = 60


def moment(value: datetime | None) -> SafeString:
    """Return a moment in the current time zone, with its UTC as machines read it."""
    if value is None:
        return EMPTY
    local = timezone.localtime(value, timezone.get_current_timezone())
    text = f"{date_format(local, 'Y-m-d H:i:s')} {local.tzname()}"
    return format_html(
        '<time datetime="{}" title="{}">{}</time>', value.isoformat(), utc_text(value), text
    )


def age(value: datetime | None, now: datetime) -> SafeString:
    """Return how long ago *value* was, or how long it will be, by the database's *now*."""
    if value is None:
        return EMPTY
    text = _("in %(time)s") if value > now else _("%(time)s ago")
    text %= {"time": _span(value, now)}
    return format_html(
        '<time datetime="{}" title="{}">{}</time>', value.isoformat(), utc_text(value), text
    )


def _span(value: datetime, now: datetime) -> str:
    seconds = int(abs((now - value).total_seconds()))
    if seconds < MINUTE_SECONDS:
        # Django's words begin with minutes.
        return ngettext("%(count)d second", "%(count)d seconds", seconds) % {"count": seconds}
    return timeuntil(value, now) if value > now else timesince(value, now)


def utc_text(value: datetime) -> str:
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f UTC")


def name(text: str) -> SafeString:
    """Return a dotted name that a narrow column may break after a dot or an underscore."""
    return format_html_join(
        mark_safe("<wbr>"),  # a constant
        "{}",
        ([part] for part in re.findall(r"[^._]*[._]?", text) if part),
    )


def code(text: str) -> SafeString:
    """Return *text* in the monospaced type of names, or a dash where there is none."""
    return format_html("<code>{}</code>", text) if text else EMPTY


def pretty(value: Any) -> str:
    """Return *value* as indented JSON, its middle left out where it is very long."""
    return bounded(as_json(value))


def as_json(value: Any) -> str:
    """Return *value* as indented JSON that is read back as the same value.

    Any script is written as it is, but what cannot be seen or typed is escaped.
    """
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return "".join(
        char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text
    )


def inline_call(call: Any) -> str:
    """Return stored arguments as they would be written in a call: `1, name="x"`."""
    given = [json.dumps(item, ensure_ascii=False) for item in call["args"]]
    for name, item in call["kwargs"].items():
        given.append(f"{name}={json.dumps(item, ensure_ascii=False)}")
    return ", ".join(given)


def bounded(text: str, limit: int = SHOWN_CHARS) -> str:
    """Return *text*, or its two ends around a line that says how much is left out."""
    if len(text) <= limit:
        return text
    half = limit // 2
    left_out = _("… %(count)d characters are not shown …") % {"count": len(text) - 2 * half}
    return f"{text[:half]}\n{left_out}\n{text[-half:]}"


def visible(text: str) -> str:
    r"""Return *text* with control characters and half characters written out, as `\x1b`.

    A terminal's colours, a NUL or a mark that turns the direction of the line would otherwise
    change or hide what the reader sees.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in "\n\t" else _written(char) for char in text
    )


def _written(char: str) -> str:
    return ascii(char)[1:-1]


def first_line(text: str, limit: int = LINE_CHARS) -> str:
    """Return the first line of *text* that is not empty, cut to *limit* characters."""
    stripped = text.lstrip()
    line = visible(stripped[: 4 * limit].partition("\n")[0].rstrip())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
