"""`demand`: as many jobs are claimed as can start soon; `kinds`: and of the kind that can."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from django_workqueue import clock, kinds, registry
from django_workqueue.demand import (
    FIRST_GUESS_SECONDS,
    HORIZON_SECONDS,
    MOST_AHEAD,
    Room,
    estimate,
    most_in_flight,
    room_for,
    wanted,
)
from django_workqueue.intake import WAIT_SECONDS, Intake
from django_workqueue.job import Job
from django_workqueue.models import LiveJob
from django_workqueue.states import Lane, State
from django_workqueue.store import get_store
from django_workqueue.store.finding import front_tasks
from django_workqueue.worker import Worker
from tests import jobs
from tests.jobs import app, body
from tests.processes import wait_until
from tests.test_worker import working
from tests.timescale import PATIENCE_SECONDS

# The arithmetic


def asked(executors: int = 4, **changes: Any) -> int:
    """Return what is wanted by idle executors of long jobs, unless *changes* say otherwise."""
    facts: dict[str, Any] = {"waiting": 0, "running_seconds": [], "job_seconds": 1.0}
    return wanted(executors, **{**facts, **changes})


@pytest.mark.parametrize("running", range(5))
def test_of_long_jobs_as_many_are_wanted_as_executors_are_free(running: int) -> None:
    assert asked(running_seconds=[0.5] * running) == 4 - running


def test_of_short_jobs_a_batch_is_wanted_ahead() -> None:
    assert asked(job_seconds=0.00005) == 4 + MOST_AHEAD
    assert asked(job_seconds=0.01) == 4 + 40
    assert asked(job_seconds=HORIZON_SECONDS) == 4 + 4
    assert asked(job_seconds=HORIZON_SECONDS * 1.01) == 4


def test_of_large_jobs_few_are_wanted_ahead() -> None:
    short: dict[str, Any] = {"job_seconds": 0.00005}
    assert asked(**short, job_bytes=1000) == 4 + MOST_AHEAD
    assert asked(**short, job_bytes=1_000_000) == 4 + 16
    assert asked(**short, job_bytes=100_000_000) == 4


def test_the_next_batch_is_wanted_when_half_of_the_last_has_started() -> None:
    short: dict[str, Any] = {"job_seconds": 0.00005, "running_seconds": [0.0] * 4}
    assert asked(**short, waiting=MOST_AHEAD) == 0
    assert asked(**short, waiting=MOST_AHEAD // 2 + 1) == 0
    assert asked(**short, waiting=MOST_AHEAD // 2) == MOST_AHEAD // 2


def test_an_executor_that_is_free_does_not_wait_for_half_a_batch() -> None:
    assert asked(job_seconds=0.03, waiting=8, running_seconds=[0.0] * 4) == 0
    assert asked(job_seconds=0.03, waiting=1) == 4 + 13 - 1


def test_nothing_is_wanted_ahead_of_executors_that_run_something_long() -> None:
    long = HORIZON_SECONDS * 2
    assert asked(job_seconds=0.00005, running_seconds=[long] * 4) == 0
    assert asked(job_seconds=0.05, running_seconds=[long] * 3) == 1 + 2


def test_more_waiting_than_wanted_is_no_debt() -> None:
    assert asked(waiting=50, running_seconds=[0.5] * 4) == 0


def test_the_estimate_rises_at_once_and_falls_slowly() -> None:
    assert estimate(0.001, [1.0]) == 1.0
    assert estimate(1.0, []) == 1.0
    assert estimate(1.0, [0.0]) == pytest.approx(0.8)
    assert estimate(1.0, [0.0] * 20) == pytest.approx(0.8**20)
    # One slow job among many short ones: by their mean.
    assert estimate(0.001, [0.1] + [0.0] * 99) == pytest.approx(0.001)


def test_what_jobs_take_is_unknown_at_first_and_nothing_is_claimed_ahead() -> None:
    assert asked(job_seconds=FIRST_GUESS_SECONDS) == 4
    learned, count = FIRST_GUESS_SECONDS, 0
    while asked(job_seconds=learned) < 100:
        learned, count = estimate(learned, [0.00005]), count + 1
    assert 10 < count < 50


def test_room_counts_each_kind_and_all_that_is_in_flight() -> None:
    def made(*, is_async: bool, started: float | None = None, ending: bool = False) -> Job:
        return Job(None, is_async=is_async, started=started, ending=ending)  # type: ignore[arg-type]

    in_flight = [
        made(is_async=False, started=9.5),
        made(is_async=False),
        made(is_async=True, started=9.9),
        # Ended, and not settled: it takes no executor.
        made(is_async=True, started=9.0, ending=True),
    ]
    seconds = {False: 1.0, True: 1.0}
    room = room_for(in_flight, 10.0, threads=4, async_tasks=10, job_seconds=seconds)

    assert room == Room(2, 9, most_in_flight(4, 10) - 4)
    assert [room.of(is_async=kind) for kind in (False, True)] == [2, 9]
    assert room.at_most(3) == Room(2, 9, 3)
    assert room.at_most(3).of(is_async=True) == 3
    assert room.less(in_flight[1:3]) == Room(1, 8, room.total - 2)


# End to end


class Gate:
    """What jobs of both kinds wait for, in a thread or on the loop."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.begun = threading.Semaphore(0)

    def block(self) -> None:
        self.begun.release()
        assert self.go_on.wait(PATIENCE_SECONDS)

    async def wait(self) -> None:
        self.begun.release()
        while not self.go_on.is_set():  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.01)

    def have_begun(self, count: int) -> None:
        for _ in range(count):
            assert self.begun.acquire(timeout=PATIENCE_SECONDS)


