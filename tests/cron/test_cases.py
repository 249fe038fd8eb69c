"""The gathered cases (CASES.md C): each right series, each refusal, each caution."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from django_workqueue import cron
from django_workqueue.exceptions import CronError

CASES = json.loads((Path(__file__).parent / "cases.json").read_text())
SERIES = CASES["cases"] + CASES["seconds_first"] + CASES["every"]

WHY = {
    "seven fields; year in the past: valid but never fires again": "or six with the second first",
    "random field: each parse draws another time, so every scheduler tick moves the job": "R, H",
    "random phase": "R, H",
    "hash field without an id": "R, H",
    "never matches": "must name a date that can come",
    "zero step": "a step of 1 or more",
    "out of range": "must hold numbers from",
    "no sixth weekday": "from #1 to #5",
    "no zeroth weekday": "from #1 to #5",
}


def test_there_are_a_hundred_series() -> None:
    assert len(CASES["cases"]) == 100


@pytest.mark.parametrize("case", SERIES, ids=lambda case: f"{case.get('id', '')} {case['expr']}")
def test_series_is_right(case: dict[str, Any]) -> None:
    at, found = datetime.fromisoformat(case["base"]), []
    for _ in case["expected"]:
        at = cron.next_tick(case["expr"], case.get("tz", "UTC"), at)
        found.append(at.isoformat())
    assert found == case["expected"]


@pytest.mark.parametrize("case", CASES["reject"], ids=lambda case: case["expr"])
def test_refusal_says_why(case: dict[str, Any]) -> None:
    with pytest.raises(CronError) as refused:
        cron.check(case["expr"])
    why = WHY.get(case["why"], "a stepped range that does not run past its end")
    assert why in str(refused.value)
    assert ", got " in str(refused.value) or "no calendar has one" in str(refused.value)


@pytest.mark.parametrize("case", CASES["warn"], ids=lambda case: case["expr"])
def test_what_people_may_read_otherwise_is_cautioned(case: dict[str, Any]) -> None:
    cron.check(case["expr"])
    assert cron.cautions(case["expr"])
    words = cron.describe(case["expr"])
    assert "every 45" not in words
    assert "every 7" not in words
    assert "every 61" not in words


@pytest.mark.parametrize("expression", ["*/15 * * * *", "0 9 * * 1-5", "@daily", "@every 90s"])
def test_what_has_one_reading_is_not_cautioned(expression: str) -> None:
    assert cron.cautions(expression) == []


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("", "five fields"),
        ("* * * *", "five fields"),
        ("@reboot", "must be @every or one of"),
        ("@every 0s", "whole seconds"),
        ("@every 1.5s", "whole seconds"),
        ("@every 90", "whole seconds"),
        ("@every -5s", "whole seconds"),
        ("@every 99999999999999999999999999d", "whole seconds"),
        ("٠ * * * *", "ASCII"),
        ("0\u00a00 * * *", "ASCII"),
        ("0\n0 * * *", "spaces or tabs"),
        ("0 0 * * *" + " " * 1000, "at most 1000"),
        ("0 0 15W * *", "W are not taken"),
        ("0 0 1 * 5#3", "Make two schedules"),
        ("0 0 * * 5#3,1", "not both in one field"),
        ("0,,5 * * * *", "minute field"),
        ("5-1/2 * * * *", "a stepped range"),
        ("0 0 * foo *", "month field"),
        ("? * * * *", "minute field"),
        (5, "text of at most"),
        (None, "text of at most"),
    ],
)
def test_anything_else_is_refused(expression: Any, told: str) -> None:
    with pytest.raises(CronError, match=told):
        cron.check(expression)


@pytest.mark.parametrize("name", ["EST5", "Bogota", "", "../etc/passwd", "Europe/paris", "\0"])
def test_unknown_zone_is_refused_with_a_hint(name: str) -> None:
    with pytest.raises(CronError, match="IANA") as refused:
        cron.check_timezone(name)
    assert "Did you mean" in str(refused.value) or "Europe/Paris" in str(refused.value)


def test_hint_finds_the_region_of_a_city() -> None:
    """Case N7."""
    with pytest.raises(CronError, match="Did you mean 'America/Bogota'"):
        cron.check_timezone("Bogota")
    cron.check_timezone("America/Bogota")


def test_naive_moment_is_refused() -> None:
    with pytest.raises(CronError, match="aware"):
        cron.next_tick("* * * * *", "UTC", datetime(2026, 1, 1))


def test_end_of_the_calendar_is_an_error_of_ours() -> None:
    late = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    for expression in ("* * * * *", "* 0-23 * * *", "@every 1d", "0 0 29 2 *"):
        with pytest.raises(CronError):
            cron.next_tick(expression, "Asia/Tokyo", late)


def test_rhythm_that_the_clocks_always_skip_is_refused() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    with pytest.raises(CronError, match="skipped by the clocks of America/New_York"):
        cron.next_tick("* 2 * 3 7#2", "America/New_York", at)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("* * * * *", "every minute"),
        ("*/5 * * * *", "every 5 minutes"),
        ("0 3 * * *", "at 03:00"),
        (
            "30 9,17 * * 1-5",
            "at 09:30 and 17:30, on Monday, Tuesday, Wednesday, Thursday and Friday",
        ),
        ("0 */2 * * *", "every 2 hours"),
        ("15 * * * *", "every hour at :15"),
        ("0 0 1 1 *", "at 00:00, on day 1, in January"),
        ("0 0 L * *", "at 00:00, on the last day"),
        ("*/20 * * * * *", "every 20 seconds"),
        ("@every 90s", "every 90 seconds"),
        ("@every 1d", "every day"),
        ("@hourly", "every hour at :00"),
        ("13-17 4 * * 5#3", "13-17 4 * * 5#3"),
        ("nonsense", "nonsense"),
    ],
)
def test_words(expression: str, words: str) -> None:
    assert cron.describe(expression) == words
