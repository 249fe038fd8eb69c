"""The worker's connection is cut at every statement of claim, settle and release (O4).

Before the statement, and after it but before its answer came: no job is lost, started twice or
charged for nothing, and nothing is said of a lost lease.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest

from django_workqueue.demand import Room
from django_workqueue.ending import Ended
from django_workqueue.models import DeadJob, LiveJob, Result
from django_workqueue.tasks import Context, Retry, Snooze, Terminal
from django_workqueue.threads import Executors
from django_workqueue.worker import Options, Worker
from tests import driver_faults
from tests.crash import tasks
from tests.driver_faults import Driver, Moment

pytestmark = pytest.mark.django_db(transaction=True)

MOST_STEPS = 100
"""More than a worker takes for one job: a loop that never ends would hide behind a fault."""


@pytest.fixture
def starts() -> Iterator[list[int]]:
    """The attempts of the bodies that started, in order."""
    started: list[int] = []
    yield started
    tasks.bodies.clear()


def enqueue(body: Callable[[Context], Any], starts: list[int], **options: Any) -> uuid.UUID:
    """Enqueue a job that does *body* in this process."""

    def noted(context: Context) -> Any:
        starts.append(context.charged_attempt)
        return body(context)

    tasks.bodies["body"] = noted
    return uuid.UUID(tasks.call.using(**options).enqueue("body").id)


def worker(**options: Any) -> Worker:
    defaults: dict[str, Any] = {
        "threads": 1,
        # The pause after a fault is a part of it. No sweep: a late holder still holds its job.
        "lease_seconds": 0.1,
        "poll_seconds": 0.01,
        "grace_seconds": 60.0,
        "drain": True,
        "sweep": False,
    }
    return Worker(Options(**{**defaults, **options}))


def run(**options: Any) -> None:
    worker(**options).run()


def not_a_helper(thread: str) -> bool:
    """Leave out the extender, whose statements come when they come."""
    return thread != "workqueue-helper"


def each_cut(
    enqueue_one: Callable[[], uuid.UUID], work: Callable[[], object], moment: Moment
) -> Iterator[tuple[uuid.UUID, Driver]]:
    """Work on one job after the other, with the connection cut one step later each time.

    Yields each job and what the driver saw of it; ends with the first that no cut has hit.
    """
    for number in range(MOST_STEPS):
        job_id = enqueue_one()
        with driver_faults.driver(driver_faults.at(number, moment), counts=not_a_helper) as driver:
            work()
        if not driver.hit:
            assert number > 5, "no statement of the worker was hit"
            return
        yield job_id, driver
    pytest.fail(f"the worker took more than {MOST_STEPS} steps for one job")


def lost_words(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was logged of leases and jobs that were lost."""
    return [text for record in caplog.records if "lost" in (text := record.getMessage())]


MOMENTS = pytest.mark.parametrize("moment", list(Moment))
# Each takes a worker for every statement: what differs least from the others waits for the soak.
ATTEMPTS = pytest.mark.parametrize("max_attempts", [1, pytest.param(3, marks=pytest.mark.soak)])
BUDGETS = pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"max_attempts": 1}, marks=pytest.mark.soak),
        {"max_attempts": 1, "result_ttl": 0},
    ],
    ids=["default", "one attempt", "one attempt, no result"],
)


