"""G6: at most max_attempts starts are charged, and none by a stop, a snooze, an unknown task."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from django_workqueue.demand import Room
from django_workqueue.models import DeadJob, LiveJob, Result
from django_workqueue.store import BaseStore
from django_workqueue.tasks import Context, Snooze
from django_workqueue.threads import Executors
from django_workqueue.worker import Options, Worker
from tests import factories
from tests.factories import at
from tests.promises.work import drain, enqueue

pytestmark = pytest.mark.django_db(transaction=True)


def lapse(store: BaseStore, most_rounds: int) -> int:
    """Claim and lose the only job as long as it can be claimed; return how often it was."""
    for number in range(most_rounds):
        if not factories.claim(store, now=at(2 * number), lease_seconds=1):
            return number
        store.reclaim(now=at(2 * number + 1))
    return most_rounds


@pytest.mark.parametrize("max_attempts", [2, 3, 5])
def test_g6_a_job_that_kills_its_workers_is_claimed_max_attempts_times(
    max_attempts: int, store: BaseStore
) -> None:
    """Case L 5, and the trap of an attempt counted at the claim without a cap."""
    factories.insert(store, max_attempts=max_attempts)
    assert lapse(store, 10) == max_attempts
    job: Any = DeadJob.objects.get()
    assert (job.reason, job.attempt) == ("lost", max_attempts)


def test_g6_control_without_the_budget_it_goes_on_for_ever(store: BaseStore) -> None:
    factories.insert(store, max_attempts=3)
    unbounded = mock.patch.object(BaseStore, "_claimable", claimable_without_budget)
    undying = mock.patch("django_workqueue.store.reclaiming.death_of_lapsed", return_value=None)
    with unbounded, undying:
        assert lapse(store, 10) == 10


_claimable = BaseStore._claimable


def claimable_without_budget(self: BaseStore, *args: Any) -> tuple[str, list[Any]]:
    where, params = _claimable(self, *args)
    budget = f"{self.quote('attempt')} < {self.quote('max_attempts')}"
    assert budget in where
    return where.replace(budget, "1 = 1"), params


def test_g6_a_snooze_is_no_attempt() -> None:
    attempts: list[int] = []

    def snooze(context: Context) -> None:
        attempts.append(context.charged_attempt)
        if len(attempts) < 4:
            raise Snooze(0)

    job_id = enqueue(snooze, max_attempts=2)
    drain()
    assert attempts == [1, 1, 1, 1]
    assert Result.objects.get(pk=job_id).attempts == 1


def test_g6_a_stop_is_no_attempt() -> None:
    enqueue(lambda context: None, max_attempts=1)
    worker = Worker(Options(threads=1, sweep=False))
    with mock.patch.object(Executors, "start"):
        worker._claim(Room(1, 0, 1))
        assert LiveJob.objects.get().attempt == 1
        worker.stop()
        worker.run()
    assert LiveJob.objects.values_list("state", "attempt").get() == ("ready", 0)


def test_g6_an_unknown_task_is_no_attempt(store: BaseStore) -> None:
    factories.insert(store, now=None, task="shop.tasks.not_here", max_attempts=1)
    drain()
    assert LiveJob.objects.values_list("state", "attempt").get() == ("held", 0)
