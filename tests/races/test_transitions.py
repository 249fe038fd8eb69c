"""Two transitions of one job at once: one of them happens, and the other says so."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import transaction

from django_workqueue.exceptions import UniqueKeyTaken
from django_workqueue.models import LiveJob
from django_workqueue.states import Lane
from django_workqueue.store import Ack, BaseStore, CancelAnswer
from tests.factories import claim, dead, insert, new_job, running
from tests.races.conftest import Together
from tests.sound import assert_all_sound, place, rows

ROUNDS = 10


def test_reclaim_against_extend_against_ack(store: BaseStore, together: Together) -> None:
    for _ in range(ROUNDS):
        taken = running(store, now=None, lease_seconds=-1)
        swept, extended, settled = together(
            [
                lambda each: bool(each.reclaim()),
                lambda each, taken=taken: bool(each.extend([taken], 60)),
                lambda each, taken=taken: bool(each.ack([Ack(claim=taken, value="1")])),
            ]
        )
        assert settled is not swept, (swept, extended, settled)
        assert place(taken.id) == ("finished" if settled else "ready")
        assert_all_sound()
        store.cancel(taken.id)


def test_control_an_ack_without_the_token_takes_the_next_holders_job(store: BaseStore) -> None:
    taken = running(store, now=None, lease_seconds=-1)
    store.reclaim()
    claim(store, now=None, worker_id="w2")
    assert store.ack([Ack(claim=taken, value="1")]) == set()
    assert LiveJob.objects.filter(pk=taken.id).delete()[0] == 1


def test_cancel_against_ack(store: BaseStore, together: Together) -> None:
    for _ in range(ROUNDS):
        taken = running(store, now=None)
        answer, settled = together(
            [
                lambda each, taken=taken: each.cancel(taken.id),
                lambda each, taken=taken: each.ack([Ack(claim=taken, value="1")]),
            ]
        )
        assert settled == {taken.hold}
        assert answer in {CancelAnswer.ASKED, CancelAnswer.NOTHING}
        assert rows()["finished"][taken.id]["outcome"] == "succeeded"


def test_cancel_against_claim(store: BaseStore, together: Together) -> None:
    for _ in range(ROUNDS):
        job_id = insert(store, now=None)
        answer, taken = together(
            [
                lambda each, job_id=job_id: each.cancel(job_id),
                lambda each: claim(each, now=None),
            ]
        )
        if taken:
            assert answer == CancelAnswer.ASKED
            assert store.extend(taken, 60) == {taken[0].hold: True}
            store.release(taken[0])
        assert rows()["finished"][job_id]["outcome"] == "cancelled"


def test_of_eight_requeues_one_makes_the_job_ready(store: BaseStore, together: Together) -> None:
    for _ in range(ROUNDS):
        taken = dead(store, now=None)
        answers = together([lambda each, taken=taken: each.requeue(taken.id) for _ in range(8)])
        assert sorted(answers) == [False] * 7 + [True]
        assert place(taken.id) == "ready"
        store.cancel(taken.id)


def test_requeue_against_an_insert_of_its_key(store: BaseStore, together: Together) -> None:
    def requeue(each: BaseStore, job_id: Any) -> bool:
        try:
            return each.requeue(job_id)
        except UniqueKeyTaken:
            return False

    for number in range(ROUNDS):
        key = f"k{number}"
        taken = dead(store, now=None, unique_key=key, queue_name=key)
        twin = new_job(unique_key=key, queue_name=key)
        requeued, inserted = together(
            [
                lambda each, job_id=taken.id: requeue(each, job_id),
                lambda each, twin=twin: bool(each.insert([twin])),
            ]
        )
        assert requeued is not inserted
        assert place(taken.id) == ("ready" if requeued else "dead")
        assert place(twin.id) == ("ready" if inserted else None)


def test_of_twenty_inserts_of_a_key_one_is_written(store: BaseStore, together: Together) -> None:
    written = together([lambda each: each.insert([new_job(unique_key="k")])] * 20)
    assert sorted(map(len, written)) == [0] * 19 + [1]
    assert len(rows()["live"]) == 1


@pytest.mark.vendor("postgresql", "mysql")
def test_an_insert_waits_for_the_holder_of_its_key_and_takes_its_place_at_a_rollback(
    store: BaseStore, together: Together
) -> None:
    # Case 146. On SQLite a second writer waits for the first whatever it writes.
    inserted = threading.Event()

    def rolled_back(each: BaseStore) -> int:
        with transaction.atomic():
            each.insert([new_job(unique_key="k")])
            inserted.set()
            transaction.set_rollback(True)
        return 0

    def waiting(each: BaseStore) -> int:
        inserted.wait(10)
        return len(each.insert([new_job(unique_key="k")]))

    assert sum(together([rolled_back, waiting, waiting, waiting])) == 1
    assert len(rows()["live"]) == 1


def test_keys_in_any_order_deadlock_nobody(store: BaseStore, together: Together) -> None:
    # O11.
    keys = [f"k{number}" for number in range(20)]

    def bulk(each: BaseStore, order: list[str]) -> int:
        with transaction.atomic():
            return len(each.insert([new_job(unique_key=key) for key in order]))

    for _ in range(5):
        calls = [
            lambda each, order=order: bulk(each, order)
            for order in (keys, keys[::-1], keys, keys[::-1])
        ]
        assert sum(together(calls)) == len(keys)
        for job_id in rows()["live"]:
            store.cancel(job_id)


@pytest.mark.vendor("postgresql", "mysql")
def test_an_extender_and_a_settler_of_the_same_jobs_deadlock_nobody(
    store: BaseStore, together: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A deadlock would be tried again by itself, and cost a pause: here it is an error.
    monkeypatch.setattr(type(store), "is_conflict", lambda store, error: False)
    for _ in range(ROUNDS):
        store.insert([new_job() for _ in range(60)])
        taken = claim(store, now=None, limit=60)
        acks = [Ack(claim=each, value="1") for each in taken]
        _, settled, _ = together(
            [
                lambda each, taken=taken: each.extend(taken, 60),
                lambda each, acks=acks: each.ack(acks[::-1]),
                lambda each, taken=taken: each.mark_started(taken[::-1]),
            ]
        )
        assert len(settled) == 60


@pytest.mark.vendor("postgresql", "mysql")
def test_a_row_that_a_silent_child_has_locked_keeps_no_other_from_being_extended(
    store: BaseStore, together: Together
) -> None:
    """A child that stands still between the statements of a settle, say."""
    locked, other = (running(store, now=None, worker_id="silent") for _ in range(2))
    held, extended = threading.Event(), threading.Event()

    def stands_still(each: BaseStore) -> bool:
        with transaction.atomic():
            LiveJob.objects.select_for_update().get(pk=locked.id)
            held.set()
            return extended.wait(10)

    def extend(each: BaseStore) -> set[Any]:
        assert held.wait(10)
        answers = each.extend_all("silent", 600)
        extended.set()
        return set(answers)

    in_time, answers = together([stands_still, extend])
    assert in_time
    assert answers == {locked.hold, other.hold}
    ends = {key: job["lease_expires_at"] for key, job in rows()["live"].items()}
    assert (ends[other.id] - ends[locked.id]).total_seconds() > 300


@pytest.mark.vendor("postgresql", "mysql")
def test_rows_that_a_vanished_host_has_locked_keep_no_other_from_being_swept(
    store: BaseStore, together: Together
) -> None:
    lapsed = [running(store, now=None, lease_seconds=-1) for _ in range(2)]
    expired = [insert(store, now=None, expires_seconds=-1) for _ in range(2)]
    held, done = threading.Event(), threading.Event()

    def vanishes(each: BaseStore) -> bool:
        with transaction.atomic():
            rows = LiveJob.objects.filter(pk__in=[lapsed[0].id, expired[0]])
            assert len(rows.select_for_update()) == 2
            held.set()
            return done.wait(10)

    def sweeps(each: BaseStore) -> list[Any]:
        assert held.wait(10)
        swept = [one.id for one in (*each.reclaim(), *each.expire())]
        done.set()
        return swept

    in_time, swept = together([vanishes, sweeps])
    assert in_time
    assert swept == [lapsed[1].id, expired[1]]
    assert [one.id for one in (*store.reclaim(), *store.expire())] == [lapsed[0].id, expired[0]]


@pytest.mark.vendor("mysql")
def test_a_row_that_a_vanished_host_was_promoting_keeps_no_other_from_being_due(
    store: BaseStore, together: Together
) -> None:
    past = store.now()
    locked, other = (insert(store, now=None, run_after=past) for _ in range(2))
    held, done = threading.Event(), threading.Event()

    def vanishes(each: BaseStore) -> bool:
        with transaction.atomic():
            LiveJob.objects.select_for_update().get(pk=locked)
            held.set()
            return done.wait(10)

    def promotes(each: BaseStore) -> int:
        assert held.wait(10)
        count = each.promote()
        done.set()
        return count

    assert together([vanishes, promotes]) == [True, 1]
    assert rows()["live"][other]["state"] == "ready"
    assert store.promote() == 1


def test_who_looks_while_another_makes_ready_what_is_due_sees_it_or_looks_again(
    store: BaseStore, together: Together
) -> None:
    past = store.now()
    store.insert([new_job(run_after=past) for _ in range(40)])
    for names, seconds in together([lambda each: each.look(Lane.TASK) for _ in range(4)]):
        assert names == ["default"] or seconds == 0.0
    assert store.live().filter(state="ready").count() == 40


def test_promoters_and_sweepers_at_once_move_each_row_once(
    store: BaseStore, together: Together
) -> None:
    past = store.now()
    store.insert([new_job(run_after=past) for _ in range(40)])
    assert sum(together([lambda each: each.promote() for _ in range(4)])) == 40
    claim(store, now=None, limit=40, lease_seconds=-1)
    swept = together([lambda each: each.reclaim() for _ in range(4)])
    ids = [each.id for one in swept for each in one]
    assert len(ids) == len(set(ids)) == 40
    assert {job["deaths"] for job in rows()["live"].values()} == {1}
