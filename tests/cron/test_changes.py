"""Around every change of the clocks: what an independent look at each minute finds."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from unittest import mock
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_workqueue import cron
from django_workqueue.cron.expressions import Cron
from tests.cron.reference import ZONES, Expected, changes, next_tick

AROUND_MINUTES = 36 * 60
WINDOW = timedelta(hours=50)


def field(least: int, most: int, *, star: int = 1) -> st.SearchStrategy[tuple[str, frozenset[int]]]:
    """Return texts of one field with the numbers they mean."""
    every = frozenset(range(least, most + 1))
    number = st.integers(least, most)
    forms = [
        *[st.just(("*", every))] * star,
        number.map(lambda n: (str(n), frozenset({n}))),
        number.map(lambda n: (f"{n}-{n}", frozenset({n}))),
        st.integers(1, most + 5).map(lambda n: (f"*/{n}", frozenset(range(least, most + 1, n)))),
        st.tuples(number, number).map(ranged(every)),
        st.sets(number, min_size=2, max_size=4).map(
            lambda some: (",".join(map(str, some)), frozenset(some))
        ),
    ]
    return st.one_of(*forms)


def ranged(every: frozenset[int]) -> Callable[[tuple[int, int]], tuple[str, frozenset[int]]]:
    def text(ends: tuple[int, int]) -> tuple[str, frozenset[int]]:
        first, last = ends
        inside = {
            n for n in every if (first <= n <= last) or (first > last and not last < n < first)
        }
        return f"{first}-{last}", frozenset(inside)

    return text


@st.composite
def expressions(draw: st.DrawFn) -> Expected:
    fields = [
        draw(field(0, 59)),
        draw(field(0, 23)),
        draw(field(1, 28, star=6).map(month_long)),
        ("*", frozenset(range(1, 13))),
        draw(field(0, 6, star=6)),
    ]
    return Expected(" ".join(text for text, _ in fields), *(numbers for _, numbers in fields))


def month_long(field: tuple[str, frozenset[int]]) -> tuple[str, frozenset[int]]:
    """Let stars and what runs past the 28th run to the 31st."""
    text, numbers = field
    if text == "*":
        return text, frozenset(range(1, 32))
    if text.startswith("*/"):
        return text, frozenset(range(1, 32, int(text[2:])))
    first, _, last = text.partition("-")
    if last and int(first) > int(last):
        return text, numbers | {29, 30, 31}
    return text, numbers


@st.composite
def moments(draw: st.DrawFn) -> tuple[str, datetime]:
    """Return a zone, and a moment around one of its changes."""
    zone = draw(st.sampled_from(ZONES))
    change = draw(st.sampled_from(changes(zone)))
    minutes = draw(st.integers(-AROUND_MINUTES, AROUND_MINUTES))
    return zone, change + timedelta(minutes=minutes, seconds=draw(st.sampled_from([0, 1, 59.5])))


@settings(max_examples=80, deadline=None)
@given(moments(), expressions())
def test_next_tick_is_the_one_that_a_look_at_each_minute_finds(
    moment: tuple[str, datetime], expected: Expected
) -> None:
    zone, after = moment
    found = cron.next_tick(expected.text, zone, after).astimezone(UTC)
    assert min(found, after + WINDOW) == next_tick(expected, ZoneInfo(zone), after, WINDOW)


@settings(max_examples=50, deadline=None)
@given(moments(), st.one_of(expressions().map(lambda each: each.text), st.just("@every 45m")))
def test_ticks_rise_strictly_in_their_zone(moment: tuple[str, datetime], text: str) -> None:
    """Case 52."""
    zone, after = moment
    series = [after, *islice(cron.ticks(text, zone, after), 100)]
    assert all(
        earlier.astimezone(UTC) < later.astimezone(UTC) for earlier, later in pairwise(series)
    )
    assert all(str(each.tzinfo) == zone for each in series[1:])


@settings(max_examples=50, deadline=None)
@given(
    moments(), st.text(max_size=30) | st.from_regex(r"[0-9*/,LWRH#?a-f -]{1,20}", fullmatch=True)
)
def test_no_text_raises_anything_else(moment: tuple[str, datetime], text: str) -> None:
    cron.describe(text)
    try:
        cron.check(text)
        found = cron.next_tick(text, *moment)
    except cron.CronError:
        return
    assert found > moment[1]


@pytest.mark.parametrize(
    "expression",
    ["* * * * * *", "* 0-59 2 * * *", "*/7 2 * * *", "0-59 0-23 * * *", "30 2 * * *", "0 9 29 2 *"],
)
@pytest.mark.parametrize("zone", ["America/New_York", "Australia/Lord_Howe", "America/Santiago"])
def test_tick_is_found_in_few_searches_wherever_a_change_is(expression: str, zone: str) -> None:
    """Case 52: under 10 ms, as a count of what costs. The figure itself is in the benchmarks."""
    searches = counted = 0

    def next_wall(self: Cron, after: datetime) -> datetime:
        nonlocal searches
        searches += 1
        return real(self, after)

    real = Cron.next_wall
    with mock.patch.object(Cron, "next_wall", next_wall):
        for change in changes(zone)[:4]:
            for minutes in range(-180, 181, 7):
                cron.next_tick(expression, zone, change + timedelta(minutes=minutes))
                counted += 1
    assert counted
    assert searches <= 2 * counted + 8, "a search for a tick, and one more around a change"


@pytest.mark.soak
@pytest.mark.parametrize("zone", ZONES)
def test_ticks_rise_at_every_change_of_a_zone(zone: str) -> None:
    """Case 52: each change from 2015 to 2030, from 36 hours before to 36 after."""
    texts = ("*/17 * * * *", "7 0-23 * * *", "0 */2 * * *", "30 1,2,3 * * *", "0 0 * * 0")
    for change in changes(zone):
        for text in texts:
            after = change - timedelta(minutes=AROUND_MINUTES)
            while after < change + timedelta(minutes=AROUND_MINUTES):
                found = cron.next_tick(text, zone, after)
                assert found > after
                after = found.astimezone(UTC)


def test_midnight_that_is_missing_does_not_stop_the_ticks() -> None:
    """Case 53."""
    after = datetime(2022, 9, 10, 12, tzinfo=ZoneInfo("America/Santiago"))
    days = [each.day for each in islice(cron.ticks("0 0 * * *", "America/Santiago", after), 5)]
    assert days == [11, 12, 13, 14, 15]


def test_schedule_in_a_zone_west_of_the_project_s_ticks_once_a_day() -> None:
    """Case 48."""
    after = datetime(2025, 6, 1, 0, tzinfo=ZoneInfo("Europe/Vilnius"))
    found = list(islice(cron.ticks("0 9 * * *", "America/New_York", after), 3))
    assert [(later - earlier).total_seconds() for earlier, later in pairwise(found)] == [86400] * 2


def test_real_seconds_do_not_follow_the_clocks() -> None:
    """Case 57."""
    after = datetime.fromisoformat("2025-03-09T01:30:00-05:00")
    found = cron.next_tick("@every 7200s", "America/New_York", after)
    assert found.isoformat() == "2025-03-09T04:30:00-04:00"
