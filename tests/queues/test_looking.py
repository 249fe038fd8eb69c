"""Looking at a queue and its jobs, and pausing it."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_workqueue.models import LiveJob
from django_workqueue.queues import (
    Queue,
    QueueStats,
)
from django_workqueue.store import get_store
from tests.database_clock import EPOCH, DatabaseClock
from tests.queues.pull import claim_one, claim_one_of

pytestmark = pytest.mark.django_db(transaction=True)


def test_calls_see_only_their_queue(queue: Queue) -> None:
    other = Queue("others")
    job_id = queue.enqueue("x")

    assert other.claim("w") == []
    assert other.get(job_id) is None
    assert not other.cancel(job_id)
    assert other.next_due() is None
    assert other.stats() == QueueStats(scheduled=0, ready=0, running=0, held=0, dead=0)
    assert queue.get(job_id) is not None


def test_get_sees_a_job_wherever_it_is(queue: Queue) -> None:
    job_id = queue.enqueue("x", delay=60)
    states = []

    def look() -> None:
        view = queue.get(str(job_id))
        assert view is not None
        assert (view.id, view.payload, view.queue_name) == (job_id, "x", "agents")
        states.append((view.state, view.worker))

    look()
    LiveJob.objects.update(run_after=get_store().now())
    claim = claim_one(queue, "agent-7")
    look()
    claim.bury("x")
    look()
    get_store().requeue(job_id)
    look()
    claim_one(queue).ack()
    look()

    assert states == [
        ("scheduled", None),
        ("running", "agent-7"),
        ("dead", None),
        ("ready", None),
        ("succeeded", None),
    ]
    assert queue.get(uuid.uuid4()) is None


def test_get_is_one_statement(queue: Queue) -> None:
    job_id = queue.enqueue("x")
    with CaptureQueriesContext(connection) as queries:
        queue.get(job_id)
    assert len(queries) == 1


def test_next_due_is_when_a_claim_can_next_succeed(
    queue: Queue, database_clock: DatabaseClock
) -> None:
    assert queue.next_due() is None
    queue.enqueue("later", delay=60)
    assert queue.next_due() == EPOCH + timedelta(seconds=60)
    claim = claim_one_of(queue, lease_seconds=5)
    assert queue.next_due() == claim.lease_expires_at
    queue.enqueue("now")
    assert queue.next_due() == EPOCH


def test_a_paused_queue_gives_nothing_until_its_end(
    queue: Queue, database_clock: DatabaseClock
) -> None:
    held = claim_one_of(queue)
    queue.enqueue("x")
    queue.pause(EPOCH + timedelta(seconds=9), reason="a\x00b")
    assert queue.claim("w") == []
    assert queue.next_due() == EPOCH + timedelta(seconds=9)
    held.ack()
    database_clock.advance(9)

    assert claim_one(queue).payload == "x"


def test_a_pause_without_end_lasts_until_resume(queue: Queue) -> None:
    queue.enqueue("x")
    queue.pause()
    assert queue.claim("w") == []
    assert queue.next_due() is None

    assert queue.resume()
    assert not queue.resume()
    assert len(queue.claim("w")) == 1


def test_stats_count_by_state(queue: Queue) -> None:
    queue.enqueue_many([1, 2, 3, 4])
    queue.enqueue(5, delay=60)
    claims = queue.claim("w", limit=3)
    claims[0].ack()
    claims[1].bury("x")

    with CaptureQueriesContext(connection) as queries:
        stats = queue.stats()

    assert stats == QueueStats(scheduled=1, ready=1, running=1, held=0, dead=1)
    assert len(queries) == 1


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_using_names_another_database(queue: Queue) -> None:
    elsewhere = Queue("agents", using="other")
    job_id = elsewhere.enqueue("x")

    assert queue.get(job_id) is None
    assert queue.claim("w") == []
    claim_one(elsewhere).ack()
    view = elsewhere.get(job_id)
    assert view is not None
    assert view.state == "succeeded"
