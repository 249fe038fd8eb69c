"""Unique keys: which twin exists, until when, and that no end of a job ever meets a violation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from django_workqueue.states import DeathReason, HeldReason
from django_workqueue.store import Ack, BaseStore, Claim, get_store
from tests.factories import at, claim, error, insert, new_job, running
from tests.sound import place, row

ENDS: Final[dict[str, Callable[[BaseStore, Claim], Any]]] = {
    "retry": lambda store, taken: store.retry(taken, 0, error(taken), now=at(1)),
    "release": lambda store, taken: store.release(taken, now=at(1)),
    "release later": lambda store, taken: store.release(taken, delay_seconds=1, now=at(1)),
    "hold": lambda store, taken: store.hold(taken, HeldReason.UNKNOWN, 1, error(taken), now=at(1)),
    "reclaim": lambda store, taken: store.reclaim(now=at(1000)),
    "strays": lambda store, taken: store.release_strays("w1", set()),
}
MOVES: Final[dict[str, Callable[[BaseStore, Claim], Any]]] = {
    "ack": lambda store, taken: store.ack([Ack(claim=taken, value="1")], now=at(1)),
    "bury": lambda store, taken: store.bury(taken, DeathReason.TERMINAL, error(taken), now=at(1)),
}


def twin_fits(store: BaseStore, **options: Any) -> bool:
    return bool(store.insert([new_job(unique_key="k", **options)], now=at(2)))


@pytest.mark.parametrize("end", ENDS)
def test_a_live_key_constrains_until_the_job_is_finished_or_dead(
    store: BaseStore, end: str
) -> None:
    # Case 149.
    taken = running(store, unique_key="k", unique_while="live", max_attempts=9)
    assert not twin_fits(store)
    ENDS[end](store, taken)
    assert place(taken.id) in {"ready", "scheduled", "held"}
    assert not twin_fits(store)


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("scope", ["live", "queued"])
def test_a_finished_or_dead_job_constrains_nothing(store: BaseStore, scope: str, move: str) -> None:
    taken = running(store, unique_key="k", unique_while=scope)
    MOVES[move](store, taken)
    assert twin_fits(store, unique_while=scope)


def test_a_queued_key_is_given_up_at_the_first_claim(store: BaseStore) -> None:
    job_id = insert(store, unique_key="k", unique_while="queued")
    assert not twin_fits(store, unique_while="queued")
    claim(store)
    assert row(job_id)["unique_hash"] is None
    assert row(job_id)["unique_key"] == "k"
    assert twin_fits(store, unique_while="queued")
    assert not twin_fits(store, unique_while="queued")


@pytest.mark.parametrize("end", ENDS)
def test_a_queued_key_is_never_taken_again_and_no_end_meets_the_twin(
    store: BaseStore, end: str
) -> None:
    # Case 148.
    taken = running(store, unique_key="k", unique_while="queued", max_attempts=9)
    assert twin_fits(store, unique_while="queued")
    ENDS[end](store, taken)
    assert place(taken.id) in {"ready", "scheduled", "held"}
    assert row(taken.id)["unique_hash"] is None


def test_a_sweep_of_many_lapsed_jobs_passes_over_no_twin(db: None) -> None:
    # O5. Without the look at all rows after each call: there are many.
    store = get_store()
    store.insert(
        [new_job(unique_key=f"k{n}", unique_while="queued") for n in range(500)], now=at(0)
    )
    taken = claim(store, limit=500, lease_seconds=5)
    insert(store, unique_key="k7", unique_while="queued")
    swept = store.reclaim(now=at(5))
    assert {each.id for each in swept} == {each.id for each in taken}
    assert {each.outcome for each in swept} == {"ready"}
    assert len(swept) == 500


def test_a_cancelled_job_gives_up_its_key(store: BaseStore) -> None:
    job_id = insert(store, unique_key="k")
    store.cancel(job_id, now=at(1))
    assert twin_fits(store)


def test_an_expired_job_gives_up_its_key(store: BaseStore) -> None:
    insert(store, unique_key="k", expires_seconds=1)
    store.expire(now=at(1))
    assert twin_fits(store)


def test_a_requeued_job_takes_no_key_that_it_gave_up_at_its_first_claim(store: BaseStore) -> None:
    taken = running(store, unique_key="k", unique_while="queued")
    store.bury(taken, DeathReason.TERMINAL, error(taken), now=at(1))
    assert twin_fits(store, unique_while="queued")
    assert store.requeue(taken.id, now=at(3)) is True
    assert row(taken.id)["unique_hash"] is None


def test_a_requeued_job_that_was_never_claimed_takes_its_queued_key_again(
    store: BaseStore,
) -> None:
    job_id = insert(store, unique_key="k", unique_while="queued", expires_seconds=1)
    store.expire(now=at(1))
    store.requeue(job_id, now=at(2))
    assert not twin_fits(store, unique_while="queued")
