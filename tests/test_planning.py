"""Which ticks get a job: decided from the row and a moment alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_workqueue import conf
from django_workqueue.models import Schedule
from django_workqueue.scheduler import planning
from django_workqueue.store.scheduling import Firing
from tests.factories import T0, at

SETTINGS = conf.Settings()
HOUR = 3600.0


def row(**columns: Any) -> Schedule:
    given = {"name": "hourly", "task": "shop.tasks.report", "expression": "0 * * * *"}
    return Schedule(**{**given, "next_fire_at": T0, "args": [1], "kwargs": {}, **columns})


def plan(schedule: Schedule, seconds: float) -> Firing:
    return planning.plan(schedule, at(seconds), SETTINGS)


def ticks(firing: Firing) -> list[datetime | None]:
    return [job.scheduled_for for job in firing.jobs]


def behind(**columns: Any) -> Firing:
    """Return what becomes of an hourly schedule that is 25 ticks behind."""
    return plan(row(**columns), 24 * HOUR + 600)


def test_one_due_tick_gets_a_job() -> None:
    firing = plan(row(), 1)
    assert ticks(firing) == [T0]
    assert firing.missed_count == 0
    assert firing.next_fire_at == at(HOUR)


def test_skip_makes_no_job_for_what_was_missed() -> None:
    """Case N6: skip."""
    firing = behind(catch_up="skip")
    assert ticks(firing) == []
    assert firing.missed_count == 25
    assert firing.next_fire_at == at(25 * HOUR)


def test_skip_fires_a_tick_that_is_on_time() -> None:
    firing = plan(row(catch_up="skip"), 2 * SETTINGS.lease_seconds)
    assert ticks(firing) == [T0]
    assert ticks(plan(row(catch_up="skip"), 2 * SETTINGS.lease_seconds + 1)) == []


def test_latest_makes_one_job_for_the_newest() -> None:
    """Case N6: latest; 45: the default after a long pause."""
    firing = behind()
    assert ticks(firing) == [at(24 * HOUR)]
    assert firing.missed_count == 24


def test_all_makes_a_job_for_each_up_to_its_cap() -> None:
    """Case N6: all with max_catch_up 10."""
    firing = behind(catch_up="all", max_catch_up=10)
    assert ticks(firing) == [at(hour * HOUR) for hour in range(15, 25)]
    assert firing.missed_count == 15


def test_noon_that_was_missed_is_made_up() -> None:
    """Case 46."""
    noon = datetime(2026, 3, 3, 12, tzinfo=UTC)
    schedule = row(expression="0 12 * * *", next_fire_at=noon)
    firing = planning.plan(schedule, noon + timedelta(minutes=20), SETTINGS)
    assert ticks(firing) == [noon]


def test_tick_older_than_the_deadline_is_missed_whatever_the_policy() -> None:
    """Case 44."""
    for catch_up in ("skip", "latest", "all"):
        schedule = row(expression="0 12 * * *", deadline_seconds=600.0, catch_up=catch_up)
        firing = plan(schedule, 3 * HOUR)
        assert ticks(firing) == []
        assert firing.missed_count == 1
        assert firing.next_fire_at == at(24 * HOUR)


def test_minutes_of_ten_hours_are_one_job_or_at_most_the_cap() -> None:
    """Case 45."""
    for catch_up, count in (("latest", 1), ("all", 100)):
        schedule = row(expression="* * * * *", catch_up=catch_up, max_catch_up=100)
        firing = plan(schedule, 10 * HOUR)
        assert len(firing.jobs) == count
        assert firing.missed_count == 601 - count


@pytest.mark.parametrize(("catch_up", "count"), [("skip", 1), ("latest", 1), ("all", 7)])
def test_a_year_of_seconds_is_passed_over_in_bounded_steps(catch_up: str, count: int) -> None:
    schedule = row(expression="* * * * * *", catch_up=catch_up, max_catch_up=7)
    found: list[datetime | None] = []
    missed = steps = 0
    while schedule.next_fire_at is not None and schedule.next_fire_at <= at(5000):
        firing = plan(schedule, 5000)
        assert firing.missed_count <= planning.CHUNK_TICKS + 7
        found += ticks(firing)
        missed += firing.missed_count
        schedule.next_fire_at = firing.next_fire_at
        steps += 1
    assert found == [at(second) for second in range(5001 - count, 5001)]
    assert missed == 5001 - count
    assert steps > 1


def test_expires_counts_from_the_tick() -> None:
    """Case N11."""
    firing = behind(catch_up="all", expires_seconds=2 * HOUR + 600)
    assert ticks(firing) == [at(hour * HOUR) for hour in (22, 23, 24)]
    assert [job.run_after for job in firing.jobs] == ticks(firing)
    assert {job.expires_seconds for job in firing.jobs} == {2 * HOUR + 600}
    assert firing.missed_count == 22, "a job that could never start is a missed tick"


def test_jitter_is_the_same_for_a_schedule_and_tick_and_another_for_others() -> None:
    delays = {
        (name, tick): planning.jitter_seconds(row(name=name, jitter_seconds=60.0), at(tick))
        for name in ("a", "b")
        for tick in (0, HOUR)
    }
    again = planning.jitter_seconds(row(name="a", jitter_seconds=60.0), at(0))
    assert delays["a", 0] == again
    assert len(set(delays.values())) == 4
    assert all(0 <= delay < 60 for delay in delays.values())


def test_jitter_delays_the_job_and_not_its_expiry() -> None:
    schedule = row(jitter_seconds=60.0, expires_seconds=HOUR)
    (job,) = plan(schedule, 1).jobs
    delay = planning.jitter_seconds(schedule, T0)
    assert job.run_after == T0 + timedelta(seconds=delay)
    assert job.scheduled_for == T0
    assert job.expires_seconds == HOUR - delay


def test_rhythm_goes_on_from_its_anchor_whatever_was_missed() -> None:
    firing = plan(row(expression="@every 90s"), 1000)
    assert ticks(firing) == [at(990)]
    assert firing.next_fire_at == at(1080)


def test_no_schedule_ticks_for_a_time_before_it_existed() -> None:
    """Row 12 of PEERS.md, as a plan."""
    added = datetime(2026, 11, 30, 10, 10, 30, 5, tzinfo=UTC)
    first = planning.first_tick("0 3 * * *", "UTC", added)
    assert first == datetime(2026, 12, 1, 3, tzinfo=UTC)
    assert planning.first_tick("@every 90s", "UTC", added) == datetime(
        2026, 11, 30, 10, 12, tzinfo=UTC
    )


def test_tick_that_fired_or_an_earlier_one_does_not_again() -> None:
    """The clock was moved back, and the schedule planned afresh."""
    firing = plan(row(last_fire_at=at(HOUR)), HOUR + 1)
    assert ticks(firing) == []
    assert firing.next_fire_at == at(2 * HOUR)


def test_job_is_made_of_the_row_alone() -> None:
    """Case 55: nobody here knows the task."""
    options = {"backend": "default", "timeout": 5, "atomic": True, "dead_letter": False}
    options |= {"unique_key": "k", "unique_while": "queued", "result_ttl": None}
    schedule = row(options=options, max_attempts=7, priority=3, queue_name="mail")
    (job,) = plan(schedule, 1).jobs
    assert (job.task, job.queue_name, job.priority, job.max_attempts) == (
        "shop.tasks.report",
        "mail",
        3,
        7,
    )
    assert (job.timeout, job.atomic, job.dead_letter, job.backend) == (5, True, False, "default")
    assert (job.unique_key, job.unique_while) == ("k", "queued")
    assert job.result_ttl == SETTINGS.result_ttl_seconds
    assert job.payload == '{"args":[1],"kwargs":{}}'
    assert job.schedule == "hourly"


def test_upcoming_ticks_begin_with_the_next_and_are_in_the_zone() -> None:
    found = planning.upcoming(row(timezone="Europe/Paris"), 3)
    assert [tick.utcoffset() for tick in found] == [timedelta(hours=1)] * 3
    assert [tick.astimezone(UTC) for tick in found] == [T0, at(HOUR), at(2 * HOUR)]
    assert planning.upcoming(row(next_fire_at=None), 3) == []
