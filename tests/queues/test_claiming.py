"""Taking jobs: L1 to L8, L10, L12, L14 to L16."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from django.db import DatabaseError, OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_workqueue.models import DeadJob, LiveJob, Result
from django_workqueue.queues import (
    Cancelled,
    InTransaction,
    LeaseLost,
    PayloadError,
    Queue,
)
from django_workqueue.states import Lane
from django_workqueue.store import NewJob, get_store
from tests import jobs
from tests.database_clock import EPOCH, DatabaseClock
from tests.driver_faults import cut
from tests.queues.pull import claim_one, claim_one_of, lapse, live
from tests.sound import assert_sound
from tests.threads import together

pytestmark = pytest.mark.django_db(transaction=True)


def test_l1_two_claimers_of_one_job_are_given_one_and_nothing(queue: Queue) -> None:
    job_id = queue.enqueue("x", max_attempts=3)

    answers = together(2, lambda: queue.claim("w"))

    assert sorted(map(len, answers)) == [0, 1]
    assert live(job_id).attempt == 1
    assert_sound(job_id)


def test_l2_claim_order_is_priority_then_due(queue: Queue, database_clock: DatabaseClock) -> None:
    due = {seconds: EPOCH + timedelta(seconds=seconds) for seconds in (10, 50, 99)}
    low = queue.enqueue("low", priority=0, run_after=due[10])
    high = queue.enqueue("high", priority=5, run_after=due[99])
    old = queue.enqueue("old", priority=5, run_after=due[50])
    database_clock.advance(100)

    assert [claim_one(queue).id for _ in range(3)] == [old, high, low]


def test_l2_one_claim_of_several_is_in_claim_order(queue: Queue) -> None:
    for priority in (0, 10, 5, 20):
        queue.enqueue(priority, priority=priority)

    assert [claim.payload for claim in queue.claim("w", limit=4)] == [20, 10, 5, 0]


def test_l3_a_job_is_due_at_its_moment_and_not_before(
    queue: Queue, database_clock: DatabaseClock
) -> None:
    job_id = queue.enqueue("x", run_after=EPOCH + timedelta(seconds=5))

    database_clock.advance(4.999)
    assert queue.claim("w") == []
    database_clock.advance(0.001)
    assert claim_one(queue).id == job_id


def test_l4_a_lease_lapses_at_its_end_and_not_before(
    queue: Queue, database_clock: DatabaseClock
) -> None:
    claim = claim_one_of(queue, lease_seconds=5, max_attempts=3)
    store = get_store()

    database_clock.advance(4.999)
    assert store.reclaim() == []
    database_clock.advance(0.001)
    assert [swept.id for swept in store.reclaim()] == [claim.id]

    row = live(claim.id)
    assert (row.state, row.attempt) == ("ready", 1)
    assert_sound(claim.id)


def test_l4_a_claim_takes_back_what_lapsed_in_its_queue(queue: Queue) -> None:
    lapsed, held = queue.enqueue(1), Queue("others").enqueue(2)
    lapse(claim_one(queue), claim_one(Queue("others")))

    claim = claim_one(queue)

    assert (claim.id, claim.attempt, claim.fence) == (lapsed, 2, 2)
    assert live(held).state == "running"


def test_l5_a_job_whose_holders_all_vanished_is_dead_as_lost(queue: Queue) -> None:
    first = claim_one_of(queue, max_attempts=2)
    lapse(first)
    lapse(claim_one(queue))

    assert queue.claim("w") == []
    view = queue.get(first.id)
    assert view is not None
    assert (view.state, view.reason, view.attempt) == ("dead", "lost", 2)
    assert_sound(first.id)


def test_a_job_of_one_attempt_is_handed_out_once(queue: Queue) -> None:
    claim = claim_one_of(queue, max_attempts=1)
    lapse(claim)

    assert queue.claim("w") == []
    assert DeadJob.objects.get(pk=claim.id).reason == "lost"


def test_l6_calls_with_a_former_claim_of_the_same_worker_change_nothing(queue: Queue) -> None:
    first = claim_one_of(queue, max_attempts=3)
    lapse(first)
    second = claim_one(queue)
    before = LiveJob.objects.values().get(pk=first.id)
    calls: list[Callable[[], object]] = [
        first.ack,
        lambda: first.retry(0),
        lambda: first.bury("x"),
        first.release,
        first.extend,
    ]

    for call in calls * 3:
        with pytest.raises(LeaseLost) as caught:
            call()
        assert caught.value.job_id == first.id
        assert not isinstance(caught.value, Cancelled)

    assert LiveJob.objects.values().get(pk=first.id) == before
    second.ack("done")
    assert_sound(first.id)


def test_l7_the_note_of_a_retried_attempt_stays_on_that_attempt(queue: Queue) -> None:
    first = claim_one_of(queue, max_attempts=2)
    first.retry(delay=0, error="out of paper")
    second = claim_one(queue)
    lapse(second)
    queue.claim("w")

    view = queue.get(first.id)

    assert view is not None
    assert view.reason == "lost"
    attempts = [(error["attempt"], error["outcome"], error["message"]) for error in view.errors]
    assert attempts[0] == (1, "failed", "out of paper")
    assert attempts[1][:2] == (2, "lost")
    assert "out of paper" not in attempts[1][2]


def test_l8_a_row_edited_past_its_budget_is_not_claimed_and_is_buried(queue: Queue) -> None:
    job_id = queue.enqueue("x", max_attempts=3)
    LiveJob.objects.filter(pk=job_id).update(attempt=3)

    assert queue.claim("w") == []
    assert [swept.id for swept in get_store().bury_spent()] == [job_id]
    assert DeadJob.objects.get(pk=job_id).reason == "exhausted"


def test_l10_a_fault_of_the_sweep_does_not_stop_claiming(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lapse(claim_one_of(queue))
    ready = queue.enqueue("ready")

    def fail(*args: object, **options: object) -> None:
        raise OperationalError("cut")

    monkeypatch.setattr(type(get_store()), "reclaim", fail)
    with caplog.at_level(logging.WARNING, logger="django_workqueue"):
        assert claim_one(queue).id == ready

    assert [(r.message, r.queue) for r in caplog.records] == [("queue not swept", "agents")]  # type: ignore[attr-defined]


def test_l12_a_worker_of_tasks_never_sees_a_payload(queue: Queue) -> None:
    job_id = queue.enqueue("x")
    store = get_store()

    assert store.ready_queues(Lane.TASK) == []
    taken = store.claim(
        Lane.TASK, "agents", worker_id="w", token=uuid.uuid4(), limit=9, lease_seconds=9
    )

    assert taken == []
    before = LiveJob.objects.values().get(pk=job_id)
    for _ in range(10):
        jobs.drain(sweep=True)
    assert LiveJob.objects.values().get(pk=job_id) == before
    assert before["attempt"] == 0


def test_a_job_of_a_task_is_not_seen_by_the_queue_of_its_name(queue: Queue) -> None:
    [task] = get_store().insert([NewJob(payload="{}", queue_name="agents", max_attempts=3)])

    assert queue.claim("w") == []
    assert queue.get(task.id) is None
    assert not queue.cancel(task.id)
    assert queue.stats().ready == 0
    assert queue.next_due() is None


def test_l14_a_claim_at_its_last_attempt_is_left_to_its_holder(queue: Queue) -> None:
    claim = claim_one_of(queue, max_attempts=1)

    assert queue.claim("other") == []
    claim.ack()

    view = queue.get(claim.id)
    assert view is not None
    assert view.state == "succeeded"


def test_l15_a_job_that_lapsed_and_expired_is_dead_as_expired(
    queue: Queue, database_clock: DatabaseClock
) -> None:
    claim = claim_one_of(queue, lease_seconds=5, expires=5, max_attempts=1)
    database_clock.advance(5)

    assert queue.claim("w") == []
    assert DeadJob.objects.get(pk=claim.id).reason == "expired"
    assert_sound(claim.id)


@pytest.fixture
def no_deaths() -> Iterator[None]:
    """Let the database refuse every row of a dead job."""
    table = DeadJob._meta.db_table
    statements = {
        "sqlite": [
            f"CREATE TRIGGER no_deaths BEFORE INSERT ON {table} "
            "BEGIN SELECT RAISE(ABORT, 'no deaths'); END"
        ],
        "postgresql": [
            "CREATE FUNCTION no_deaths() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN RAISE check_violation USING MESSAGE = ''no deaths''; END'",
            f"CREATE TRIGGER no_deaths BEFORE INSERT ON {table} EXECUTE FUNCTION no_deaths()",
        ],
        "mysql": [
            f"CREATE TRIGGER no_deaths BEFORE INSERT ON {table} FOR EACH ROW "
            "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no deaths'"
        ],
    }
    on_table = f" ON {table}" if connection.vendor == "postgresql" else ""
    with connection.cursor() as cursor:
        for statement in statements[connection.vendor]:
            cursor.execute(statement)
    yield
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TRIGGER no_deaths{on_table}")
        if connection.vendor == "postgresql":
            cursor.execute("DROP FUNCTION no_deaths")


def test_l16_a_death_that_cannot_be_written_leaves_the_job_live(
    queue: Queue, no_deaths: None
) -> None:
    claim = claim_one_of(queue)

    with pytest.raises(DatabaseError, match="no deaths"):
        claim.bury("x")

    assert live(claim.id).state == "running"
    claim.ack()
    assert_sound(claim.id)


def test_kind_narrows_a_claim(queue: Queue) -> None:
    review, plain = queue.enqueue(1, kind="review"), queue.enqueue(2)

    assert queue.claim("w", kind="Review") == []
    assert [claim.id for claim in queue.claim("w", limit=9, kind="review")] == [review]
    claim = claim_one(queue)
    assert (claim.id, claim.kind) == (plain, "")


def test_an_idle_claim_is_one_statement_and_takes_no_write_lock(queue: Queue) -> None:
    with CaptureQueriesContext(connection) as queries:
        assert queue.claim("w") == []
    assert len(queries) == 1
    assert queries[0]["sql"].startswith("SELECT")


@pytest.mark.vendor("sqlite", "postgresql")
def test_what_a_claim_pass_would_find_is_read_from_four_indexes(queue: Queue) -> None:
    with CaptureQueriesContext(connection) as queries:
        queue.claim("w")
    explain = "EXPLAIN QUERY PLAN" if connection.vendor == "sqlite" else "EXPLAIN"
    with transaction.atomic(), connection.cursor() as cursor:
        if connection.vendor == "postgresql":  # which prefers to scan a table of no rows
            cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(f"{explain} {queries[0]['sql']}")
        plan = "\n".join(str(row) for row in cursor.fetchall())

    for name in ("scheduled", "running", "expires", "ready"):
        assert f"workqueue_live_{name}" in plan
    assert "SCAN workqueue" not in plan
    assert "Seq Scan" not in plan


def test_what_a_claim_took_back_is_logged(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    claim = claim_one_of(queue, max_attempts=2)
    lapse(claim)
    with caplog.at_level(logging.INFO, logger="django_workqueue"):
        claim_one(queue)

    [record] = caplog.records
    assert record.getMessage() == "job swept by a claim"
    assert (
        record.__dict__
        | {
            "job_id": str(claim.id),
            "queue": "agents",
            "worker_id": "w",
            "attempt": 1,
            "outcome": "ready",
        }
        == record.__dict__
    )


def test_a_payload_that_was_made_rubbish_does_not_hide_its_neighbours(queue: Queue) -> None:
    bad, good = queue.enqueue(1), queue.enqueue(2)
    with connection.cursor() as cursor:
        store = get_store()
        sql = f"UPDATE {LiveJob._meta.db_table} SET payload = %s WHERE id = %s"
        cursor.execute(sql, ["{", store.dump_uuid(bad)])

    claims = {claim.id: claim for claim in queue.claim("w", limit=2)}

    assert claims[good].payload == 2
    with pytest.raises(PayloadError):
        _ = claims[bad].payload
    claims[bad].ack()
    Result.objects.filter(pk=bad).delete()


def test_claim_inside_a_transaction_is_refused_and_says_why(queue: Queue) -> None:
    queue.enqueue("x")
    with transaction.atomic(), pytest.raises(InTransaction) as caught:
        queue.claim("w")

    assert str(caught.value) == (
        "Queue.claim() must commit by itself, got an open transaction on 'default': the token "
        "would be out before the claim is, and a rollback would leave its holder without it. "
        "Call it outside of atomic(); in a view under ATOMIC_REQUESTS, decorate the view with "
        "transaction.non_atomic_requests(using='default')."
    )
    assert queue.stats().ready == 1


def test_claim_without_autocommit_is_refused(queue: Queue) -> None:
    transaction.set_autocommit(False)
    try:
        with pytest.raises(InTransaction):
            queue.claim("w")
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


@pytest.mark.django_db(transaction=False)
def test_a_test_case_may_claim_inside_its_own_transaction(queue: Queue) -> None:
    queue.enqueue("x")
    claim_one(queue).ack()


def test_a_claim_on_a_connection_that_broke_opens_another(queue: Queue) -> None:
    queue.enqueue("x")
    connection.ensure_connection()
    assert connection.connection is not None
    if connection.vendor == "sqlite":
        connection.connection.close()
    else:
        cut(connection)
    with pytest.raises(Exception, match=r"."):
        queue.stats()
    connection.errors_occurred = True

    assert len(queue.claim("w")) == 1
