"""The relay's connections are cut at every statement, before it and after it (O4).

Whatever was cut, a message is delivered once and in its turn, a job is moved once, and nothing is
charged. The connection of the outbox and that of the queue's database are cut alike.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import transaction

from django_workqueue import outbox
from django_workqueue.models import DeadJob, LiveJob, Moved, OutboxKey, Result
from django_workqueue.relay import relayed_aliases
from django_workqueue.store import get_store
from tests import driver_faults, jobs
from tests.driver_faults import Moment
from tests.jobs import app
from tests.outboxes import Received, declare, publish, relaying
from tests.processes import wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "other"]),
    pytest.mark.usefixtures("two_databases", "own_destinations"),
]

MOST_STEPS = 100
MOMENTS = pytest.mark.parametrize("moment", list(Moment))


def each_cut(prepare: Callable[[], Any], is_done: Callable[[], bool], moment: Moment) -> Any:
    """Relay again and again, with the connection cut one step later each time; yield the cuts."""
    for number in range(MOST_STEPS):
        prepare()
        faults = driver_faults.driver(
            driver_faults.at(number, moment), counts=lambda thread: thread == "workqueue-relay"
        )
        with faults as driver, relaying(threads=1, lease_seconds=0.6, poll_seconds=0.01):
            wait_until(is_done)
            hit = bool(driver.hit)
        # What the threads did to end may have been hit too.
        if not hit and not driver.hit:
            assert number > 5, "no statement of the relay was hit"
            return
        yield f"cut {moment} {driver.hit[0]}"
    pytest.fail(f"the relay took more than {MOST_STEPS} steps")


def is_empty() -> bool:
    """Tell whether nothing is live, and every key could begin anew."""
    return not LiveJob.objects.exists() and not OutboxKey.objects.filter(last_seq__gt=0).exists()


@MOMENTS
@pytest.mark.parametrize("max_attempts", [1, pytest.param(3, marks=pytest.mark.soak)])
def test_messages_are_delivered_once_and_in_order(moment: Moment, max_attempts: int) -> None:
    received = Received()
    events = declare(received, max_attempts=max_attempts)

    def prepare() -> None:
        received.messages.clear()
        Result.objects.all().delete()
        publish(events, 1, 2, key="a")

    for told in each_cut(prepare, is_empty, moment):
        assert [(each.payload, each.attempt) for each in received.messages] == [(1, 1), (2, 1)], (
            told
        )
        assert Result.objects.count() == 2, told
        assert not DeadJob.objects.exists(), told


@pytest.fixture
def _data_elsewhere() -> Iterator[None]:
    with jobs.workqueue(OUTBOX_DATABASES=["other"]):
        yield


@MOMENTS
@pytest.mark.usefixtures("_data_elsewhere")
def test_jobs_are_moved_once(moment: Moment) -> None:
    moved: list[uuid.UUID] = []

    def prepare() -> None:
        LiveJob.objects.all().delete()
        with transaction.atomic(using="other"):
            moved[:] = [uuid.UUID(outbox.enqueue(app.echo, 1, using="other").id)]

    def is_done() -> bool:
        return not LiveJob.objects.using("other").exists()

    assert relayed_aliases() == ["other"]
    for told in each_cut(prepare, is_done, moment):
        assert [(job.pk, job.state, job.attempt) for job in LiveJob.objects.all()] == [
            (moved[0], "ready", 0)
        ], told
        assert Moved.objects.filter(pk=moved[0]).count() == 1, told
        assert not get_store("other").dead().exists(), told
