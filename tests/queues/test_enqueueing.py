"""What comes in, and in which transaction; unique keys; O13."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import transaction
from django.test import override_settings

from django_workqueue.models import LiveJob
from django_workqueue.queues import (
    PayloadError,
    Queue,
)
from tests.database_clock import EPOCH, DatabaseClock
from tests.queues.pull import claim_one, live
from tests.threads import together

pytestmark = pytest.mark.django_db(transaction=True)


def test_enqueue_commits_or_rolls_back_with_the_callers_transaction(queue: Queue) -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        lost = queue.enqueue(1)
        raise ZeroDivisionError
    with transaction.atomic():
        kept = queue.enqueue(2)
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            inner = queue.enqueue(3)
            raise ZeroDivisionError

    assert [queue.get(job_id) is not None for job_id in (lost, kept, inner)] == [
        False,
        True,
        False,
    ]


def test_delay_wins_over_run_after(queue: Queue, database_clock: DatabaseClock) -> None:
    later = EPOCH + timedelta(days=1)

    queue.enqueue("x", delay=2.125, run_after=later)
    assert queue.next_due() == EPOCH + timedelta(seconds=2.125)
    now = queue.enqueue("y", delay=0, run_after=later)
    assert claim_one(queue).id == now


def test_a_naive_moment_is_in_djangos_time_zone(queue: Queue) -> None:
    queue.enqueue("x", run_after=datetime(2040, 1, 1, 0, 0))
    assert queue.next_due() == datetime(2040, 1, 1, 5, 0, tzinfo=UTC)


def test_expires_counts_from_when_the_job_is_due(
    queue: Queue, database_clock: DatabaseClock
) -> None:
    job_id = queue.enqueue("x", delay=10, expires=5)
    database_clock.advance(14.999)
    claim_one(queue).release()
    database_clock.advance(0.001)

    assert queue.claim("w") == []
    view = queue.get(job_id)
    assert view is not None
    assert (view.state, view.reason) == ("dead", "expired")


@override_settings(WORKQUEUE={"MAX_ATTEMPTS": 7, "RESULT_TTL_SECONDS": 0})
def test_what_is_not_given_comes_from_the_settings(queue: Queue) -> None:
    job_id = queue.enqueue("x")
    assert live(job_id).max_attempts == 7
    claim_one(queue).ack()
    assert queue.get(job_id) is None


def test_a_unique_key_gives_the_job_that_holds_it(queue: Queue) -> None:
    first = queue.enqueue(1, unique_key="k")
    other_queue = Queue("others").enqueue(1, unique_key="k")
    assert queue.enqueue(2, unique_key="k") == first
    claim = claim_one(queue)
    assert queue.enqueue(3, unique_key="k") == first
    claim.ack()

    assert queue.enqueue(4, unique_key="k") not in (first, other_queue)
    assert claim_one(queue).payload == 4


def test_a_unique_conflict_leaves_the_callers_transaction_usable(queue: Queue) -> None:
    first = queue.enqueue(1, unique_key="k")
    with transaction.atomic():
        assert queue.enqueue(2, unique_key="k") == first
        second = queue.enqueue(3)
    assert queue.get(second) is not None


def test_one_unique_key_by_many_at_once_is_one_job(queue: Queue) -> None:
    assert len(set(together(8, lambda: queue.enqueue("x", unique_key="k")))) == 1
    assert queue.stats().ready == 1


def test_o13_names_are_told_apart_exactly() -> None:
    names = ["Key", "key", "key "]
    ids = [Queue(name).enqueue(name) for name in names]
    Queue("Key").pause()

    assert [[claim.id for claim in Queue(name).claim("w", limit=9)] for name in names] == [
        [],
        [ids[1]],
        [ids[2]],
    ]
    queue = Queue("agents")
    assert len({queue.enqueue(name, unique_key=name) for name in names}) == 3
    for name in names:
        queue.enqueue(name, kind=name)
    assert [
        [claim.payload for claim in queue.claim("w", limit=9, kind=name)] for name in names
    ] == [[name] for name in names]


def test_enqueue_many_returns_ids_in_order(queue: Queue) -> None:
    taken = queue.enqueue("taken", unique_key="1")

    ids = queue.enqueue_many(
        range(1_203), priority=3, kind="k", unique_key=lambda n: str(min(n, 1_200)) if n else None
    )

    assert ids[1] == taken
    assert ids[1_200] == ids[1_201] == ids[1_202]
    assert len(set(ids)) == 1_201
    rows = {row.pk: row for row in LiveJob.objects.all()}
    payloads: list[Any] = [rows[job_id].payload for job_id in ids[2:1_200]]
    assert payloads == list(range(2, 1_200))
    assert (rows[ids[0]].priority, rows[ids[0]].kind) == (3, "k")


def test_enqueue_many_of_nothing_is_nothing(queue: Queue) -> None:
    assert queue.enqueue_many([]) == []


def test_enqueue_many_writes_all_or_none(queue: Queue) -> None:
    with pytest.raises(PayloadError, match=r"^payloads\[1\] must be"):
        queue.enqueue_many([1, object()])
    assert queue.stats().ready == 0
