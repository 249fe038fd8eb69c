"""Suspects run alone: nothing else of their worker runs beside them."""

from __future__ import annotations

import threading

import pytest

from django_workqueue.models import LiveJob
from tests import jobs
from tests.timescale import PATIENCE_SECONDS

pytestmark = pytest.mark.usefixtures("transactional_db")


class Beside:
    """A body that notes how many of its kind run at once."""

    def __init__(self) -> None:
        self.running = 0
        self.most = 0
        self.order: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, name: str) -> None:
        with self._lock:
            self.running += 1
            self.order.append(name)
            self.most = max(self.most, self.running)
        threading.Event().wait(0.05)
        with self._lock:
            self.running -= 1


@pytest.fixture
def beside() -> Beside:
    return Beside()


def test_suspects_run_one_by_one_and_nothing_beside_them(beside: Beside) -> None:
    for name in "abc":
        jobs.enqueue(beside, name)
    LiveJob.objects.update(suspect=True)
    settled = jobs.drain(threads=4)

    assert beside.most == 1
    assert beside.order == ["a", "b", "c"]
    assert [str(each.place) for each in settled] == ["succeeded"] * 3


def test_without_suspects_the_same_jobs_run_side_by_side(beside: Beside) -> None:
    """The control: what holds the others back is the mark."""
    together = threading.Barrier(3)

    def meets(name: str) -> None:
        together.wait(PATIENCE_SECONDS)
        beside(name)

    for name in "abc":
        jobs.enqueue(meets, name)
    jobs.drain(threads=4)

    assert beside.most > 1


def test_a_suspect_waits_for_what_runs_and_nothing_new_starts_before_it(beside: Beside) -> None:
    first, suspect, last = (jobs.enqueue(beside, name) for name in "abc")
    LiveJob.objects.filter(pk=suspect.id).update(suspect=True)

    jobs.drain(threads=2)

    assert beside.order == ["a", "b", "c"]
    assert beside.most == 1
    assert jobs.finished(first).attempts == jobs.finished(last).attempts == 1


def test_a_stop_gives_a_waiting_suspect_back_uncharged() -> None:
    worker = jobs.new_worker(drain=False, threads=2)
    began, go_on = threading.Event(), threading.Event()

    def holds() -> None:
        began.set()
        go_on.wait(PATIENCE_SECONDS)

    running, suspect = jobs.enqueue(holds), jobs.enqueue(lambda: 1)
    LiveJob.objects.filter(pk=suspect.id).update(suspect=True)
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert began.wait(PATIENCE_SECONDS)
    worker.stop()
    go_on.set()
    thread.join(PATIENCE_SECONDS)

    job = jobs.live(suspect)
    assert (job.state, job.attempt, job.suspect) == ("ready", 0, True)
    assert jobs.finished(running).attempts == 1


def test_a_suspect_that_fails_by_itself_is_none_any_more() -> None:
    result = jobs.enqueue(lambda: 1 / 0, max_attempts=2)
    LiveJob.objects.update(suspect=True)
    jobs.drain(max_jobs=1)

    assert jobs.live(result).suspect is False
