"""`testing.fire_schedules`: a test moves the clock to a tick, and the job of it runs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import transaction
from django.test import TestCase

from django_workqueue.exceptions import InTransaction
from django_workqueue.models import Schedule
from django_workqueue.schedules import schedule
from django_workqueue.testing import fire_schedules, moved_clock, run_jobs
from django_workqueue.testing.fixture import WorkQueue
from tests.app import celery_tasks
from tests.app.tasks import add
from tests.schedule_rows import no_declarations


@pytest.fixture(autouse=True)
def _nothing_declared() -> Iterator[None]:
    with no_declarations():
        yield


class InsideTestCase(TestCase):
    def test_job_of_a_tick_runs_in_the_transaction_of_the_test(self) -> None:
        schedule("nightly", add, cron="0 3 * * *", timezone="UTC", args=(1,))
        with moved_clock() as clock:
            clock.move_to(datetime(2035, 5, 1, 2, 0, tzinfo=UTC))
            assert fire_schedules() == {}
            clock.advance(3_600)
            assert fire_schedules() == {"nightly": 1}
            assert fire_schedules() == {}
            (ran,) = run_jobs()
        assert ran.return_value == 3


def test_missed_ticks_follow_the_policy(workqueue: WorkQueue) -> None:
    every: dict[str, Any] = {"every": timedelta(minutes=5), "args": (1,)}
    schedule("all", add, catch_up="all", **every)
    schedule("latest", add, catch_up="latest", **every)
    workqueue.fire_schedules()
    workqueue.clock.advance(3 * 300)
    assert workqueue.fire_schedules() == {"all": 3, "latest": 1}
    assert len(workqueue.run_jobs()) == 4


def test_task_of_celery_s_clothes_has_a_schedule(workqueue: WorkQueue) -> None:
    schedule("adding", celery_tasks.add.task, every=timedelta(hours=1), args=(1,), kwargs={"y": 4})
    workqueue.fire_schedules()
    workqueue.clock.advance(3_600)
    workqueue.fire_schedules()
    assert [ran.return_value for ran in workqueue.run_jobs()] == [5]


@pytest.mark.django_db
def test_schedule_that_cannot_fire_is_told() -> None:
    schedule("broken", add, every=timedelta(hours=1), args=(1,))
    with moved_clock() as clock:
        fire_schedules()
        clock.advance(3_600)
        Schedule.objects.update(expression="never", source="admin")
        with pytest.raises(AssertionError, match="Every schedule must fire, and broken did not"):
            fire_schedules()
        with transaction.atomic(), pytest.raises(InTransaction):
            fire_schedules()
