"""Ticks to jobs, in this process; what several processes do is in tests/crash."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection, connections

from django_workqueue import clock, conf, cron, scheduler
from django_workqueue.locks import lock
from django_workqueue.models import LiveJob, Schedule
from django_workqueue.notifying import tell_schedulers
from django_workqueue.scheduler import LOCK_NAME, Scheduler, TickReport, planning, ticking
from django_workqueue.schedules import declaring, schedule
from django_workqueue.store import BaseStore, get_store
from tests import factories
from tests.app.tasks import add
from tests.factories import T0, at
from tests.processes import wait_until
from tests.schedule_rows import no_declarations, ticks_of
from tests.timescale import PATIENCE_SECONDS

HOUR = 3600.0
SETTINGS = conf.Settings()


@pytest.fixture(autouse=True)
def nothing_declared() -> Iterator[None]:
    with no_declarations():
        yield


@pytest.fixture
def store(db: None) -> BaseStore:
    return get_store()


@pytest.fixture
def real_store(transactional_db: None) -> BaseStore:
    return get_store()


def tick(store: BaseStore, seconds: float = 1) -> scheduler.TickReport:
    return scheduler.tick(store, SETTINGS, now=at(seconds))


def stored(store: BaseStore, name: str = "nightly") -> Any:
    return store.schedules().values().get(pk=name)


def test_due_tick_becomes_a_job_and_a_second_look_none(store: BaseStore) -> None:
    factories.schedule(store)
    assert tick(store).job_count == 1
    assert tick(store).job_count == 0
    assert ticks_of("nightly") == [T0]


@pytest.mark.parametrize(
    ("catch_up", "made"),
    [("skip", []), ("latest", [24]), ("all", list(range(15, 25)))],
)
def test_policy_decides_what_25_missed_hours_become(
    store: BaseStore, catch_up: str, made: list[int]
) -> None:
    """Case N6."""
    factories.schedule(store, catch_up=catch_up, max_catch_up=10)
    tick(store, 24 * HOUR + 600)
    assert ticks_of("nightly") == [at(hour * HOUR) for hour in made]
    row = stored(store)
    assert (row["fire_count"], row["missed_count"]) == (len(made), 25 - len(made))
    assert row["next_fire_at"] == at(25 * HOUR)
    assert not tick(store, 24 * HOUR + 600).fired, "a second tick at the same moment"


def test_what_was_missed_is_logged_with_its_counts(
    store: BaseStore, caplog: pytest.LogCaptureFixture
) -> None:
    factories.schedule(store, catch_up="all", max_catch_up=10)
    with caplog.at_level(logging.INFO, "django_workqueue.scheduler"):
        tick(store, 24 * HOUR + 600)
    enqueued = [each for each in caplog.records if each.message == "tick enqueued"]
    (missed,) = [each for each in caplog.records if each.message == "ticks missed"]
    assert len(enqueued) == 10
    assert enqueued[0].scheduled_for == at(15 * HOUR)  # type: ignore[attr-defined]
    assert (missed.missed, missed.schedule) == (15, "nightly")  # type: ignore[attr-defined]


def test_schedule_resumed_after_an_hour_has_no_burst(store: BaseStore) -> None:
    """Case N9."""
    for catch_up in ("skip", "latest", "all"):
        factories.schedule(store, catch_up, expression="* * * * *", catch_up=catch_up)
        store.pause_schedule(catch_up)
    assert not tick(store, HOUR).fired
    for catch_up in ("skip", "latest", "all"):
        store.resume_schedule(catch_up)
    tick(store, HOUR + 30)
    counts = {name: len(ticks_of(name)) for name in ("skip", "latest", "all")}
    assert counts == {"skip": 1, "latest": 1, "all": 61}
    assert stored(store, "skip")["missed_count"] == 60


@pytest.mark.parametrize(
    "change",
    [
        {"expression": "61 * * * *"},
        {"timezone": "Nowhere/Land"},
        {"expression": "@every 0s"},
        {"kwargs": [1]},
        {"args": 5},
        {"options": [1]},
    ],
    ids=str,
)
def test_row_nobody_can_plan_is_marked_and_every_other_fires(
    store: BaseStore, change: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Case N10."""
    factories.schedule(store, "a wrong one", next_fire_at=at(-60), **change)
    factories.schedule(store, "right")
    assert tick(store).failed == ["a wrong one"]
    assert ticks_of("right") == [T0]
    assert stored(store, "a wrong one")["error"]
    assert not tick(store, 2).failed, "it is not looked at again and again"
    assert [each.message for each in caplog.records].count("schedule cannot be planned") == 1


