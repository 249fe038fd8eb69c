"""Time limits: a task is told, then given up; its retry waits for the end of its process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from django_workqueue import clock
from django_workqueue.deadlines import TIMEOUT_MARGIN_SECONDS, look
from django_workqueue.ending import Ended
from django_workqueue.job import Job
from django_workqueue.models import DeadJob, LiveJob, Result
from django_workqueue.states import State
from django_workqueue.store import get_store
from django_workqueue.tasks import Context
from django_workqueue.worker import Worker
from tests import jobs
from tests.jobs import app, body
from tests.processes import lines, wait_until, worker
from tests.timescale import PATIENCE_SECONDS

pytestmark = pytest.mark.usefixtures("transactional_db")

LIMIT = 0.2


@contextlib.contextmanager
def ending(made: Worker) -> Iterator[list[Ended]]:
    """Run a worker that ends by itself in a thread; yields where its end is put."""
    ended: list[Ended] = []
    thread = threading.Thread(target=lambda: ended.append(made.run()))
    thread.start()
    try:
        yield ended
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
    finally:
        made.stop(2)
        thread.join(PATIENCE_SECONDS)


@pytest.fixture
def go_on() -> Iterator[threading.Event]:
    """What a task that does not listen waits for; set at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


def enqueue(function: Callable[..., Any], *, max_attempts: int = 1, context: bool = False) -> Any:
    task = app.run_with_context if context else app.run
    return task.using(timeout=LIMIT, max_attempts=max_attempts).enqueue(body(function))


def test_a_task_within_its_limit_knows_nothing_of_it() -> None:
    result = enqueue(lambda context: context.cancelled.is_set(), context=True)
    jobs.drain()
    assert jobs.finished(result).value is False


def test_a_task_that_ends_when_it_is_told_is_timed_out_and_its_worker_goes_on() -> None:
    def listens(context: Context) -> str:
        assert context.cancelled.wait(PATIENCE_SECONDS)
        assert context.remaining() == 0
        return "late"

    result, after = enqueue(listens, context=True), jobs.enqueue(lambda: 1)

    assert [str(each.place) for each in jobs.drain(threads=1)] == ["dead", "succeeded"]

    dead = jobs.dead(result)
    assert (dead.reason, dead.attempt) == ("timeout", 1)
    (error,) = dead.errors
    assert error["outcome"] == "timeout"
    assert error["exception_class"].endswith(".TimeLimitExceeded")
    assert "must end within 0.2 s" in error["message"]
    assert jobs.finished(after).value == 1


def test_a_task_that_does_not_listen_is_given_up_and_ends_its_worker(
    go_on: threading.Event,
) -> None:
    result = enqueue(lambda: go_on.wait(PATIENCE_SECONDS))

    with ending(jobs.new_worker(drain=False)) as ended:
        pass

    # Written while the body still ran.
    assert not go_on.is_set()
    assert ended == [Ended.STUCK]
    assert jobs.dead(result).reason == "timeout"


def test_the_retry_of_a_given_up_task_waits_for_the_end_of_its_process(
    go_on: threading.Event,
) -> None:
    result = enqueue(lambda: go_on.wait(PATIENCE_SECONDS), max_attempts=2)

    with ending(jobs.new_worker(drain=False, grace_seconds=60.0)):
        pass

    job = jobs.live(result)
    assert (job.state, job.attempt) == (State.SCHEDULED, 1)
    assert job.run_after >= get_store().now() + timedelta(seconds=60)
    assert jobs.outcomes(job.errors) == ["timeout"]


