"""G9: at most one job per schedule and tick, whatever its schedulers suffer."""

from __future__ import annotations

import signal
import sqlite3
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from django_workqueue import conf, cron, scheduler
from django_workqueue.models import LiveJob, Schedule
from django_workqueue.scheduler import planning
from django_workqueue.store import BaseStore, get_store
from tests import factories
from tests.crash.fleet import Fleet, go_on, stop
from tests.factories import at
from tests.processes import SETTINGS, Process, wait_until
from tests.schedule_rows import ticks_of
from tests.timescale import LEASE_SECONDS

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = 3600.0
SKEWS = (0.0, 0.0, HOUR, -HOUR)
LEADS = "scheduler leads"


def every_second(store: BaseStore, count: int) -> list[str]:
    """Write schedules that tick each second and make up for what they miss; return their names."""
    names = [f"second-{number}" for number in range(count)]
    first = store.now().replace(microsecond=0) + timedelta(seconds=1)
    for number, name in enumerate(names):
        expression = "* * * * * *" if number % 2 else "@every 1s"
        factories.schedule(
            store,
            name,
            expression=expression,
            next_fire_at=first,
            catch_up="all",
            max_catch_up=1000,
        )
    return names


def start_all(fleet: Fleet, skews: Sequence[float] = SKEWS, **more: str) -> list[Process]:
    started = [
        fleet.start_scheduler(WORKQUEUE_TEST_SKEW_SECONDS=str(skew), settings=SETTINGS, **more)
        for skew in skews
    ]
    for process in started:
        process.wait_for("scheduler\n")
    return started


def end(processes: list[Process]) -> None:
    for process in processes:
        process.send(signal.SIGTERM)
    assert [process.end() for process in processes] == [0] * len(processes)


def assert_each_tick_has_one_job(names: list[str], seconds: float) -> None:
    # What came due while they ended.
    while scheduler.tick(get_store(), conf.current()).has_more:
        pass
    for name in names:
        row = Schedule.objects.get(pk=name)
        found = ticks_of(name)
        assert row.last_fire_at is not None
        whole = int((row.last_fire_at - found[0]).total_seconds()) + 1
        assert whole >= seconds
        assert found == [found[0] + timedelta(seconds=second) for second in range(whole)]
        assert (row.fire_count, row.missed_count) == (whole, 0)


def leader(processes: list[Process]) -> Process:
    """Wait for one of *processes* to lead, and return it."""
    wait_until(lambda: any(LEADS in each.output for each in processes), "a leader")
    return next(each for each in processes if LEADS in each.output)


def pass_ticks(names: list[str], count: int) -> None:
    """Wait until so many more ticks of all schedules but one have jobs.

    Who is stopped in the middle of a tick holds its schedule's row, and that one waits for it.
    """
    wanted = LiveJob.objects.count() + count * (len(names) - 1)
    wait_until(lambda: LiveJob.objects.count() >= wanted, f"{count} ticks")


def stop_unlocked(process: Process) -> None:
    """Stop a process, but not while it holds SQLite's only write lock: all would wait for it."""
    stop(process)
    while is_locked():
        go_on(process)
        time.sleep(0.05)
        stop(process)


def is_locked() -> bool:
    """Tell whether somebody holds SQLite's write lock for longer than a transaction takes."""
    if connection.vendor != "sqlite":
        return False
    other: Any = sqlite3.connect(connection.settings_dict["NAME"], timeout=1.0)
    try:
        other.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        return True
    finally:
        other.close()
    return False