def test_row_whose_json_is_broken_is_marked_and_every_other_fires(store: BaseStore) -> None:
    """Case N10."""
    factories.schedule(store, "broken", next_fire_at=at(-60))
    factories.schedule(store, "right")
    with connection.cursor() as cursor:
        table = connection.ops.quote_name(Schedule._meta.db_table)
        cursor.execute(f"UPDATE {table} SET args = '[1' WHERE name = 'broken'")
    assert tick(store).failed == ["broken"]
    assert ticks_of("right") == [T0]
    error = store.schedules().values_list("error", flat=True).get(pk="broken")
    assert "JSONDecodeError" in error


@pytest.mark.parametrize(
    "change",
    [{"priority": 200}, {"options": {"atomic": None}}, {"jitter_seconds": 1e15}],
    ids=str,
)
def test_row_whose_job_cannot_be_written_is_marked_and_every_other_fires(
    real_store: BaseStore, change: dict[str, Any]
) -> None:
    """Case N10."""
    factories.schedule(real_store, "a wrong one", next_fire_at=at(-60), **change)
    factories.schedule(real_store, "right")
    assert tick(real_store).failed == ["a wrong one"]
    assert ticks_of("right") == [T0]
    row = stored(real_store, "a wrong one")
    assert row["error"]
    assert (row["next_fire_at"], row["fire_count"]) == (at(-60), 0)


def test_row_whose_json_is_broken_keeps_no_other_from_being_written(store: BaseStore) -> None:
    """Case N10."""
    schedule("a broken one", add, args=[1, 2], cron="0 3 * * *")
    scheduler.write(store)
    with connection.cursor() as cursor:
        table = connection.ops.quote_name(Schedule._meta.db_table)
        cursor.execute(f"UPDATE {table} SET args = '[1' WHERE name = 'a broken one'")
    schedule("right", add, args=[1, 2], cron="0 3 * * *")

    written = scheduler.write(store)

    assert (written.added, written.refused) == (["right"], ["a broken one"])


def test_marked_row_is_planned_again_once_it_can_be(store: BaseStore) -> None:
    factories.schedule(store, error="was wrong", next_fire_at=at(-60))
    assert scheduler.replan(store, now=T0) == ["nightly"]
    assert stored(store)["error"] == ""
    assert tick(store).job_count == 1, "its policy decides about what it missed"


def test_replan_follows_the_zone_s_new_data(store: BaseStore) -> None:
    """The data said another hour when it was planned."""
    factories.schedule(
        store, expression="0 12 * * *", timezone="Europe/Paris", next_fire_at=at(2 * HOUR)
    )
    factories.schedule(store, "rhythm", expression="@every 90s", next_fire_at=at(7))
    factories.schedule(store, "overdue", next_fire_at=at(-7200))
    assert scheduler.replan(store, now=T0) == ["nightly"]
    assert stored(store)["next_fire_at"] == at(23 * HOUR)
    assert stored(store)["version"] == 1
    assert not scheduler.replan(store, now=T0)


def test_replan_reads_the_zone_s_data_anew(store: BaseStore) -> None:
    before = cron.timezone("Europe/Paris")
    scheduler.replan(store, now=T0)
    assert cron.timezone("Europe/Paris") is not before


def test_replan_never_goes_back_behind_a_tick_that_fired(store: BaseStore) -> None:
    """The clock was moved back by two hours."""
    factories.schedule(store)
    tick(store)
    assert not scheduler.replan(store, now=at(-2 * HOUR))
    assert stored(store)["next_fire_at"] == at(HOUR)


def test_backward_step_of_the_clock_fires_nothing_twice(store: BaseStore) -> None:
    factories.schedule(store, expression="* * * * *")
    seconds = [0, 60, 120, -3600, -1800, 60, 119, 120, 180, 181]
    for each in seconds:
        tick(store, each)
    assert ticks_of("nightly") == [at(0), at(60), at(120), at(180)]


def test_edit_after_a_backward_step_does_not_stop_the_schedule(store: BaseStore) -> None:
    row = factories.schedule(store, last_fire_at=at(HOUR), next_fire_at=at(2 * HOUR))
    store.edit_schedule(row, {"expression": "* * * * *", "next_fire_at": at(60)}, now=T0)
    assert tick(store, 90).job_count == 0
    assert stored(store)["next_fire_at"] == at(120)
    for minute in range(2, 62):
        tick(store, minute * 60)
    assert ticks_of("nightly") == [at(HOUR + 60)]


