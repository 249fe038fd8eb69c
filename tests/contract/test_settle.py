"""retry, bury, release, hold: how a claim ends otherwise; and that no other claim can end it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_workqueue.exceptions import LeaseLost
from django_workqueue.ids import new_token
from django_workqueue.models import LiveJob
from django_workqueue.states import DeathReason, HeldReason, Lane
from django_workqueue.store import BaseStore, Claim
from tests import sound
from tests.factories import NOT_HELD, T0, at, claim, error, new_job, running
from tests.sound import FACTS, changes, place, row, rows

UNHELD: Final = {"token": None, "worker_id": None, "lease_expires_at": None}


def retry(store: BaseStore, taken: Claim, **options: Any) -> str:
    return store.retry(taken, 10, error(taken), now=at(5), **options)


def bury(store: BaseStore, taken: Claim) -> str:
    return store.bury(taken, DeathReason.TERMINAL, error(taken), now=at(5))


def release(store: BaseStore, taken: Claim) -> str:
    return store.release(taken, now=at(5))


def hold(store: BaseStore, taken: Claim) -> str:
    record = error(taken, outcome="unknown_task")
    return store.hold(taken, HeldReason.UNKNOWN, 10, record, now=at(5))


SETTLES: Final[dict[str, Callable[[BaseStore, Claim], str]]] = {
    "retry": retry,
    "bury": bury,
    "release": release,
    "hold": hold,
}


@pytest.mark.parametrize("verb", SETTLES)
@pytest.mark.parametrize("where", NOT_HELD)
def test_a_claim_that_holds_nothing_settles_nothing(
    store: BaseStore, where: str, verb: str
) -> None:
    # L6, I3.
    stale = NOT_HELD[where](store)
    before = rows()
    with pytest.raises(LeaseLost) as caught:
        SETTLES[verb](store, stale)
    assert caught.value.job_id == stale.id
    assert f"to {verb} it" in str(caught.value)
    assert rows() == before


@pytest.mark.parametrize("verb", SETTLES)
def test_an_id_that_was_never_there_settles_nothing(store: BaseStore, verb: str) -> None:
    taken = running(store)
    LiveJob.objects.filter(pk=taken.id).update(id=uuid.uuid4())
    before = rows()
    with pytest.raises(LeaseLost):
        SETTLES[verb](store, taken)
    assert rows() == before


@pytest.mark.parametrize("verb", SETTLES)
def test_a_lapsed_claim_that_nobody_took_still_settles(store: BaseStore, verb: str) -> None:
    taken = running(store, lease_seconds=1)
    SETTLES[verb](store, taken)
    assert place(taken.id) != "running"


@pytest.mark.parametrize("verb", SETTLES)
def test_a_settle_after_a_cancel_was_asked_ends_cancelled(store: BaseStore, verb: str) -> None:
    # O6.
    taken = running(store, result_ttl=60.0)
    store.cancel(taken.id, now=at(1))
    assert SETTLES[verb](store, taken) == "cancelled"
    assert (rows()["live"], rows()["dead"]) == ({}, {})
    stored = rows()["finished"][taken.id]
    assert (stored["outcome"], stored["value"], stored["token"]) == ("cancelled", None, None)
    assert (stored["finished_at"], stored["expires_at"]) == (at(5), at(65))
    assert len(stored["errors"]) == (verb != "release")
    with pytest.raises(LeaseLost):
        SETTLES[verb](store, taken)


# retry


def test_retry_schedules_the_job_and_keeps_the_error(store: BaseStore) -> None:
    taken = running(store)
    before = row(taken.id)
    assert store.retry(taken, 2.5, error(taken, message="ouch"), now=at(5)) == "scheduled"
    assert changes(before, row(taken.id)) == {
        **UNHELD,
        "state": "scheduled",
        "run_after": at(7.5),
        "worker_ids": ["w1"],
        "errors": [
            {
                "attempt": 1,
                "worker": "w1",
                "started": T0.isoformat(),
                "ended": at(1).isoformat(),
                "outcome": "failed",
                "exception_class": "builtins.ValueError",
                "message": "ouch",
                "traceback": "Traceback ...\nValueError: ouch",
                "cut": False,
            }
        ],
    }


def test_retry_without_delay_is_due_at_once(store: BaseStore) -> None:
    taken = running(store)
    store.retry(taken, 0, error(taken), now=at(5))
    assert store.promote(now=at(5)) == 1
    assert [each.attempt for each in claim(store, now=at(5))] == [2]


def test_retry_with_a_negative_delay_is_due_now_and_not_before(store: BaseStore) -> None:
    taken = running(store)
    store.retry(taken, -100, error(taken), now=at(5))
    assert row(taken.id)["run_after"] == at(5)


def test_retry_of_the_last_attempt_is_a_death(store: BaseStore) -> None:
    taken = running(store, max_attempts=1)
    assert retry(store, taken) == "dead"
    stored = rows()["dead"][taken.id]
    assert (stored["reason"], stored["attempt"]) == ("exhausted", 1)
    assert [each["message"] for each in stored["errors"]] == ["boom"]


# bury


def test_bury_moves_the_job_whole(store: BaseStore) -> None:
    taken = running(store, unique_key="k", headers='{"a":1}', result_ttl=0.5, timeout=9.0)
    before = row(taken.id)
    assert store.bury(taken, DeathReason.TIMEOUT, error(taken), now=at(5)) == "dead"
    assert rows()["live"] == {}
    stored = rows()["dead"][taken.id]
    facts = {name: value for name, value in before.items() if name in FACTS}
    assert changes(facts, stored) == {
        "errors": [error(taken).as_json()],
        "started_at": T0,
        "worker_ids": ["w1"],
        "died_at": at(5),
        "reason": "timeout",
    }


def test_bury_of_a_job_without_a_dead_letter_drops_it(store: BaseStore) -> None:
    # N2.
    taken = running(store, dead_letter=False)
    assert bury(store, taken) == "dropped"
    assert rows() == {"live": {}, "dead": {}, "finished": {}}


# release


def test_release_gives_the_attempt_back_and_keeps_the_place(store: BaseStore) -> None:
    first, other = running(store, run_after=None), running(store)
    before = row(first.id)
    assert release(store, first) == "ready"
    assert changes(before, row(first.id)) == {**UNHELD, "state": "ready", "attempt": 0}
    release(store, other)
    assert [each.id for each in claim(store, now=at(6), limit=2)] == [first.id, other.id]


def test_release_with_a_delay_is_scheduled(store: BaseStore) -> None:
    taken = running(store)
    before = row(taken.id)
    assert store.release(taken, delay_seconds=1, now=at(5)) == "scheduled"
    assert changes(before, row(taken.id)) == {
        **UNHELD,
        "state": "scheduled",
        "attempt": 0,
        "run_after": at(6),
    }


def test_a_released_job_keeps_its_whole_budget_and_its_fence_rises(store: BaseStore) -> None:
    taken = running(store, max_attempts=1)
    for fence in range(2, 6):
        release(store, taken)
        (taken,) = claim(store, now=at(6))
        assert (taken.attempt, taken.fence, taken.worker_ids) == (1, fence, "[]")


def test_a_doubled_release_does_not_touch_a_later_holder_at_the_same_attempt(
    store: BaseStore,
) -> None:
    # O4.
    first = running(store)
    release(store, first)
    (second,) = claim(store, now=at(6))
    assert second.attempt == first.attempt
    before = rows()
    with pytest.raises(LeaseLost):
        release(store, first)
    assert rows() == before


# hold


def test_hold_refunds_the_attempt_and_waits(store: BaseStore) -> None:
    taken = running(store)
    before = row(taken.id)
    assert hold(store, taken) == "held"
    assert changes(before, row(taken.id)) == {
        **UNHELD,
        "state": "held",
        "held_reason": "unknown",
        "run_after": at(15),
        "unknown_since": at(5),
        "attempt": 0,
        "errors": [error(taken, outcome="unknown_task").as_json()],
    }


def test_unknown_since_keeps_the_first_time_and_one_error(store: BaseStore) -> None:
    taken = running(store)
    for seconds in (5, 30):
        store.hold(taken, HeldReason.UNKNOWN, 10, error(taken, outcome="x"), now=at(seconds))
        store.unhold(HeldReason.UNKNOWN, [taken.task], now=at(seconds + 10))
        (taken,) = claim(store, now=at(seconds + 10))
    stored = row(taken.id)
    assert (stored["unknown_since"], len(stored["errors"]), stored["attempt"]) == (at(5), 1, 1)
    assert taken.unknown_since == at(5)
    retry(store, taken)
    assert row(taken.id)["unknown_since"] is None


# errors


def test_errors_are_bounded_to_the_first_and_the_newest(store: BaseStore) -> None:
    taken = running(store, max_attempts=99)
    for number in range(1, 31):
        store.retry(taken, 0, error(taken, message=f"m{number}"), now=at(number))
        store.promote(now=at(number))
        (taken,) = claim(store, now=at(number))
    messages = [each["message"] for each in row(taken.id)["errors"]]
    assert messages == ["m1", *[f"m{number}" for number in range(7, 31)]]


# release_strays


def test_rows_of_a_worker_that_knows_nothing_of_them_are_given_back(store: BaseStore) -> None:
    # A claim whose answer was lost.
    known, stray, other = running(store), running(store), running(store, worker_id="W1")
    before = rows()["live"]
    assert store.release_strays("w1", {known.hold}) == 1
    assert changes(before[stray.id], row(stray.id)) == {**UNHELD, "state": "ready", "attempt": 0}
    assert (row(known.id), row(other.id)) == (before[known.id], before[other.id])
    assert store.release_strays("w1", {known.hold}) == 0


def test_a_thousand_strays_are_given_back_in_a_few_statements(store: BaseStore) -> None:
    store.insert([new_job() for _ in range(1000)], now=T0)
    strays = [each for _ in range(2) for each in claim(store, limit=500)]
    known = strays[700]
    LiveJob.objects.filter(pk=strays[1].id).update(attempt=0)
    store.cancel(strays[2].id, now=at(1))
    sound.forget()
    with CaptureQueriesContext(connection) as captured:
        assert store.release_strays("w1", {known.hold}) == 999
    assert len(captured) <= 40
    left = LiveJob.objects.values_list("state", "attempt", "token").distinct()
    assert set(left) == {("ready", 0, None), ("running", 1, known.token)}
    assert place(strays[2].id) == "finished"


def test_a_stray_is_told_by_its_token_not_by_its_id(store: BaseStore) -> None:
    taken = running(store)
    assert store.release_strays("w1", {(taken.id, new_token())}) == 1


def test_microseconds_of_a_delay_are_kept(store: BaseStore) -> None:
    taken = running(store)
    store.retry(taken, 0.000_001, error(taken), now=at(5))
    assert row(taken.id)["run_after"] == at(5) + timedelta(microseconds=1)


def test_a_hold_for_another_reason_starts_no_count_of_the_unknown(store: BaseStore) -> None:
    taken = running(store)
    store.hold(taken, HeldReason.LIMIT, 10, error(taken, outcome="limit"), now=at(5))
    assert (row(taken.id)["held_reason"], row(taken.id)["unknown_since"]) == ("limit", None)


def test_the_start_of_the_last_attempt_survives_death(store: BaseStore) -> None:
    taken = running(store)
    store.mark_started([taken], now=T0)
    bury(store, taken)
    assert rows()["dead"][taken.id]["started_at"] == T0


def test_a_stray_whose_cancel_was_asked_ends_cancelled(store: BaseStore) -> None:
    taken = running(store)
    store.cancel(taken.id, now=at(1))
    assert store.release_strays("w1", set()) == 1
    assert place(taken.id) == "finished"
    assert rows()["finished"][taken.id]["outcome"] == "cancelled"


@pytest.mark.parametrize("lane", Lane)
def test_a_payload_of_null_moves_like_any_other(store: BaseStore, lane: Lane) -> None:
    options: dict[str, Any] = {
        "lane": lane,
        "payload": "null",
        "lease_seconds": 1,
        "max_attempts": 1,
    }
    lost = running(store, **options)
    store.mark_started([lost], now=T0)
    store.reclaim(now=at(1))
    assert rows()["dead"][lost.id]["payload"] is None
    assert store.requeue(lost.id, now=at(2))
    store.cancel(lost.id, now=at(3))
    assert rows()["finished"][lost.id]["payload"] is None
