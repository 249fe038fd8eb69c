"""claim: who gets which jobs, in which order, and what it costs them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from django_workqueue.ids import new_token
from django_workqueue.models import LiveJob
from django_workqueue.states import DeathReason, Lane
from django_workqueue.store import Ack, BaseStore
from tests import sound
from tests.factories import (
    LEASE,
    T0,
    TASK,
    at,
    claim,
    dead,
    error,
    finished,
    held,
    insert,
    retried,
    running,
)
from tests.sound import changes, place, row, rows


def test_a_claim_charges_an_attempt_and_takes_the_job_under_a_lease(store: BaseStore) -> None:
    job_id = insert(store, headers='{"tenant":"a"}', expires_seconds=99)
    before, token = row(job_id), new_token()
    (taken,) = claim(store, now=at(3), worker_id="w1", token=token, lease_seconds=30)
    assert changes(before, row(job_id)) == {
        "state": "running",
        "token": token,
        "worker_id": "w1",
        "claimed_at": at(3),
        "lease_expires_at": at(33),
        "attempt": 1,
        "fence": 1,
    }
    assert (taken.id, taken.token, taken.hold) == (job_id, token, (job_id, token))
    assert (taken.worker_id, taken.attempt, taken.fence) == ("w1", 1, 1)
    assert (taken.claimed_at, taken.lease_expires_at) == (at(3), at(33))
    assert (taken.run_after, taken.enqueued_at) == (T0, T0)
    assert (taken.payload, taken.headers) == ('{"args":[7],"kwargs":{}}', '{"tenant":"a"}')
    assert (taken.worker_ids, taken.errors) == ("[]", "[]")
    assert (taken.suspect, taken.atomic) == (False, False)


ODD: str = 'say "no\\" \x01\t\n\x7f, [null] {é😀\u2028}\\'


@pytest.mark.parametrize("number", [0.1, 1 / 3, 1e-7, 86400.0, 123456.789012, 1e21])
def test_a_claim_tells_what_was_written_to_the_digit(store: BaseStore, number: float) -> None:
    given: dict[str, Any] = {
        "queue_name": ODD,
        "task": ODD,
        "kind": ODD,
        "backend": ODD,
        "order_key": ODD,
        "payload": json.dumps(ODD, ensure_ascii=False),
        "headers": json.dumps({ODD: ODD}),
        "scheduled_for": at(0.000001),
        "seq": 1,
        "timeout": number,
        "result_ttl": number,
    }
    taken = running(store, worker_id=ODD, lease_seconds=0.25, **given)
    assert {name: getattr(taken, name) for name in given} == given
    assert (taken.worker_id, taken.lease_expires_at) == (ODD, at(0.25))


def test_of_two_claims_one_gets_the_job(store: BaseStore) -> None:
    # L1.
    insert(store)
    assert [each.attempt for each in claim(store)] == [1]
    assert claim(store, worker_id="w2") == []


def test_jobs_come_by_priority_then_due_then_id(store: BaseStore) -> None:
    # L2. The first three are due at once when they are claimed, in another order than inserted.
    low = insert(store, run_after=at(10), priority=0)
    high = insert(store, run_after=at(99), priority=5)
    old = insert(store, run_after=at(50), priority=5)
    first, second = insert(store, priority=-1), insert(store, priority=-1)
    store.promote(now=at(100))
    order = [claim(store, now=at(100))[0].id for _ in range(5)]
    assert order == [old, high, low, first, second]


def test_a_batch_comes_in_claim_order(store: BaseStore) -> None:
    ids = {priority: insert(store, priority=priority) for priority in (0, 10, 5, 20)}
    taken = claim(store, limit=4)
    assert [each.id for each in taken] == [ids[20], ids[10], ids[5], ids[0]]
    assert [-each.rank for each in taken] == [20, 10, 5, 0]
    assert len({each.token for each in taken}) == 1


def test_a_claim_takes_no_more_than_asked(store: BaseStore) -> None:
    ids = [insert(store) for _ in range(5)]
    assert [each.id for each in claim(store, limit=2)] == ids[:2]
    assert [each.id for each in claim(store, limit=99)] == ids[2:]


@pytest.mark.parametrize("limit", [0, -1])
def test_a_claim_of_none_takes_none(store: BaseStore, limit: int) -> None:
    insert(store)
    before = rows()
    assert claim(store, limit=limit) == []
    assert rows() == before


def test_only_what_is_ready_is_taken(store: BaseStore) -> None:
    insert(store, delay_seconds=5)
    retried(store)
    held(store)
    running(store)
    dead(store)
    finished(store)
    before = rows()
    assert claim(store, now=at(1000), limit=99) == []
    assert rows() == before


@pytest.mark.parametrize(
    "other",
    [
        {"queue_name": "Default"},
        {"queue_name": "default "},
        {"queue_name": "other"},
        {"lane": Lane.PAYLOAD},
        {"lane": Lane.OUTBOX},
    ],
)
def test_a_claim_keeps_to_its_lane_and_queue(store: BaseStore, other: dict[str, Any]) -> None:
    insert(store, **other)
    assert claim(store) == []


def test_excluded_tasks_are_passed_over(store: BaseStore) -> None:
    insert(store)
    insert(store, task="shop.tasks.gone")
    other = insert(store, task=TASK.upper())
    taken = claim(store, limit=9, exclude_tasks=[TASK, "shop.tasks.gone"])
    assert [each.id for each in taken] == [other]


def test_a_kind_is_compared_exactly_and_none_is_any(store: BaseStore) -> None:
    lane = Lane.PAYLOAD
    ids = {kind: insert(store, lane=lane, kind=kind) for kind in ("review", "Review", "")}
    assert [each.id for each in claim(store, lane=lane, limit=9, kind="review")] == [ids["review"]]
    assert [each.id for each in claim(store, lane=lane, limit=9, kind="")] == [ids[""]]
    assert [each.id for each in claim(store, lane=lane, limit=9)] == [ids["Review"]]


def test_a_paused_queue_gives_nothing_until_its_pause_ends(store: BaseStore) -> None:
    job_id = insert(store)
    store.pause("default", at(5), "maintenance")
    store.pause("Default")
    assert claim(store, now=at(4.999999)) == []
    assert [each.id for each in claim(store, now=at(5))] == [job_id]


def test_a_pause_without_end_ends_when_resumed(store: BaseStore) -> None:
    job_id = insert(store)
    store.pause("default", at(5))
    store.pause("default")
    assert claim(store, now=at(10**9)) == []
    assert store.resume("default") is True
    assert store.resume("default") is False
    assert [each.id for each in claim(store)] == [job_id]


def test_no_attempt_starts_at_or_after_expiry(store: BaseStore) -> None:
    job_id = insert(store, expires_seconds=5)
    assert claim(store, now=at(5)) == []
    assert [each.id for each in claim(store, now=at(4.999999))] == [job_id]


def test_a_job_without_budget_is_never_returned_and_a_sweep_buries_it(store: BaseStore) -> None:
    # L8: a row edited by hand.
    job_id = insert(store)
    LiveJob.objects.filter(pk=job_id).update(attempt=3)
    sound.forget()
    assert claim(store) == []
    (swept,) = store.bury_spent(now=at(1))
    assert (swept.id, swept.outcome, swept.reason) == (job_id, "dead", DeathReason.EXHAUSTED)
    assert place(job_id) == "dead"


def test_the_last_attempt_is_its_holders(store: BaseStore) -> None:
    # L14.
    taken = running(store, max_attempts=1)
    before = rows()
    assert claim(store, now=at(1), worker_id="w2") == []
    assert store.bury_spent(now=at(1)) == []
    assert store.reclaim(now=at(1)) == []
    assert rows() == before
    assert store.ack([Ack(claim=taken, value="1")], now=at(2)) == {taken.hold}


def test_a_second_claim_forgets_the_first_ones_moments(store: BaseStore) -> None:
    taken = running(store)
    store.mark_started([taken], now=at(1))
    store.release(taken, now=at(2))
    before = row(taken.id)
    (again,) = claim(store, now=at(4), worker_id="w2")
    assert changes(before, row(taken.id)) == {
        "state": "running",
        "token": again.token,
        "worker_id": "w2",
        "claimed_at": at(4),
        "started_at": None,
        "lease_expires_at": at(4 + LEASE),
        "attempt": 1,
        "fence": 2,
    }


def test_a_claims_moments_follow_its_own_clock_from_the_databases(store: BaseStore) -> None:
    taken = running(store)
    assert taken.moment(taken.received + 2.5) == at(2.5)
    assert taken.moment(taken.received - 1) == T0


def test_numbers_beyond_32_bits_are_numbers(store: BaseStore) -> None:
    # Case 116. Ids are UUIDs, and no sequence is used: the fence is what rises for ever.
    far = 2**31 + 5
    job_id = insert(store)
    LiveJob.objects.filter(pk=job_id).update(fence=far)
    for number in range(3):
        (taken,) = claim(store, now=at(2 * number))
        assert taken.fence == far + number + 1
        assert store.extend([taken], 30, now=at(2 * number)) == {taken.hold: False}
        store.release(taken, now=at(2 * number + 1))
    (taken,) = claim(store, now=at(9))
    store.bury(taken, DeathReason.TERMINAL, error(taken), now=at(10))
    assert store.requeue(taken.id, now=at(11)) is True
    assert row(job_id)["fence"] == far + 4
