"""promote, unhold, ready_queues, seconds_to_due, look: what makes jobs ready, and who may look."""

from __future__ import annotations

from datetime import timedelta

import pytest

from django_workqueue.states import HeldReason, Lane
from django_workqueue.store import BaseStore
from django_workqueue.store.looking import BATCH
from tests.factories import T0, TASK, at, claim, dead, finished, held, insert, new_job, running
from tests.sound import changes, row, rows

EARLIER = timedelta(microseconds=1)


def test_promote_makes_ready_what_is_due_now_or_before(store: BaseStore) -> None:
    due = insert(store, run_after=at(5))
    late = insert(store, run_after=at(1))
    early = insert(store, run_after=at(5) + EARLIER)
    before = rows()["live"]
    assert store.promote(now=at(5)) == 2
    for job_id in (due, late):
        assert changes(before[job_id], row(job_id)) == {"state": "ready"}
    assert row(early) == before[early]


def test_a_job_is_claimed_at_the_moment_it_is_due_and_not_before(store: BaseStore) -> None:
    # L3.
    job_id = insert(store, run_after=at(5))
    for now, taken in ((at(4.999), []), (at(5), [job_id])):
        store.promote(now=now)
        assert [each.id for each in claim(store, now=now)] == taken


def test_promote_takes_the_earliest_first(store: BaseStore) -> None:
    second, first, third = (insert(store, run_after=at(due)) for due in (2, 1, 3))
    assert store.promote(limit=2, now=at(9)) == 2
    states = [row(job_id)["state"] for job_id in (first, second, third)]
    assert states == ["ready", "ready", "scheduled"]


def test_promote_leaves_every_other_state_alone(store: BaseStore) -> None:
    insert(store)
    held(store, queue_name="held")
    running(store, queue_name="running")
    dead(store, queue_name="dead")
    finished(store, queue_name="finished")
    before = rows()
    assert store.promote(now=at(1000)) == 0
    assert rows() == before


def test_unhold_makes_ready_what_was_held_until_now(store: BaseStore) -> None:
    taken = held(store)
    before = row(taken.id)
    assert store.unhold(HeldReason.UNKNOWN, [TASK], now=at(10) - EARLIER) == 0
    assert row(taken.id) == before
    assert store.unhold(HeldReason.UNKNOWN, [TASK], now=at(10)) == 1
    assert changes(before, row(taken.id)) == {"state": "ready", "held_reason": ""}


@pytest.mark.parametrize(
    ("reason", "tasks"),
    [
        (HeldReason.LIMIT, [TASK]),
        (HeldReason.UNKNOWN, ["shop.tasks.other"]),
        (HeldReason.UNKNOWN, [TASK.upper()]),
        (HeldReason.UNKNOWN, []),
    ],
)
def test_unhold_leaves_other_reasons_and_tasks_held(
    store: BaseStore, reason: HeldReason, tasks: list[str]
) -> None:
    held(store)
    before = rows()
    assert store.unhold(reason, tasks, now=at(1000)) == 0
    assert rows() == before


def test_ready_queues_names_each_queue_with_a_ready_job_once(store: BaseStore) -> None:
    for name in ("b", "a", "a", "B", "b "):
        insert(store, queue_name=name)
    insert(store, queue_name="later", delay_seconds=5)
    insert(store, queue_name="agents", lane=Lane.PAYLOAD)
    running(store, queue_name="running")
    held(store, queue_name="held")
    assert store.ready_queues(Lane.TASK, now=T0) == ["B", "a", "b", "b "]
    assert store.ready_queues(Lane.PAYLOAD, now=T0) == ["agents"]
    assert store.ready_queues(Lane.OUTBOX, now=T0) == []


def test_ready_queues_leaves_out_what_is_paused_until_its_pause_ends(store: BaseStore) -> None:
    for name in ("open", "paused", "until", "Paused"):
        insert(store, queue_name=name)
    store.pause("paused")
    store.pause("until", at(5))
    for now, names in (
        (at(4.999999), ["Paused", "open"]),
        (at(5), ["Paused", "open", "until"]),
    ):
        assert store.ready_queues(Lane.TASK, now=now) == names
    store.resume("paused")
    assert store.ready_queues(Lane.TASK, now=T0) == ["Paused", "open", "paused"]


def test_seconds_to_due_is_none_without_a_scheduled_job(store: BaseStore) -> None:
    insert(store)
    held(store, queue_name="held")
    assert store.seconds_to_due(now=T0) is None


def test_seconds_to_due_counts_to_the_next_and_never_below_zero(store: BaseStore) -> None:
    insert(store, run_after=at(50))
    insert(store, run_after=at(7.25))
    assert store.seconds_to_due(now=T0) == 7.25
    assert store.seconds_to_due(now=at(7.25)) == 0.0
    assert store.seconds_to_due(now=at(99)) == 0.0


def test_a_look_says_both_which_queues_are_ready_and_when_the_next_job_is_due(
    store: BaseStore,
) -> None:
    assert store.look(Lane.TASK) == ([], None)

    insert(store, now=None, queue_name="b")
    insert(store, now=None, queue_name="a")
    insert(store, now=None, delay_seconds=60.0)
    names, seconds = store.look(Lane.TASK)

    assert names == ["a", "b"]
    assert seconds is not None
    assert 50.0 < seconds <= 60.0
    assert store.look(Lane.OUTBOX)[0] == []


def test_a_look_makes_ready_what_is_due_and_names_its_queues(store: BaseStore) -> None:
    insert(store, queue_name="ready")
    for name in ("ready", "due", "due", "paused"):
        insert(store, queue_name=name, run_after=at(5))
    insert(store, queue_name="sent", lane=Lane.OUTBOX, run_after=at(4))
    insert(store, queue_name="later", run_after=at(7.25))
    store.pause("paused")

    assert store.look(Lane.TASK, now=at(4) - EARLIER) == (["ready"], 1e-6)
    assert store.look(Lane.TASK, now=at(5)) == (["due", "ready"], 2.25)

    states = {each["queue_name"]: each["state"] for each in rows()["live"].values()}
    assert states.pop("later") == "scheduled"
    assert set(states.values()) == {"ready"}
    assert store.look(Lane.OUTBOX, now=at(5)) == (["sent"], 2.25)


@pytest.mark.parametrize(("due", "seconds"), [(BATCH, 1.0), (BATCH + 1, 0.0)])
def test_a_look_says_what_more_than_a_batch_has_left(
    store: BaseStore, due: int, seconds: float
) -> None:
    store.insert([new_job(run_after=at(1)) for _ in range(due)], now=T0)
    insert(store, queue_name="later", run_after=at(2))
    assert store.look(Lane.TASK, now=at(1)) == (["default"], seconds)
    assert store.live().filter(state="ready").count() == BATCH


def test_a_look_names_every_queue_however_many_there_are(store: BaseStore) -> None:
    names = [f"q{number:04}" for number in range(1_200)]
    store.insert([new_job(queue_name=name) for name in names], now=T0)
    for _ in range(2):
        assert store.look(Lane.TASK, now=at(1))[0] == names
    insert(store, queue_name="a", run_after=at(2))
    assert store.look(Lane.TASK, now=at(2))[0] == ["a", *names]