def suffer(fleet: Fleet, names: list[str], seconds: int) -> None:
    """Let four schedulers run for so many ticks; stop one that leads, and kill the next."""
    processes = start_all(fleet)
    stopped = leader(processes)
    pass_ticks(names, seconds // 4)
    stop_unlocked(stopped)
    rest = [each for each in processes if each is not stopped]
    killed = leader(rest)
    pass_ticks(names, seconds // 4)
    killed.send(signal.SIGKILL)
    assert killed.end() == -signal.SIGKILL
    pass_ticks(names, seconds // 4)
    # It goes on in the belief that it leads, as if no time had passed.
    go_on(stopped)
    pass_ticks(names, seconds - 3 * (seconds // 4))
    end([each for each in processes if each is not killed])
    assert sum(each.output.count(LEADS) for each in rest) >= 2, "leadership moved twice"


def race(fleet: Fleet, names: list[str], seconds: int) -> None:
    """Let four schedulers run that all lead; stop one, and kill one."""
    processes = start_all(fleet, WORKQUEUE_TEST_WITHOUT="leading")
    pass_ticks(names, seconds // 2)
    stop_unlocked(processes[0])
    processes[3].send(signal.SIGKILL)
    processes[3].end()
    pass_ticks(names, seconds // 4)
    go_on(processes[0])
    pass_ticks(names, seconds - 3 * (seconds // 4))
    end(processes[:3])
    assert not any(LEADS in each.output for each in processes), "no lock was asked"
    fired = [each.output.count("enqueued  ") for each in processes]
    assert sum(count > 0 for count in fired) >= 2, f"only one of them fired: {fired}"


Run = Callable[[Fleet, list[str], int], None]


@pytest.mark.parametrize("run", [suffer, race])
def test_g9_each_tick_has_one_job_whatever_its_schedulers_suffer(
    run: Run, fleet: Fleet, store: BaseStore
) -> None:
    """Cases 38, 39 and 54."""
    names = every_second(store, 4)
    run(fleet, names, 6)
    assert_each_tick_has_one_job(names, 6)


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize("run", [suffer, race])
def test_g9_sixty_schedules_for_a_minute(run: Run, fleet: Fleet, store: BaseStore) -> None:
    names = every_second(store, 60)
    run(fleet, names, 60)
    assert_each_tick_has_one_job(names, 60)


def test_g9_a_leader_killed_before_a_tick_loses_none(fleet: Fleet, store: BaseStore) -> None:
    """Case 54: another takes over within one lease."""
    first = leader(start_all(fleet, (0.0, 0.0)))
    due_at = store.now() + timedelta(seconds=LEASE_SECONDS / 2)
    factories.schedule(store, "once", expression="@every 1h", next_fire_at=due_at)
    first.kill()
    wait_until(lambda: ticks_of("once"), "the tick")
    late = LiveJob.objects.get(schedule="once").enqueued_at - due_at
    assert late.total_seconds() < LEASE_SECONDS + 2.0
    assert ticks_of("once") == [due_at]


def test_g9_a_schedule_added_at_ten_past_ten_fires_nothing_before_three(store: BaseStore) -> None:
    """Row 12 of PEERS.md."""
    zone = cron.timezone("Europe/Paris")
    added = datetime(2030, 6, 3, 10, 10, tzinfo=zone)
    first = planning.first_tick("0 3 * * *", "Europe/Paris", added)
    factories.schedule(
        store, expression="0 3 * * *", timezone="Europe/Paris", next_fire_at=first.astimezone(UTC)
    )
    for minutes in range(0, 16 * 60 + 49, 7):
        moment = added + timedelta(minutes=minutes)
        assert not scheduler.tick(store, conf.current(), now=moment).fired
    three = datetime(2030, 6, 4, 3, tzinfo=zone)
    assert scheduler.tick(store, conf.current(), now=three).job_count == 1
    assert ticks_of("nightly") == [three]


def test_g9_missed_ticks_follow_their_policy(store: BaseStore) -> None:
    """Case N6, by the promise's name; the values are in tests/test_scheduler.py."""
    for catch_up in ("skip", "latest", "all"):
        factories.schedule(store, catch_up, catch_up=catch_up, max_catch_up=10)
    scheduler.tick(store, conf.current(), now=at(24 * HOUR + 600))
    assert {name: len(ticks_of(name)) for name in ("skip", "latest", "all")} == {
        "skip": 0,
        "latest": 1,
        "all": 10,
    }