@pytest.fixture
def gate(transactional_db: None) -> Iterator[Gate]:
    made = Gate()
    yield made
    made.go_on.set()


def enqueue(function: Callable[..., Any], count: int, *, task: Any = None, **options: Any) -> None:
    name = body(function)
    task = app.run if task is None else task
    task.using(**options).enqueue_many([((name,), {})] * count)


def running(**where: Any) -> int:
    return LiveJob.objects.filter(state=State.RUNNING, **where).count()


def new_worker(**options: Any) -> Worker:
    return jobs.new_worker(**{"drain": False, "threads": 4, "async_tasks": 10, **options})


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many jobs each claim brought that found any."""
    counts: list[int] = []
    real = Intake.take

    def take(intake: Intake, taken: Any) -> None:
        counts.append(len(taken))
        real(intake, taken)

    monkeypatch.setattr(Intake, "take", take)
    return counts


def test_a_worker_takes_no_more_long_jobs_than_it_has_threads(
    gate: Gate, claims: list[int]
) -> None:
    enqueue(gate.block, 30)
    with working(new_worker()):
        gate.have_begun(4)
        assert running() == 4
        gate.go_on.set()
        wait_until(lambda: not LiveJob.objects.exists(), "the end of all")


def test_short_jobs_are_claimed_in_batches(transactional_db: None, claims: list[int]) -> None:
    enqueue(lambda: None, 1000)
    jobs.drain(threads=4)
    # At first one for each thread, until it is known that they are short.
    assert claims[0] == 4
    assert max(claims) >= 100
    assert len(claims) < 100


def test_threads_full_of_long_jobs_leave_the_rest_and_coroutines_go_on(gate: Gate) -> None:
    enqueue(gate.block, 30)
    enqueue(gate.wait, 30, task=app.arun)
    with working(new_worker()):
        gate.have_begun(14)
        assert running(task=app.run.module_path) == 4
        assert running(task=app.arun.module_path) == 10
        gate.go_on.set()
        wait_until(lambda: not LiveJob.objects.exists(), "the end of all")


def test_a_loop_full_of_coroutines_leaves_the_rest_and_threads_go_on(gate: Gate) -> None:
    enqueue(gate.wait, 30, task=app.arun)
    enqueue(gate.block, 5)
    with working(new_worker()):
        gate.have_begun(14)
        assert running(task=app.arun.module_path) == 10
        assert running(task=app.run.module_path) == 4
        gate.go_on.set()
        wait_until(lambda: not LiveJob.objects.exists(), "the end of all")


def test_a_hundred_coroutines_are_claimed_at_once(gate: Gate, claims: list[int]) -> None:
    enqueue(gate.wait, 100, task=app.arun)
    with working(new_worker(async_tasks=100)):
        gate.have_begun(100)
        assert claims == [100]
        gate.go_on.set()
        wait_until(lambda: not LiveJob.objects.exists(), "the end of all")


def test_a_queue_of_one_kind_is_not_looked_at_for_the_other(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*args: Any, **more: Any) -> set[str]:
        raise AssertionError(args)

    monkeypatch.setattr(kinds, "front_tasks", never)
    monkeypatch.setitem(registry._kinds, "only-threads", {False})
    enqueue(gate.block, 5, queue_name="only-threads")
    with working(new_worker(threads=2)):
        gate.have_begun(2)
        gate.go_on.set()
        wait_until(lambda: not LiveJob.objects.exists(), "the end of all")


def test_a_kind_that_comes_unannounced_is_run_and_its_queue_mixed_from_then_on(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry._kinds, "said-to-be-threads", {False})
    enqueue(gate.wait, 4, task=app.arun, queue_name="said-to-be-threads")
    made = new_worker()
    with working(made):
        gate.have_begun(4)
        assert made._claimer._kinds.of("said-to-be-threads") == [False, True]
        gate.go_on.set()
        wait_until(lambda: not LiveJob.objects.exists(), "the end of all")


def test_the_front_of_a_queue_tells_the_tasks_of_its_first_jobs(transactional_db: None) -> None:
    app.echo.enqueue_many([((1,), {})] * 3)
    app.add.using(priority=5).enqueue(1)
    app.note.using(queue_name="another", priority=9).enqueue("a", "b")
    app.fails_slowly.using(run_after=jobs.in_an_hour(), priority=9).enqueue("later")

    def front(limit: int) -> set[str]:
        return front_tasks(get_store(), Lane.TASK, "default", limit=limit)

    assert front(1) == {app.add.module_path}
    assert front(2) == front(9) == {app.add.module_path, app.echo.module_path}


def test_a_look_that_found_none_of_a_kind_is_not_repeated_at_once(transactional_db: None) -> None:
    known = kinds.Kinds(get_store())
    app.echo.enqueue(1)
    with clock.Frozen(at=100.0) as frozen:
        assert known.worth("default", False)
        assert not known.worth("default", True)
        # It looked: whoever drains has seen that there is none.
        assert known.passed_over_until == float("inf")
        app.asleep.enqueue(0)
        known.begin()
        assert not known.worth("default", True)
        assert known.passed_over_until == 100.0 + kinds.PAUSE_SECONDS
        frozen.advance(kinds.PAUSE_SECONDS)
        assert known.worth("default", True)


def test_a_coroutine_is_not_late_because_all_threads_were_just_given_long_jobs(gate: Gate) -> None:
    enqueue(gate.block, 1)
    app.asleep.using(run_after=get_store().now() + timedelta(seconds=5)).enqueue(0)
    made = new_worker(threads=1, poll_seconds=60.0)
    assert 0 < made._step() <= 5
    assert running() == 1
    made._close()


# What waits too long


def test_jobs_that_wait_behind_a_long_one_go_back_uncharged(gate: Gate) -> None:
    enqueue(gate.block, 1)
    made = new_worker(threads=1)
    with working(made):
        gate.have_begun(1)
        enqueue(lambda: None, 5)
        # As if those before had been short.
        made._claim(Room(5, 0, 5))
        assert running() == 6
        wait_until(lambda: running() == 1, "the release of what waits")
        assert (
            list(LiveJob.objects.exclude(state=State.RUNNING).values_list("state", "attempt"))
            == [("ready", 0)] * 5
        )
        gate.go_on.set()
        wait_until(lambda: not LiveJob.objects.exists(), "the end of all")


def test_they_go_back_as_well_where_no_more_are_claimed(gate: Gate) -> None:
    enqueue(gate.block, 1)
    made = new_worker(threads=1, max_jobs=6)
    with working(made):
        gate.have_begun(1)
        enqueue(lambda: None, 5)
        made._claim(Room(5, 0, 5))
        assert made._intake.full
        wait_until(lambda: running() == 1, "the release of what waits")
        assert made._ending.begun
        gate.go_on.set()


def test_jobs_that_do_not_wait_long_stay(transactional_db: None) -> None:
    made = new_worker()
    enqueue(lambda: None, 1)
    (claim,) = jobs.claim()
    job = Job(claim)
    made._flight.add([job])
    assert 0 < made._intake.give_back_waiting() <= WAIT_SECONDS
    job.started = clock.monotonic()
    assert made._intake.give_back_waiting() == float("inf")


def test_a_job_that_is_about_to_start_is_looked_at_again_later(transactional_db: None) -> None:
    made = new_worker()
    enqueue(lambda: None, 1)
    (claim,) = jobs.claim()
    # Taken by a thread, and waiting for the database to mark it.
    made._flight.add([Job(claim)])
    with clock.Frozen(at=claim.received + 2 * WAIT_SECONDS):
        assert made._intake.give_back_waiting() == WAIT_SECONDS
    assert running() == 1