def test_change_of_zone_makes_no_flood(store: BaseStore) -> None:
    """Case 47."""
    with no_declarations():
        schedule("sums", add, cron="*/5 * * * *", timezone="UTC", args=(1,))
        scheduler.write(store, now=T0)
    with no_declarations():
        schedule("sums", add, cron="*/5 * * * *", timezone="America/New_York", args=(1,))
        scheduler.write(store, now=at(30 * HOUR + 1))
    assert not tick(store, 30 * HOUR + 2).fired
    assert stored(store, "sums")["next_fire_at"] > at(30 * HOUR + 1)


def test_task_that_nobody_here_knows_is_enqueued_by_name(store: BaseStore) -> None:
    """Cases 27 and 55: one job a tick, whatever becomes of it; the others go on."""
    factories.schedule(store, "gone", task="removed.tasks.gone")
    factories.schedule(store, "right")
    for hour in range(3):
        assert tick(store, hour * HOUR + 1).job_count == 2
    assert set(LiveJob.objects.filter(schedule="gone").values_list("task", flat=True)) == {
        "removed.tasks.gone"
    }
    assert len(ticks_of("gone")) == 3


def test_due_schedules_beyond_a_batch_are_fired_without_a_rest(store: BaseStore) -> None:
    with mock.patch.object(ticking, "BATCH", 2):
        for number in range(5):
            factories.schedule(store, f"s{number}")
        counts = []
        while (report := tick(store)).fired:
            counts.append(report.job_count)
            assert report.has_more == (report.job_count == 2)
    assert counts == [2, 2, 1]


def test_schedule_far_behind_lets_the_others_fire_in_between(store: BaseStore) -> None:
    factories.schedule(store, "seconds", expression="* * * * * *", next_fire_at=T0)
    factories.schedule(store, "right", next_fire_at=at(1))
    first = tick(store, HOUR)
    assert first.has_more
    assert ticks_of("seconds") == []
    assert len(ticks_of("right")) == 1
    while tick(store, HOUR).has_more:
        pass
    assert ticks_of("seconds") == [at(HOUR)]
    assert stored(store, "seconds")["missed_count"] == 3600


def raced(store: BaseStore, racers: int = 10) -> list[int]:
    """Let threads read one due schedule, all of them, and then fire it; return their job counts."""
    factories.schedule(store)
    read = threading.Barrier(racers)
    counts: list[int] = []
    real = planning.plan

    def plan_together(*given: Any) -> Any:
        read.wait(PATIENCE_SECONDS)
        return real(*given)

    def race() -> None:
        try:
            counts.append(tick(get_store()).job_count)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=race) for _ in range(racers)]
    with mock.patch.object(planning, "plan", plan_together):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
    return sorted(counts)


def test_ten_racing_schedulers_without_a_lock_make_one_job(real_store: BaseStore) -> None:
    """Case N12."""
    assert raced(real_store) == [0] * 9 + [1]
    assert ticks_of("nightly") == [T0]


def test_control_of_the_race_without_the_compare_and_set_each_makes_a_job(
    real_store: BaseStore,
) -> None:
    with (
        mock.patch.object(BaseStore, "_take", return_value=True),
        mock.patch.object(BaseStore, "_move", return_value=1),
    ):
        assert raced(real_store) == [1] * 10
    assert ticks_of("nightly") == [T0] * 10


# The loop


def due_in(store: BaseStore, seconds: float, name: str = "soon", **columns: Any) -> None:
    given = {"expression": "@every 1h", "next_fire_at": store.now() + timedelta(seconds=seconds)}
    factories.schedule(store, name, **{**given, **columns})


def settings(**changes: Any) -> conf.Settings:
    return replace(conf.current(), **{"lease_seconds": 2.0, "poll_seconds": 60.0, **changes})


def test_rests_until_the_next_tick_and_no_longer(real_store: BaseStore) -> None:
    running = Scheduler(real_store, settings(lease_seconds=120.0))
    with mock.patch.object(Scheduler, "_close"):
        due_in(real_store, 3.0)
        assert 1.0 < running.step() <= 3.0
        real_store.schedules().update(enabled=False)
        assert running.step() >= 10.0, "nothing is enabled, and it goes on"
    running._close()


def test_leads_alone_and_another_takes_over_when_it_ends(real_store: BaseStore) -> None:
    first, second = (Scheduler(real_store, settings()) for _ in range(2))
    first.step()
    assert second.step() == 0.25, "it stands by, and asks again within the lease"
    assert (first.leading, second.leading) == (True, False)
    first._close()
    with clock.Frozen(at=clock.monotonic() + 1.0):
        second.step()
    assert second.leading
    second._close()


