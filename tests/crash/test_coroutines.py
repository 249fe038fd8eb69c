"""Coroutines in workers of their own processes: stops, deaths, limits, and a thousand at a time."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from django_workqueue.models import DeadJob, LiveJob, Result
from django_workqueue.states import State
from tests.app import tasks as app
from tests.crash import tasks
from tests.crash.fleet import Fleet
from tests.ledger import END, START, Ledger
from tests.processes import SETTINGS, wait_until, worker

pytestmark = pytest.mark.django_db(transaction=True)

LONG = 60.0


def enqueue(task: Any, ledger: Ledger, *args: Any, **options: Any) -> str:
    return str(task.using(**options).enqueue(str(ledger), *args).id)


def starts(ledger: Ledger) -> int:
    return len(ledger.entries(START))


@pytest.mark.parametrize("processes", ["0", "1"])
def test_a_stop_leaves_no_coroutine_running_and_charges_none(
    processes: str, fleet: Fleet, ledger: Ledger
) -> None:
    """Case A 30."""
    for _ in range(3):
        enqueue(tasks.doze, ledger, LONG)
    options = ("--processes", processes, "--async-tasks", "2", "--grace", "0.5")
    stopped = fleet.start_one(*options)
    wait_until(lambda: starts(ledger) == 2, "two starts")

    stopped.send(signal.SIGTERM)

    assert stopped.end() == 0
    assert [entry.event for entry in ledger.entries("cancelled")] == ["cancelled"] * 2
    # Given back by the worker itself, with no delay: their bodies had ended.
    rows: Any = LiveJob.objects.values_list("state", "attempt", "suspect")
    assert list(rows) == [(State.READY, 0, False)] * 3


def test_a_coroutine_that_ends_its_process_takes_no_other_with_it(
    fleet: Fleet, ledger: Ledger
) -> None:
    """Case A 14, with fourteen innocents on the same loop."""
    good = [enqueue(tasks.doze, ledger, 0.2) for _ in range(14)]
    poison = enqueue(tasks.akill_worker, ledger)
    fleet.start_one("--processes", "1", "--threads", "1", "--async-tasks", "15")

    wait_until(lambda: not LiveJob.objects.exists(), "the end of all")

    assert Result.objects.filter(pk__in=good).count() == 14
    dead: Any = DeadJob.objects.get()
    assert (str(dead.pk), dead.reason, dead.attempt) == (poison, "lost", 3)
    assert "exit status 137" in dead.errors[-1]["message"]


# Of a thread, tests/test_deadlines.py has the same in small.
@pytest.mark.parametrize("task", [pytest.param("nap", marks=pytest.mark.soak), "doze"])
def test_a_job_of_ten_times_its_limit_is_timed_out_and_harms_none_beside_it(
    task: str, fleet: Fleet, ledger: Ledger
) -> None:
    """Cases A 12 and J 159: a thread ends with its process, a coroutine by itself."""
    late = enqueue(getattr(tasks, task), ledger, 10.0, timeout=1.0, max_attempts=1)
    beside = [enqueue(getattr(tasks, task), ledger, 0.3) for _ in range(3)]
    after: list[str] = []
    running = fleet.start_one("--processes", "1", "--threads", "4", "--async-tasks", "4")
    wait_until(lambda: DeadJob.objects.exists(), "the time-out")
    after.append(enqueue(getattr(tasks, task), ledger, 0.0))
    wait_until(lambda: Result.objects.filter(pk__in=after).exists(), "the next job")

    assert not running.ended
    dead: Any = DeadJob.objects.get()
    assert (str(dead.pk), dead.reason, dead.attempt) == (late, "timeout", 1)
    assert set(Result.objects.filter(pk__in=beside).values_list("attempts", flat=True)) == {1}
    assert ledger.started() == dict.fromkeys([late, *beside, *after], 1)
    assert late not in {entry.job_id for entry in ledger.entries(END)}


@pytest.mark.soak
@pytest.mark.parametrize("task", ["nap", "doze"])
def test_a_timeout_is_settled_within_its_limit_and_two_seconds(
    task: str, fleet: Fleet, ledger: Ledger
) -> None:
    fleet.start_one("--processes", "1", "--threads", "4", "--async-tasks", "4")
    enqueue(getattr(tasks, task), ledger, 20.0, timeout=2.0, max_attempts=1)
    wait_until(lambda: starts(ledger) == 1, "the start")

    seconds = wait_until(lambda: DeadJob.objects.exists(), "the time-out")

    # The limit, the margin of a second that a thread gets to end by itself, and the write.
    assert 1.5 <= seconds <= 4.0


@pytest.mark.soak
def test_a_thousand_coroutines_of_a_second_take_less_than_five(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    app.asleep.enqueue_many([((1.0,), {})] * 1000)
    began = time.monotonic()
    with worker("--async-tasks", "1000", settings={**SETTINGS, "LEASE_SECONDS": 30.0}):
        up = time.monotonic()
        wait_until(lambda: Result.objects.count() == 1000, "the end of all")
        seconds = time.monotonic() - up
    with capsys.disabled():
        print(f"\n{seconds:.1f} s for all; the process took {up - began:.1f} s to start")  # noqa: T201  # the figure is what it is run for
    assert seconds < 5.0
