"""insert: a new job is scheduled or ready, and a taken unique key leaves it out."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_workqueue.states import Lane
from django_workqueue.store import BaseStore
from django_workqueue.store.inserting import MOST_KEPT
from tests.factories import QUEUE, T0, TASK, at, insert, new_job
from tests.sound import row, rows


def test_a_new_job_is_ready_and_due_now(store: BaseStore) -> None:
    job = new_job()
    (inserted,) = store.insert([job], now=T0)
    assert inserted == (job.id, T0)
    assert row(job.id) == {
        "id": job.id,
        "lane": "task",
        "queue_name": QUEUE,
        "task": TASK,
        "kind": "",
        "backend": "",
        "payload": {"args": [7], "kwargs": {}},
        "rank": 0,
        "run_after": T0,
        "expires_at": None,
        "attempt": 0,
        "max_attempts": 3,
        "fence": 0,
        "claimed_at": None,
        "started_at": None,
        "enqueued_at": T0,
        "worker_ids": [],
        "suspect": False,
        "deaths": 0,
        "unique_key": "",
        "unique_while": "",
        "order_key": "",
        "seq": None,
        "schedule": "",
        "scheduled_for": None,
        "timeout": None,
        "result_ttl": None,
        "dead_letter": True,
        "atomic": False,
        "headers": {},
        "errors": [],
        "progress": None,
        "state": "ready",
        "held_reason": "",
        "worker_id": None,
        "token": None,
        "lease_expires_at": None,
        "cancel_asked_at": None,
        "unknown_since": None,
        "unique_hash": None,
    }


def test_every_option_is_stored_as_given(store: BaseStore) -> None:
    options: dict[str, Any] = {
        "lane": Lane.PAYLOAD,
        "queue_name": "Überweisung 支払い",
        "task": "",
        "kind": "review",
        "backend": "fast",
        "max_attempts": 7,
        "order_key": "order-1",
        "seq": 2**40,
        "schedule": "nightly",
        "scheduled_for": at(-5),
        "timeout": 0.25,
        "result_ttl": 0.5,
        "dead_letter": False,
        "atomic": True,
    }
    stored = row(
        insert(
            store,
            **options,
            priority=100,
            payload='{"text":"\\u00fc \\ud83d\\ude00"}',
            headers='{"tenant":"a"}',
            unique_key="k" * 1000,
            unique_while="queued",
        )
    )
    assert {name: stored[name] for name in options} == options
    assert stored["rank"] == -100
    assert stored["payload"] == {"text": "ü 😀"}
    assert stored["headers"] == {"tenant": "a"}
    assert (stored["unique_key"], stored["unique_while"]) == ("k" * 1000, "queued")
    assert len(stored["unique_hash"]) == 64


@pytest.mark.parametrize(
    ("options", "state", "due"),
    [
        ({"delay_seconds": 0.0}, "ready", 0),
        ({"delay_seconds": 0.25}, "scheduled", 0.25),
        ({"run_after": at(5)}, "scheduled", 5),
        ({"run_after": at(-5)}, "scheduled", -5),
    ],
)
def test_a_job_for_later_is_scheduled(
    store: BaseStore, options: dict[str, Any], state: str, due: float
) -> None:
    stored = row(insert(store, **options))
    assert (stored["state"], stored["run_after"], stored["enqueued_at"]) == (state, at(due), T0)


@pytest.mark.parametrize(
    ("options", "expires"),
    [
        ({}, 60),
        ({"delay_seconds": 2.5}, 62.5),
        ({"run_after": at(100)}, 160),
    ],
)
def test_expiry_counts_from_the_moment_the_job_is_due(
    store: BaseStore, options: dict[str, Any], expires: float
) -> None:
    assert row(insert(store, expires_seconds=60.0, **options))["expires_at"] == at(expires)


@pytest.mark.parametrize("seconds", [1e-6, 0.999999, 1.5, -1e-6, -3.25, 100 * 365.25 * 86_400])
def test_moments_are_added_to_the_microsecond(store: BaseStore, seconds: float) -> None:
    moment = at(0.25)
    job_id = insert(store, run_after=moment, expires_seconds=seconds)
    assert row(job_id)["expires_at"] == moment + timedelta(seconds=seconds)


def test_microseconds_are_kept(store: BaseStore) -> None:
    moment = T0 + timedelta(microseconds=123_457)
    assert row(insert(store, now=moment))["enqueued_at"] == moment


def test_no_jobs_is_no_statement(store: BaseStore) -> None:
    assert store.insert([], now=T0) == []


def test_more_than_a_statement_holds_are_written_in_order(store: BaseStore) -> None:
    jobs = [new_job(unique_key=f"k{number % 1100}") for number in range(1201)]
    written = store.insert(jobs, now=T0)
    assert [each.id for each in written] == [job.id for job in jobs[:1100]]
    assert len(rows()["live"]) == 1100


def test_a_taken_key_leaves_the_job_out_and_the_transaction_goes_on(store: BaseStore) -> None:
    holder = insert(store, unique_key="k")
    before = rows()
    with transaction.atomic():
        other, twin = new_job(), new_job(unique_key="k")
        written = store.insert([twin, other], now=T0)
    assert [each.id for each in written] == [other.id]
    assert set(rows()["live"]) == {holder, other.id}
    assert rows()["live"][holder] == before["live"][holder]


def test_of_twins_in_one_call_the_first_is_written(store: BaseStore) -> None:
    first, second = new_job(unique_key="k"), new_job(unique_key="k")
    assert [each.id for each in store.insert([first, second], now=T0)] == [first.id]
    assert set(rows()["live"]) == {first.id}


def test_keys_constrain_within_their_queue_and_task(store: BaseStore) -> None:
    jobs = [
        new_job(unique_key="k"),
        new_job(unique_key="k", queue_name="other"),
        new_job(unique_key="k", task="shop.tasks.other"),
        new_job(unique_key=""),
        new_job(unique_key="K"),
        new_job(unique_key="k "),
        new_job(),
        new_job(),
    ]
    assert len(store.insert(jobs, now=T0)) == len(jobs)


def test_an_id_that_is_taken_is_an_error(store: BaseStore) -> None:
    taken = insert(store)
    with pytest.raises(IntegrityError), transaction.atomic():
        store.insert([new_job(id=taken)], now=T0)
    with pytest.raises(IntegrityError), transaction.atomic():
        store.insert([new_job(id=taken, unique_key="k")], now=T0)


@pytest.mark.parametrize("priority", [-101, 101])
def test_a_priority_out_of_bounds_is_refused_by_the_table(store: BaseStore, priority: int) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        store.insert([new_job(priority=priority)], now=T0)
    assert rows()["live"] == {}


def test_an_insert_rolls_back_with_its_transaction(store: BaseStore) -> None:
    def failing() -> uuid.UUID:
        with transaction.atomic():
            insert(store)
            raise LookupError

    kept = insert(store)
    with pytest.raises(LookupError):
        failing()
    assert set(rows()["live"]) == {kept}


ODD = 'a "quoted" \\ back{slash},NULL é😀'


def different(number: int) -> dict[str, Any]:
    """Return options of a job of which every one is another than those of the next."""
    odd = number % 2 == 0
    return {
        "payload": json.dumps(f"{number} \0 {ODD if odd else ''}", ensure_ascii=odd),
        "queue_name": f"q{number} {ODD}",
        "task": "NULL" if odd else "",
        "kind": ODD if odd else "",
        "backend": f"b{number}",
        "priority": number - 1,
        "run_after": at(number + 0.000001) if number == 1 else None,
        "delay_seconds": float(number) if odd else 0.0,
        "expires_seconds": None if odd else 0.5 + number,
        "max_attempts": number + 1,
        "unique_key": None if odd else f"key {ODD}",
        "unique_while": "live" if odd else "queued",
        "order_key": f"o{number}",
        "seq": None if odd else number,
        "schedule": ODD if odd else "nightly",
        "scheduled_for": None if odd else at(-number),
        "timeout": None if odd else 1.25 * number,
        "result_ttl": 0.0 if odd else None,
        "dead_letter": odd,
        "atomic": not odd,
        "headers": f'{{"n":{number}}}' if odd else "{}",
    }


def test_rows_of_one_statement_are_as_those_of_many(store: BaseStore) -> None:
    options = [different(number) for number in range(4)]
    together = [new_job(**each) for each in options]
    assert [row.id for row in store.insert(together, now=T0)] == [job.id for job in together]
    for job, each in zip(together, options, strict=True):
        # Under other keys, which are free.
        key = each["unique_key"]
        apart = insert(store, **each | {"unique_key": key and f"{key}!"})
        own = {"id", "unique_key", "unique_hash"}
        one, other = row(job.id), row(apart)
        assert {name for name in one if one[name] != other[name]} <= own
        assert one["unique_key"] == (key or "")


@pytest.mark.parametrize(
    "long",
    [
        {"payload": f'"{"x" * 1_000_000}"'},
        {"headers": f'{{"x": "{"x" * 1_000_000}"}}'},
        # Each has at most four bytes.
        {"payload": f'"{"☃" * 250_000}"'},
    ],
    ids=["payload", "headers", "not ASCII"],
)
def test_a_call_is_split_where_its_texts_are_long(long: Any, store: BaseStore) -> None:
    jobs = [new_job(**long) for _ in range(9)]
    with CaptureQueriesContext(connection) as queries:
        assert len(store.insert(jobs, now=T0)) == 9
    assert len([each for each in queries if "INSERT INTO" in each["sql"]]) == 3


def test_what_is_inserted_often_is_kept_whatever_else_there_was(store: BaseStore) -> None:
    # Otherwise a process that gave each of its first jobs another number would be slow for good.
    for number in range(MOST_KEPT + 1):
        insert(store, now=None, expires_seconds=1.0 + number)
    insert(store, now=None, expires_seconds=0.5)
    assert any(0.5 in facts for facts, _, _ in store._steady)
    assert len(store._steady) <= MOST_KEPT