@MOMENTS
@BUDGETS
def test_a_job_that_succeeds_is_started_once_and_finished(
    moment: Moment,
    options: dict[str, Any],
    starts: list[int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    for job_id, driver in each_cut(
        lambda: enqueue(lambda context: "done", starts, **options), run, moment
    ):
        told = f"cut {moment} {driver.hit[0]}"
        assert starts == [1], told
        assert not LiveJob.objects.exists(), told
        assert not DeadJob.objects.exists(), told
        kept = Result.objects.filter(pk=job_id).values_list("outcome", "attempts")
        assert list(kept) == ([] if "result_ttl" in options else [("succeeded", 1)]), told
        assert lost_words(caplog) == [], told
        starts.clear()


@MOMENTS
def test_a_job_that_fails_is_charged_each_start_once(
    moment: Moment, starts: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    def fail_twice(context: Context) -> None:
        if context.charged_attempt < 3:
            raise Retry(after=0)

    for job_id, driver in each_cut(lambda: enqueue(fail_twice, starts), run, moment):
        told = f"cut {moment} {driver.hit[0]}"
        assert starts == [1, 2, 3], told
        result = Result.objects.get(pk=job_id)
        assert result.attempts == 3, told
        errors: Any = result.errors
        assert [error["attempt"] for error in errors] == [1, 2], told
        assert len(result.worker_ids) == 3, told
        assert lost_words(caplog) == [], told
        starts.clear()


@MOMENTS
@ATTEMPTS
def test_a_job_that_must_die_dies_once_of_its_own_error(
    moment: Moment, max_attempts: int, starts: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    def die(context: Context) -> None:
        raise Terminal("card expired")

    for job_id, driver in each_cut(
        lambda: enqueue(die, starts, max_attempts=max_attempts), run, moment
    ):
        told = f"cut {moment} {driver.hit[0]}"
        assert starts == [1], told
        job = DeadJob.objects.get(pk=job_id)
        assert (job.reason, job.attempt) == ("terminal", 1), told
        errors: Any = job.errors
        assert [error["message"][:12] for error in errors] == ["card expired"], told
        assert not LiveJob.objects.exists(), told
        assert not Result.objects.exists(), told
        assert lost_words(caplog) == [], told
        starts.clear()


@MOMENTS
@ATTEMPTS
def test_a_snooze_is_charged_nothing(
    moment: Moment, max_attempts: int, starts: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    def snooze_twice(context: Context) -> None:
        if len(starts) < 3:
            raise Snooze(0.001)

    def run_to_its_end() -> None:
        # A worker that drains ends while the job sleeps.
        while len(starts) < 3:
            run()

    for job_id, driver in each_cut(
        lambda: enqueue(snooze_twice, starts, max_attempts=max_attempts), run_to_its_end, moment
    ):
        told = f"cut {moment} {driver.hit[0]}"
        assert starts == [1, 1, 1], told
        assert Result.objects.get(pk=job_id).attempts == 1, told
        assert lost_words(caplog) == [], told
        starts.clear()


@MOMENTS
@ATTEMPTS
def test_what_a_stop_gives_back_unstarted_is_charged_nothing(
    moment: Moment, max_attempts: int, starts: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    def stop_with_the_first_claim() -> None:
        stopped = worker(drain=False)
        put = stopped._executors.put

        def put_and_stop(jobs: Any) -> None:
            put(jobs)
            stopped.stop()

        with (
            mock.patch.object(Executors, "start"),
            mock.patch.object(stopped._executors, "put", put_and_stop),
        ):
            stopped.run()

    for job_id, driver in each_cut(
        lambda: enqueue(lambda context: None, starts, max_attempts=max_attempts),
        stop_with_the_first_claim,
        moment,
    ):
        told = f"cut {moment} {driver.hit[0]}"
        job: Any = LiveJob.objects.get(pk=job_id)
        assert (job.state, job.attempt, job.worker_ids) == ("ready", 0, []), told
        assert lost_words(caplog) == [], told
        job.delete()
    assert starts == []


def test_a_stop_gives_back_in_spite_of_a_cut_long_before_its_grace_is_over(
    starts: list[int],
) -> None:
    stopped = worker(drain=False)
    for _ in range(2):
        enqueue(lambda context: None, starts)
    stopped.stop()
    with mock.patch.object(Executors, "start"):
        stopped._claim(Room(2, 0, 2))
        began = time.monotonic()
        first = driver_faults.at(0, Moment.BEFORE)
        with driver_faults.driver(first, counts=not_a_helper) as driver:
            stopped.run()
    assert driver.hit
    assert time.monotonic() - began < stopped.options.grace_seconds / 2
    assert list(LiveJob.objects.values_list("state", "attempt")) == [("ready", 0)] * 2


@MOMENTS
def test_what_a_second_signal_cuts_short_is_charged_nothing(
    moment: Moment, starts: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    workers: list[Worker] = []
    gates: list[threading.Event] = []

    def be_cut_short(context: Context) -> None:
        workers[-1].stop(2)
        gates[-1].wait(60)

    def work() -> None:
        workers.append(worker(drain=False))
        gates.append(threading.Event())
        assert workers[-1].run() is Ended.CUT
        gates[-1].set()

    for job_id, driver in each_cut(lambda: enqueue(be_cut_short, starts), work, moment):
        told = f"cut {moment} {driver.hit[0]}"
        assert starts == [1], told
        job: Any = LiveJob.objects.get(pk=job_id)
        assert (job.state, job.attempt, job.worker_ids) == ("scheduled", 0, []), told
        assert lost_words(caplog) == [], told
        job.delete()
        starts.clear()