def test_lock_of_a_leader_that_is_gone_ends_within_half_a_lease(real_store: BaseStore) -> None:
    """Case 54."""
    gone = lock(LOCK_NAME, ttl=settings().lease_seconds / 2)
    assert gone.acquire()
    due_in(real_store, 0.0)
    running = Scheduler(real_store, settings())
    running.run_thread()
    try:
        waited = wait_until(lambda: ticks_of("soon"), "the tick")
        assert waited < PATIENCE_SECONDS / 2
        assert len(ticks_of("soon")) == 1
    finally:
        running.stop()
        assert running.join(PATIENCE_SECONDS)


@pytest.mark.vendor("postgresql")
def test_wakes_when_a_schedule_changed(real_store: BaseStore) -> None:
    """The poll is a minute away: only the notification can be what woke it."""
    looked = threading.Event()
    running = Scheduler(
        real_store, settings(lease_seconds=600.0), on_tick=lambda report: looked.set()
    )
    running.run_thread()
    try:
        assert looked.wait(PATIENCE_SECONDS)
        due_in(real_store, 0.0)
        tell_schedulers(real_store)
        wait_until(lambda: ticks_of("soon"), "the tick")
    finally:
        running.stop()
        assert running.join(PATIENCE_SECONDS)


@pytest.mark.vendor("postgresql")
def test_is_not_woken_by_every_job(real_store: BaseStore) -> None:
    looks: list[TickReport] = []
    running = Scheduler(real_store, settings(lease_seconds=600.0), on_tick=looks.append)
    running.run_thread()
    try:
        wait_until(lambda: looks, "the first look")
        for _ in range(20):
            add.enqueue(1)
        tell_schedulers(real_store)
        wait_until(lambda: len(looks) > 1, "the look that was asked for")
        assert len(looks) == 2
    finally:
        running.stop()
        assert running.join(PATIENCE_SECONDS)


def test_goes_on_after_an_outage(real_store: BaseStore) -> None:
    due_in(real_store, 0.0)
    faults = [OperationalError("gone"), KeyError("a bug"), OperationalError("gone")]
    real = BaseStore.due_names

    def failing(self: BaseStore, **given: Any) -> list[str]:
        if faults:
            raise faults.pop()
        return real(self, **given)

    with mock.patch.object(BaseStore, "due_names", failing):
        running = Scheduler(real_store, settings())
        running.run_thread()
        try:
            wait_until(lambda: ticks_of("soon"), "the tick")
        finally:
            running.stop()
            assert running.join(PATIENCE_SECONDS)
    assert not faults


def test_two_schedulers_that_start_at_once_make_one_row_and_one_log_line(
    real_store: BaseStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 41."""
    schedule("once a year", add, cron="0 0 1 1 *", args=(1,))
    known = dict(declaring._declared)
    ready = threading.Barrier(2)

    def start() -> None:
        try:
            ready.wait(PATIENCE_SECONDS)
            scheduler.write(get_store())
            ready.wait(PATIENCE_SECONDS)
            get_store().schedules().update(next_fire_at=T0)
            ready.wait(PATIENCE_SECONDS)
            scheduler.tick(get_store(), SETTINGS, now=at(1))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=start) for _ in range(2)]
    with (
        mock.patch.object(declaring, "_declared", known),
        caplog.at_level(logging.INFO, "django_workqueue.scheduler"),
    ):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
    assert real_store.schedules().count() == 1
    assert [each.message for each in caplog.records].count("tick enqueued") == 1


# The command


def test_once_writes_fires_and_ends(store: BaseStore, capsys: pytest.CaptureFixture[str]) -> None:
    schedule("sums", add, every=timedelta(hours=1), args=(1,))
    call_command("runscheduler", "--once")
    assert "0 enqueued, 0 missed" in capsys.readouterr().out
    assert stored(store, "sums")["enabled"]
    due_in(store, -5.0)
    call_command("runscheduler", "--once", "--json")
    assert '"schedule": "soon"' in capsys.readouterr().out
    assert len(ticks_of("soon")) == 1


def test_schedule_that_is_refused_ends_the_command_with_one_line(store: BaseStore) -> None:
    def wrong() -> None:
        schedule("sums", add, cron="61 * * * *", args=(1,))

    with (
        mock.patch("django_workqueue.schedules.discover", wrong),
        pytest.raises(CommandError, match="The schedule 'sums'") as refused,
    ):
        call_command("runscheduler", "--once")
    assert refused.value.returncode == 2
