"""cancel, pause and resume: what people ask for while jobs wait and run."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, Final

import pytest
from django.db.models import Q

from django_workqueue.models import Queue
from django_workqueue.states import DeathReason, HeldReason
from django_workqueue.store import Ack, BaseStore, CancelAnswer
from tests.factories import (
    T0,
    at,
    cancelled,
    claim,
    dead,
    error,
    finished,
    held,
    insert,
    released,
    retried,
    running,
)
from tests.sound import changes, place, row, rows

WAITING: Final[dict[str, Callable[..., Any]]] = {
    "ready": released,
    "scheduled": retried,
    "held": held,
}


@pytest.mark.parametrize("state", WAITING)
def test_a_job_that_waits_is_cancelled_at_once(store: BaseStore, state: str) -> None:
    taken = WAITING[state](store, unique_key="k", result_ttl=60.0, priority=3)
    before = row(taken.id)
    assert before["state"] == state
    assert store.cancel(taken.id, now=at(8)) == CancelAnswer.CANCELLED
    stored = rows()["finished"][taken.id]
    assert {name: before[name] for name in stored if name in before and name != "expires_at"} == {
        name: stored[name]
        for name in stored
        if name in before and name not in {"expires_at", "started_at", "token"}
    } | {"started_at": None, "token": None}
    assert (stored["outcome"], stored["value"], stored["attempts"]) == (
        "cancelled",
        None,
        before["attempt"],
    )
    assert (stored["finished_at"], stored["expires_at"]) == (at(8), at(68))
    insert(store, unique_key="k")


def test_a_job_that_runs_is_asked_and_stays_its_holders(store: BaseStore) -> None:
    # L9.
    taken = running(store)
    before = row(taken.id)
    assert store.cancel(taken.id, now=at(8)) == CancelAnswer.ASKED
    assert changes(before, row(taken.id)) == {"cancel_asked_at": at(8)}
    assert store.cancel(taken.id, now=at(9)) == CancelAnswer.NOTHING
    assert row(taken.id)["cancel_asked_at"] == at(8)


@pytest.mark.parametrize("make", [dead, finished, cancelled])
def test_a_job_that_is_not_live_is_left_alone(store: BaseStore, make: Callable[..., Any]) -> None:
    taken = make(store)
    before = rows()
    assert store.cancel(taken.id, now=at(8)) == CancelAnswer.NOTHING
    assert store.cancel(uuid.uuid4(), now=at(8)) == CancelAnswer.NOTHING
    assert rows() == before


def test_a_condition_narrows_which_job_is_meant(store: BaseStore) -> None:
    taken, job_id = running(store, queue_name="mine"), insert(store, queue_name="mine")
    before = rows()
    for each in (job_id, taken.id):
        answer = store.cancel(each, where=Q(queue_name="Mine"), now=at(8))
        assert answer == CancelAnswer.NOTHING
    assert rows() == before
    assert store.cancel(job_id, where=Q(queue_name="mine"), now=at(8)) == CancelAnswer.CANCELLED


def test_a_cancelled_job_is_kept_as_long_as_a_result_of_it_would_be(store: BaseStore) -> None:
    gone, short, kept = (insert(store, result_ttl=ttl) for ttl in (0.0, 0.5, None))
    for job_id in (gone, short, kept):
        store.cancel(job_id, now=at(1))
    stored = rows()["finished"]
    assert {job_id: each["expires_at"] for job_id, each in stored.items()} == {
        short: at(1.5),
        kept: None,
    }


def test_a_lapsed_job_whose_cancel_was_asked_ends_cancelled_with_the_loss_on_record(
    store: BaseStore,
) -> None:
    # O6.
    taken = running(store, lease_seconds=5)
    store.cancel(taken.id, now=at(1))
    assert [each.outcome for each in store.reclaim(now=at(5))] == ["cancelled"]
    stored = rows()["finished"][taken.id]
    assert (stored["outcome"], stored["worker_ids"]) == ("cancelled", ["w1"])
    assert [each["outcome"] for each in stored["errors"]] == ["lost"]


def test_an_expired_lapsed_job_whose_cancel_was_asked_ends_cancelled(store: BaseStore) -> None:
    taken = running(store, lease_seconds=5, expires_seconds=3)
    store.cancel(taken.id, now=at(1))
    assert [each.outcome for each in store.expire(now=at(5))] == ["cancelled"]
    assert place(taken.id) == "finished"


@pytest.mark.parametrize("end", ["release", "hold", "stray", "reclaim"])
def test_a_start_that_is_given_back_leaves_nothing_in_the_result_of_a_cancelled_job(
    store: BaseStore, end: str
) -> None:
    # It never ran: neither charged, nor among the workers, nor lost.
    taken = running(store, max_attempts=1, lease_seconds=5)
    store.cancel(taken.id, now=at(1))
    unknown = error(taken, outcome="unknown_task")
    ends: dict[str, Callable[[], Any]] = {
        "release": lambda: store.release(taken, now=at(2)),
        "hold": lambda: store.hold(taken, HeldReason.UNKNOWN, 9, unknown, now=at(2)),
        "stray": lambda: store.release_strays("w1", set(), now=at(2)),
        "reclaim": lambda: store.reclaim(now=at(5)),
    }
    ends[end]()
    stored = rows()["finished"][taken.id]
    assert (stored["outcome"], stored["attempts"], stored["worker_ids"]) == ("cancelled", 0, [])
    assert len(stored["errors"]) == (end == "hold")


def test_a_cancel_between_two_settles_gives_one_end(store: BaseStore) -> None:
    taken = running(store)
    store.cancel(taken.id, now=at(1))
    assert store.ack([Ack(claim=taken, value="1")], now=at(2)) == {taken.hold}
    assert store.cancel(taken.id, now=at(3)) == CancelAnswer.NOTHING
    assert rows()["finished"][taken.id]["outcome"] == "succeeded"


def test_pause_again_replaces_the_pause(store: BaseStore) -> None:
    store.pause("q", at(5), "first")
    store.pause("q", at(9), "second")
    assert list(Queue.objects.values("name", "paused_until", "reason")) == [
        {"name": "q", "paused_until": at(9), "reason": "second"}
    ]
    assert store.resume("q") is True
    assert list(Queue.objects.values_list("paused_until", "reason")) == [(None, "")]


def test_a_pause_keeps_nobody_from_settling(store: BaseStore) -> None:
    taken = running(store)
    store.pause("default")
    assert store.extend([taken], 30, now=at(1)) == {taken.hold: False}
    assert store.retry(taken, 0, error(taken), now=at(2)) == "scheduled"
    assert store.promote(now=at(2)) == 1
    assert claim(store, now=at(2)) == []


def test_discard_deletes_a_dead_job_and_no_other(store: BaseStore) -> None:
    gone, kept = dead(store), dead(store, reason=DeathReason.TIMEOUT)
    alive, done = running(store), finished(store, now=T0)
    assert store.discard(gone.id) is True
    assert [store.discard(each.id) for each in (gone, alive, done)] == [False, False, False]
    assert {table: set(found) for table, found in rows().items()} == {
        "live": {alive.id},
        "dead": {kept.id},
        "finished": {done.id},
    }
