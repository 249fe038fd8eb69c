"""ack: a success is kept as a result, or as nothing, and only by the claim that holds the job."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection

from django_workqueue.models import Result
from django_workqueue.store import Ack, BaseStore, Claim
from tests.factories import NOT_HELD, QUEUE, T0, TASK, at, claim, new_job, running
from tests.sound import place, row, rows


def ack(store: BaseStore, *claims: Claim, value: str = "42", seconds: float = 5) -> set[Any]:
    acks = [Ack(claim=each, value=value, started_at=at(1)) for each in claims]
    return set(store.ack(acks, now=at(seconds)))


def test_an_ack_moves_the_job_to_the_finished(store: BaseStore) -> None:
    given: dict[str, Any] = {"kind": "k", "backend": "b", "schedule": "s", "scheduled_for": at(-9)}
    taken = running(store, priority=7, result_ttl=60.0, headers='{"a":1}', **given)
    assert ack(store, taken, value='{"sum":[1,2]}') == {taken.hold}
    assert rows() == {
        "live": {},
        "dead": {},
        "finished": {
            taken.id: {
                "id": taken.id,
                "lane": "task",
                "queue_name": QUEUE,
                "task": TASK,
                "kind": "k",
                "backend": "b",
                "payload": {"args": [7], "kwargs": {}},
                "rank": -7,
                "schedule": "s",
                "scheduled_for": at(-9),
                "outcome": "succeeded",
                "value": {"sum": [1, 2]},
                "attempts": 1,
                "worker_ids": ["w1"],
                "errors": [],
                "run_after": T0,
                "enqueued_at": T0,
                "started_at": at(1),
                "finished_at": at(5),
                "token": taken.token,
                "expires_at": at(65),
            }
        },
    }


@pytest.mark.parametrize(
    ("ttl", "kept"),
    [(0.0, []), (None, [None]), (0.5, [at(5.5)]), (86400.0, [at(86405)])],
)
def test_a_result_is_kept_as_long_as_its_ttl_says(
    store: BaseStore, ttl: float | None, kept: list[Any]
) -> None:
    # N21: half a second is half a second; None is for ever; 0 is not at all.
    taken = running(store, result_ttl=ttl)
    assert ack(store, taken) == {taken.hold}
    assert [each["expires_at"] for each in rows()["finished"].values()] == kept
    assert rows()["live"] == {}


def test_a_value_of_null_is_a_result(store: BaseStore) -> None:
    taken = running(store)
    ack(store, taken, value="null")
    stored = rows()["finished"][taken.id]
    assert (stored["outcome"], stored["value"]) == ("succeeded", None)


@pytest.mark.parametrize(
    "value",
    [
        '"quoted \\" and \\\\ and \\u0000 and \\ud83d\\ude00"',
        '"NULL"',
        '{"comma, and {braces}":"é😀\u2028\u00a0"}',
        "[1e16,1.10,-0.0]",
        f'"{"x" * 1_000_000}"',
    ],
    ids=["escapes", "null as text", "characters", "numbers", "long"],
)
def test_a_value_is_kept_as_it_is_written(store: BaseStore, value: str) -> None:
    taken = running(store)
    ack(store, taken, value=value)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT value FROM {Result._meta.db_table}")
        assert cursor.fetchone() == (value,)


def test_a_worker_of_any_name_stays_on_the_result(store: BaseStore) -> None:
    name = 'agent "seven" \\ é😀,[]'
    taken = running(store, worker_id=name)
    ack(store, taken)
    assert rows()["finished"][taken.id]["worker_ids"] == [name]


def test_a_group_of_long_values_is_settled_whole(store: BaseStore) -> None:
    store.insert([new_job() for _ in range(9)], now=T0)
    taken = claim(store, limit=9)
    assert ack(store, *taken, value=f'"{"x" * 1_000_000}"') == {each.hold for each in taken}
    assert len(rows()["finished"]) == 9


def test_earlier_attempts_stay_on_the_result(store: BaseStore) -> None:
    first = running(store, lease_seconds=1)
    store.reclaim(now=at(2))
    (second,) = claim(store, now=at(3), worker_id="w2")
    ack(store, second)
    stored = rows()["finished"][first.id]
    assert (stored["attempts"], stored["worker_ids"]) == (2, ["w1", "w2"])
    assert [each["outcome"] for each in stored["errors"]] == ["lost"]


def test_an_ack_wins_over_a_cancel_that_was_asked(store: BaseStore) -> None:
    taken = running(store)
    store.cancel(taken.id, now=at(1))
    assert ack(store, taken) == {taken.hold}
    assert rows()["finished"][taken.id]["outcome"] == "succeeded"


def test_an_ack_of_a_lapsed_job_that_nobody_took_is_a_success(store: BaseStore) -> None:
    taken = running(store, lease_seconds=1)
    assert ack(store, taken, seconds=1000) == {taken.hold}


@pytest.mark.parametrize("where", NOT_HELD)
def test_a_late_ack_changes_nothing(store: BaseStore, where: str) -> None:
    stale = NOT_HELD[where](store)
    before = rows()
    assert ack(store, stale) == set()
    assert rows() == before


def test_a_refused_claim_in_a_group_leaves_the_others_settled(store: BaseStore) -> None:
    stale = NOT_HELD["running under a newer token of the same worker"](store)
    good = [running(store, queue_name="good") for _ in range(3)]
    before = row(stale.id)
    assert ack(store, good[0], stale, *good[1:]) == {each.hold for each in good}
    assert row(stale.id) == before
    assert set(rows()["finished"]) == {each.id for each in good}


def test_a_group_with_an_old_and_a_new_claim_of_one_job_keeps_the_new_ones_value(
    store: BaseStore,
) -> None:
    stale = running(store, lease_seconds=1)
    store.reclaim(now=at(2))
    (newer,) = claim(store, now=at(2))
    assert (newer.id, newer.worker_id) == (stale.id, stale.worker_id)
    acks = [Ack(claim=newer, value='"new"'), Ack(claim=stale, value='"old"')]
    assert store.ack(acks, now=at(3)) == {newer.hold}
    stored = rows()["finished"][newer.id]
    assert (stored["value"], stored["token"], stored["attempts"]) == ("new", newer.token, 2)


def test_a_group_larger_than_a_statement_is_settled_whole(store: BaseStore) -> None:
    store.insert([new_job(result_ttl=60.0) for _ in range(405)], now=T0)
    taken = claim(store, limit=405)
    assert ack(store, *reversed(taken)) == {each.hold for each in taken}
    assert len(rows()["finished"]) == 405
    assert place(taken[0].id) == "finished"


def test_an_ack_twice_is_once(store: BaseStore) -> None:
    taken = running(store)
    assert ack(store, taken, taken) == {taken.hold}
    before = rows()
    assert ack(store, taken, value="43") == set()
    assert rows() == before
