"""What changes between a look and the write that follows from it is left as it is (I9).

Each test lets somebody else act at exactly that point, on the same connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from django_workqueue.exceptions import UniqueKeyTaken
from django_workqueue.states import DeathReason
from django_workqueue.store import Ack, BaseStore, CancelAnswer, Claim, get_store
from tests.factories import at, claim, dead, error, insert, running
from tests.sound import place, row, rows

ACTS: Final[dict[str, Callable[[BaseStore, Claim], Any]]] = {
    "ack": lambda store, taken: store.ack([Ack(claim=taken, value="1")], now=at(9)),
    "retry": lambda store, taken: store.retry(taken, 99, error(taken), now=at(9)),
    "bury": lambda store, taken: store.bury(taken, DeathReason.TERMINAL, error(taken), now=at(9)),
    "release": lambda store, taken: store.release(taken, now=at(9)),
    "extend": lambda store, taken: store.extend([taken], 30, now=at(9)),
    "reclaim": lambda store, taken: store.reclaim(now=at(9)),
}


def acting_before(monkeypatch: pytest.MonkeyPatch, write: str, act: Callable[[], Any]) -> BaseStore:
    """Return a store on which *act* happens once, just before its first *write*."""
    store = get_store()
    original = getattr(store, write)
    pending = [act]

    def first_act(*args: Any, **kwargs: Any) -> Any:
        if pending:
            pending.pop()()
        return original(*args, **kwargs)

    monkeypatch.setattr(store, write, first_act)
    return store


@pytest.mark.parametrize("act", ACTS)
def test_a_reclaim_leaves_a_row_alone_that_its_late_holder_still_changed(
    store: BaseStore, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    taken = running(store, lease_seconds=5, max_attempts=1 if act == "bury" else 3)
    after: list[Any] = []

    def late() -> None:
        ACTS[act](store, taken)
        after.append(rows())

    racing = acting_before(monkeypatch, "_reclaim", late)
    assert racing.reclaim(now=at(9)) == []
    assert [rows()] == after


@pytest.mark.parametrize("act", ["ack", "retry", "bury", "release", "extend"])
def test_an_expiry_leaves_a_row_alone_that_its_late_holder_still_changed(
    store: BaseStore, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    taken = running(store, lease_seconds=5, expires_seconds=5)
    after: list[Any] = []

    def late() -> None:
        ACTS[act](store, taken)
        after.append(rows())

    racing = acting_before(monkeypatch, "_expire", late)
    assert racing.expire(now=at(9)) == []
    assert [rows()] == after


def test_a_job_of_one_attempt_that_starts_while_it_is_reclaimed_is_not_refunded(
    store: BaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = running(store, lease_seconds=5, max_attempts=1)
    racing = acting_before(monkeypatch, "_reclaim", lambda: store.mark_started([taken], now=at(9)))
    assert racing.reclaim(now=at(9)) == []
    assert [each.outcome for each in racing.reclaim(now=at(9))] == ["dead"]
    assert place(taken.id) == "dead"


def test_a_cancel_asked_while_a_job_is_reclaimed_is_not_lost(
    store: BaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = running(store, lease_seconds=5)
    racing = acting_before(monkeypatch, "_reclaim", lambda: store.cancel(taken.id, now=at(9)))
    assert racing.reclaim(now=at(9)) == []
    assert [each.outcome for each in racing.reclaim(now=at(9))] == ["cancelled"]


def test_a_job_claimed_while_it_is_cancelled_is_asked(
    store: BaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = insert(store)
    racing = acting_before(monkeypatch, "_cancel", lambda: claim(store, now=at(1)))
    assert racing.cancel(job_id, now=at(1)) == CancelAnswer.ASKED
    assert row(job_id)["cancel_asked_at"] == at(1)


def test_a_job_given_back_while_it_is_asked_is_cancelled(
    store: BaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = running(store)
    racing = acting_before(monkeypatch, "_cancel", lambda: store.release(taken, now=at(1)))
    assert racing.cancel(taken.id, now=at(1)) == CancelAnswer.CANCELLED
    assert place(taken.id) == "finished"


def test_a_job_finished_while_it_is_cancelled_stays_finished(
    store: BaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = running(store)
    racing = acting_before(monkeypatch, "_cancel", lambda: ACTS["ack"](store, taken))
    assert racing.cancel(taken.id, now=at(1)) == CancelAnswer.NOTHING
    assert rows()["finished"][taken.id]["outcome"] == "succeeded"


def test_of_two_requeues_that_looked_at_once_one_makes_the_job_ready(
    store: BaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = dead(store)
    racing = acting_before(monkeypatch, "_requeued", lambda: store.requeue(taken.id, now=at(8)))
    assert racing.requeue(taken.id, now=at(9)) is False
    assert row(taken.id)["run_after"] == at(8)


def test_a_key_taken_after_the_look_at_it_is_refused_with_its_holder(
    store: BaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = dead(store, unique_key="k")
    before = rows()["dead"]
    racing = get_store()
    looks = [lambda row: None]
    refuse = racing._refuse_taken_key
    monkeypatch.setattr(
        racing, "_refuse_taken_key", lambda row: (looks.pop() if looks else refuse)(row)
    )
    twin = insert(store, unique_key="k")
    with pytest.raises(UniqueKeyTaken) as caught:
        racing.requeue(taken.id, now=at(9))
    assert caught.value.holder_id == twin
    assert rows()["dead"] == before
