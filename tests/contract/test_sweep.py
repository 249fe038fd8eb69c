"""reclaim, expire, bury_spent, bury_unknown, purge: what happens to rows nobody holds."""

from __future__ import annotations

import itertools
import uuid
from datetime import timedelta
from typing import Any

import pytest

from django_workqueue.models import LiveJob, Lock, Worker
from django_workqueue.models.fields import EncodedJSON
from django_workqueue.states import DeathReason, HeldReason
from django_workqueue.store import Ack, BaseStore
from tests import sound
from tests.factories import (
    T0,
    TASK,
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
from tests.sound import FACTS, changes, place, row, rows

EARLIER = timedelta(microseconds=1)


UNREADABLE = pytest.mark.parametrize(
    ("column", "text"),
    [
        *itertools.product(
            ("payload", "headers", "errors", "worker_ids"),
            # Python reads NaN and the number, and could not write them again.
            ("[1", "[NaN]", "[1e400]", "[" * 100_000 + "]" * 100_000),
        ),
        ("errors", "5"),
        ("errors", "[1]"),
    ],
    ids=lambda value: value[:8],
)
"""What an edit by hand may leave."""


def spoil(job_id: uuid.UUID, column: str, text: str) -> None:
    LiveJob.objects.filter(pk=job_id).update(**{column: EncodedJSON(text)})


@UNREADABLE
def test_a_row_that_nobody_can_read_keeps_no_other_from_being_swept(
    store: BaseStore, column: str, text: str
) -> None:
    lapsed = [running(store, lease_seconds=5) for _ in range(2)]
    lost = [running(store, worker_id="gone") for _ in range(2)]
    strays = [running(store, worker_id="stray") for _ in range(2)]
    expired = [insert(store, expires_seconds=6) for _ in range(2)]
    for job_id in (lapsed[0].id, lost[0].id, strays[0].id, expired[0]):
        spoil(job_id, column, text)

    assert {each.id for each in store.lose("gone", "killed")} == {each.id for each in lost}
    assert store.release_strays("stray", ()) == 2
    assert {each.id for each in store.reclaim(now=at(5))} == {each.id for each in lapsed}
    assert {each.id for each in store.expire(now=at(6))} == set(expired)


@UNREADABLE
def test_a_row_that_nobody_can_read_is_settled(store: BaseStore, column: str, text: str) -> None:
    job_id = insert(store, max_attempts=2)
    spoil(job_id, column, text)
    (taken,) = claim(store)
    assert store.hold(taken, HeldReason.UNKNOWN, 0, error(taken), now=T0) == "held"
    assert store.unhold(HeldReason.UNKNOWN, [taken.task], now=at(1)) == 1
    (taken,) = claim(store, now=at(1))
    assert store.retry(taken, 0, error(taken), now=at(1)) == "scheduled"
    store.promote(now=at(1))
    (taken,) = claim(store, now=at(1))
    assert store.retry(taken, 0, error(taken), now=at(2)) == "dead"


# reclaim


def test_a_lapsed_job_is_ready_again_with_its_attempt_charged(store: BaseStore) -> None:
    # L4, O12: the end of the lease itself is lapsed, the moment before it is not.
    taken = running(store, lease_seconds=5)
    before = row(taken.id)
    assert store.reclaim(now=at(5) - EARLIER) == []
    assert row(taken.id) == before
    (swept,) = store.reclaim(now=at(5))
    assert (swept.id, swept.outcome, swept.reason) == (taken.id, "ready", None)
    assert (swept.worker_id, swept.attempt, swept.task) == ("w1", 1, TASK)
    changed = changes(before, row(taken.id))
    (lost,) = changed.pop("errors")
    assert changed == {
        "state": "ready",
        "token": None,
        "worker_id": None,
        "lease_expires_at": None,
        "suspect": True,
        "deaths": 1,
        "worker_ids": ["w1"],
    }
    assert (lost["attempt"], lost["worker"], lost["outcome"]) == (1, "w1", "lost")
    assert (lost["started"], lost["ended"]) == (at(0).isoformat(), at(5).isoformat())


def test_a_lapsed_job_without_budget_is_dead(store: BaseStore) -> None:
    # L5.
    taken = running(store, max_attempts=2, lease_seconds=5)
    store.reclaim(now=at(5))
    claim(store, now=at(5), worker_id="w2", lease_seconds=5)
    before = row(taken.id)
    (swept,) = store.reclaim(now=at(10))
    assert (swept.outcome, swept.reason) == ("dead", DeathReason.LOST)
    assert claim(store, now=at(11)) == []
    stored = rows()["dead"][taken.id]
    facts = {name: value for name, value in before.items() if name in FACTS}
    changed = changes(facts, stored)
    assert [each["worker"] for each in changed.pop("errors")] == ["w1", "w2"]
    assert changed == {"worker_ids": ["w1", "w2"], "died_at": at(10), "reason": "lost"}


def test_the_reason_of_a_death_is_the_last_end_and_earlier_errors_stay(store: BaseStore) -> None:
    # L7.
    taken = running(store, max_attempts=2, lease_seconds=5)
    store.retry(taken, 0, error(taken, message="a note"), now=at(1))
    store.promote(now=at(1))
    claim(store, now=at(1), lease_seconds=5)
    store.reclaim(now=at(6))
    stored = rows()["dead"][taken.id]
    assert stored["reason"] == "lost"
    assert [(each["attempt"], each["outcome"]) for each in stored["errors"]] == [
        (1, "failed"),
        (2, "lost"),
    ]
    assert stored["errors"][0]["message"] == "a note"


def test_a_job_of_one_attempt_that_never_started_is_refunded(store: BaseStore) -> None:
    taken = running(store, max_attempts=1, lease_seconds=5)
    before = row(taken.id)
    (swept,) = store.reclaim(now=at(5))
    assert swept.outcome == "ready"
    assert changes(before, row(taken.id)) == {
        "state": "ready",
        "token": None,
        "worker_id": None,
        "lease_expires_at": None,
        "attempt": 0,
    }


def test_a_job_of_one_attempt_that_started_is_run_at_most_once(store: BaseStore) -> None:
    taken = running(store, max_attempts=1, lease_seconds=5)
    store.mark_started([taken], now=at(1))
    assert [each.outcome for each in store.reclaim(now=at(5))] == ["dead"]
    stored = rows()["dead"][taken.id]
    assert (stored["reason"], stored["started_at"], stored["attempt"]) == ("lost", at(1), 1)


def test_a_lost_job_without_a_dead_letter_is_dropped(store: BaseStore) -> None:
    taken = running(store, max_attempts=1, lease_seconds=5, dead_letter=False)
    store.mark_started([taken], now=at(1))
    assert [each.outcome for each in store.reclaim(now=at(5))] == ["dropped"]
    assert rows() == {"live": {}, "dead": {}, "finished": {}}


def test_a_reclaim_keeps_the_place_in_the_queue(store: BaseStore) -> None:
    first, second = running(store, lease_seconds=5), insert(store)
    store.reclaim(now=at(5))
    assert [each.id for each in claim(store, now=at(5), limit=2)] == [first.id, second]


def test_reclaim_takes_the_longest_lapsed_first_and_no_more_than_asked(store: BaseStore) -> None:
    late, early, last = (running(store, lease_seconds=seconds) for seconds in (7, 5, 9))
    swept = store.reclaim(limit=2, now=at(100))
    assert [each.id for each in swept] == [early.id, late.id]
    assert place(last.id) == "running"


def test_the_late_holder_of_a_reclaimed_job_changes_nothing(store: BaseStore) -> None:
    taken = running(store, lease_seconds=5)
    store.reclaim(now=at(5))
    before = rows()
    assert store.ack([Ack(claim=taken, value="1")], now=at(6)) == set()
    assert rows() == before


def test_reclaim_leaves_everything_else_alone(store: BaseStore) -> None:
    running(store, lease_seconds=10_000)
    for make in (released, retried, held, dead, finished, cancelled):
        make(store, queue_name=make.__name__)
    before = rows()
    assert store.reclaim(now=at(1000)) == []
    assert rows() == before


# expire


@pytest.mark.parametrize("make", [released, retried, held])
def test_a_waiting_job_past_its_expiry_is_dead(store: BaseStore, make: Any) -> None:
    taken = make(store, expires_seconds=5)
    facts = {name: value for name, value in row(taken.id).items() if name in FACTS}
    before = rows()
    assert store.expire(now=at(5) - EARLIER) == []
    assert rows() == before
    (swept,) = store.expire(now=at(5))
    assert (swept.id, swept.outcome, swept.reason) == (taken.id, "dead", DeathReason.EXPIRED)
    assert rows()["live"] == {}
    assert changes(facts, rows()["dead"][taken.id]) == {"died_at": at(5), "reason": "expired"}


def test_a_job_that_runs_is_not_expired_while_its_lease_lives(store: BaseStore) -> None:
    taken = running(store, expires_seconds=1, lease_seconds=30)
    before = rows()
    assert store.expire(now=at(30) - EARLIER) == []
    assert rows() == before
    assert store.ack([Ack(claim=taken, value="1")], now=at(31)) == {taken.hold}


def test_a_lapsed_job_past_its_expiry_is_dead_whoever_sweeps_first(store: BaseStore) -> None:
    # L15: no zombie. reclaim may run first; the job expires all the same.
    for order in (("expire",), ("reclaim", "expire")):
        taken = running(store, expires_seconds=5, lease_seconds=5)
        for verb in order:
            getattr(store, verb)(now=at(5))
        stored = rows()["dead"][taken.id]
        assert (stored["reason"], stored["worker_ids"]) == ("expired", ["w1"])
        assert [each["outcome"] for each in stored["errors"]] == ["lost"]


def test_an_expired_job_without_a_dead_letter_is_dropped(store: BaseStore) -> None:
    insert(store, expires_seconds=5, dead_letter=False)
    assert [each.outcome for each in store.expire(now=at(5))] == ["dropped"]
    assert rows() == {"live": {}, "dead": {}, "finished": {}}


def test_expire_takes_no_more_than_asked_and_the_earliest_first(store: BaseStore) -> None:
    late, early = insert(store, expires_seconds=9), insert(store, expires_seconds=5)
    assert [each.id for each in store.expire(limit=1, now=at(99))] == [early]
    assert place(late) == "ready"


def test_jobs_without_an_expiry_never_expire(store: BaseStore) -> None:
    running(store, lease_seconds=1)
    insert(store)
    assert store.expire(now=at(10**9)) == []


# bury_spent, bury_unknown


def test_a_spent_row_in_a_paused_queue_waits_for_the_queue(store: BaseStore) -> None:
    job_id = insert(store)
    LiveJob.objects.filter(pk=job_id).update(attempt=3)
    sound.forget()
    store.pause("default", at(9))
    assert store.bury_spent(now=at(1)) == []
    assert [each.id for each in store.bury_spent(now=at(9))] == [job_id]


def test_an_unknown_task_is_dead_after_its_grace(store: BaseStore) -> None:
    # N14.
    taken = held(store)
    assert store.bury_unknown(60, now=at(60) - EARLIER) == []
    (swept,) = store.bury_unknown(60, now=at(60))
    assert (swept.outcome, swept.reason) == ("dead", DeathReason.UNKNOWN_TASK)
    stored = rows()["dead"][taken.id]
    assert (stored["reason"], stored["attempt"], stored["died_at"]) == ("unknown_task", 0, at(60))


def test_arguments_that_no_longer_bind_die_under_their_own_reason(store: BaseStore) -> None:
    taken = running(store)
    record = error(taken, outcome=DeathReason.BAD_ARGUMENTS)
    store.hold(taken, HeldReason.UNKNOWN, 10, record, now=at(0))
    (swept,) = store.bury_unknown(60, now=at(60))
    assert swept.reason == DeathReason.BAD_ARGUMENTS


def test_bury_unknown_leaves_other_held_jobs_and_states_alone(store: BaseStore) -> None:
    taken = running(store)
    store.hold(taken, HeldReason.LIMIT, 10, error(taken, outcome="limit"), now=at(0))
    released(store)
    before = rows()
    assert store.bury_unknown(0, now=at(1000)) == []
    assert rows() == before


# dry runs


def test_a_dry_run_reports_and_changes_nothing(store: BaseStore) -> None:
    taken = running(store, lease_seconds=5)
    unknown = held(store)
    expired = insert(store, expires_seconds=5, queue_name="expired")
    before = rows()
    assert [each.id for each in store.reclaim(now=at(60), dry_run=True)] == [taken.id]
    assert [each.id for each in store.expire(now=at(60), dry_run=True)] == [expired]
    assert [each.id for each in store.bury_unknown(60, now=at(60), dry_run=True)] == [unknown.id]
    dead(store)
    assert store.purge(0, now=at(60), dry_run=True)["dead"] == 1
    assert {**rows(), "dead": {}} == before


def test_a_dry_run_says_how_each_job_would_end(store: BaseStore) -> None:
    ready = running(store, lease_seconds=5)
    lost = running(store, lease_seconds=6, max_attempts=1)
    store.mark_started([lost], now=at(1))
    dropped = running(store, lease_seconds=7, max_attempts=1, dead_letter=False)
    store.mark_started([dropped], now=at(1))
    asked = running(store, lease_seconds=8)
    store.cancel(asked.id, now=at(1))
    expired = insert(store, expires_seconds=5)
    planned = store.reclaim(now=at(60), dry_run=True), store.expire(now=at(60), dry_run=True)
    assert [(each.id, each.outcome, each.reason) for sweep in planned for each in sweep] == [
        (ready.id, "ready", None),
        (lost.id, "dead", DeathReason.LOST),
        (dropped.id, "dropped", DeathReason.LOST),
        (asked.id, "cancelled", None),
        (expired, "dead", DeathReason.EXPIRED),
    ]
    assert (store.reclaim(now=at(60)), store.expire(now=at(60))) == planned


# purge


def test_purge_deletes_what_is_past_its_retention(store: BaseStore) -> None:
    short = finished(store, result_ttl=5.0)
    kept = finished(store, result_ttl=None)
    old, young = dead(store, now=at(0)), dead(store, now=at(1))
    assert store.purge(60, now=at(5) - EARLIER) == {"results": 0, "locks": 0, "dead": 0}
    assert store.purge(60, now=at(5)) == {"results": 1, "locks": 0, "dead": 0}
    assert place(short.id) is None
    assert store.purge(60, now=at(60)) == {"results": 0, "locks": 0, "dead": 1}
    assert (place(old.id), place(young.id), place(kept.id)) == (None, "dead", "finished")


def test_purge_without_a_retention_keeps_the_dead(store: BaseStore) -> None:
    dead(store)
    assert store.purge(None, now=at(10**9)) == {"results": 0, "locks": 0}
    assert len(rows()["dead"]) == 1


def test_purge_deletes_no_more_than_asked(store: BaseStore) -> None:
    for _ in range(5):
        dead(store)
    assert store.purge(0, limit=2, now=at(1))["dead"] == 2
    assert len(rows()["dead"]) == 3


def test_purge_deletes_locks_nobody_renewed(store: BaseStore) -> None:
    for name, seconds in (("Key", 5), ("key", 6)):
        Lock.objects.create(name=name, owner="o", token=1, expires_at=at(seconds))
    assert store.purge(None, now=at(5))["locks"] == 1
    assert [lock.name for lock in Lock.objects.all()] == ["key"]


def test_workers_not_seen_for_long_are_forgotten(store: BaseStore) -> None:
    for name, seconds in (("a", 0), ("b", 1)):
        Worker.objects.create(id=name, host="h", pid=1, started_at=at(0), last_seen_at=at(seconds))
    assert store.forget_workers(60, now=at(60)) == 1
    assert [worker.id for worker in Worker.objects.all()] == ["b"]


def test_a_worker_that_was_forgotten_has_its_jobs_taken_back_all_the_same(
    store: BaseStore,
) -> None:
    Worker.objects.create(id="w1", host="h", pid=1, started_at=at(0), last_seen_at=at(0))
    taken = running(store, worker_id="w1", lease_seconds=5)
    assert store.forget_workers(1, now=at(4)) == 1
    assert [each.id for each in store.reclaim(now=at(5))] == [taken.id]
    assert row(taken.id)["errors"][-1]["worker"] == "w1"