def test_jobs_beside_a_given_up_one_get_the_grace_to_end(go_on: threading.Event) -> None:
    beside_may_end, beside_began = threading.Event(), threading.Event()

    def beside() -> str:
        beside_began.set()
        assert beside_may_end.wait(PATIENCE_SECONDS)
        return "done"

    result = jobs.enqueue(beside)
    stuck = enqueue(lambda: go_on.wait(PATIENCE_SECONDS))
    with ending(jobs.new_worker(drain=False, threads=2, grace_seconds=60.0)) as ended:
        assert beside_began.wait(PATIENCE_SECONDS)
        wait_until(lambda: DeadJob.objects.filter(pk=stuck.id).exists(), "the time-out")
        waiting = jobs.enqueue(lambda: 1)
        beside_may_end.set()

    assert ended == [Ended.STUCK]
    assert jobs.finished(result).value == "done"
    # A worker that has to end claims no more.
    assert jobs.live(waiting).attempt == 0


def test_a_late_value_of_a_given_up_task_changes_nothing(go_on: threading.Event) -> None:
    result = enqueue(lambda: go_on.wait(PATIENCE_SECONDS))
    made = jobs.new_worker(drain=False)
    with ending(made):
        pass
    before = DeadJob.objects.values().get(pk=result.id)

    go_on.set()
    wait_until(lambda: not made._executors.running(), "the end of the body")

    assert DeadJob.objects.values().get(pk=result.id) == before
    assert not Result.objects.exists()


def test_a_cancel_is_told_to_the_task_which_ends_as_cancelled() -> None:
    told = threading.Event()

    def listens(context: Context) -> None:
        told.set()
        assert context.cancelled.wait(PATIENCE_SECONDS)
        raise RuntimeError("gave up what it did")

    result = app.run_with_context.enqueue(body(listens))
    with ending(jobs.new_worker(drain=True, lease_seconds=0.9)):
        assert told.wait(PATIENCE_SECONDS)
        get_store().cancel(jobs.live(result).pk)

    assert jobs.finished(result).outcome == "cancelled"


def test_a_task_that_ignores_a_cancel_ends_with_its_worker_after_the_grace(
    go_on: threading.Event,
) -> None:
    began = threading.Event()

    def deaf() -> None:
        began.set()
        go_on.wait(PATIENCE_SECONDS)

    result = jobs.enqueue(deaf)
    with ending(jobs.new_worker(drain=False, lease_seconds=0.9, grace_seconds=0.3)) as ended:
        assert began.wait(PATIENCE_SECONDS)
        get_store().cancel(jobs.live(result).pk)

    assert ended == [Ended.STUCK]
    assert jobs.finished(result).outcome == "cancelled"


def test_a_supervised_child_with_a_stuck_task_is_replaced(tmp_path: Path) -> None:
    """Case A 12."""
    notes, never = tmp_path / "notes", tmp_path / "never"
    options = {"timeout": LIMIT, "max_attempts": 1}
    stuck = app.start_and_wait.using(**options).enqueue(str(notes), "stuck", str(never))
    with worker("--processes", "1", "--threads", "2", "--grace", "0.5") as process:
        wait_until(lambda: DeadJob.objects.filter(pk=stuck.id).exists(), "the time-out")
        app.note.enqueue(str(notes), "good")
        wait_until(lambda: "good" in lines(notes), "the good job")
        assert not process.ended
        assert "end stuck" not in "".join(lines(notes))


def test_margin_and_limit_are_measured_from_the_start_of_the_body() -> None:
    made = jobs.enqueue(lambda: None)
    LiveJob.objects.update(timeout=10.0)
    (claim,) = jobs.claim()
    job = Job(claim)
    with clock.Frozen(at=100.0) as frozen:
        assert look([job], jobs.new_worker().settings, 1.0).next_seconds == float("inf")
        job.started = 100.0
        assert look([job], jobs.new_worker().settings, 1.0).next_seconds == 10.0
        frozen.advance(10.0)
        assert look([job], jobs.new_worker().settings, 1.0).given_up == []
        assert job.cancelled.is_set()
        frozen.advance(TIMEOUT_MARGIN_SECONDS)
        assert look([job], jobs.new_worker().settings, 1.0).given_up == [job]
        assert look([job], jobs.new_worker().settings, 1.0).given_up == []
    assert jobs.live(made).attempt == 1
