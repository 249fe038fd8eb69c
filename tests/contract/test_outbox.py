"""The transitions that only the outbox makes: numbers within a key, and what goes back together."""

from __future__ import annotations

from typing import Any

from django_workqueue.models import OutboxKey
from django_workqueue.states import Lane, OutboxKind
from django_workqueue.store import BaseStore
from tests.factories import at, claim, insert
from tests.sound import place, row

QUEUE = "outbox:events"


def publish(store: BaseStore, key: str = "a", **options: Any) -> Any:
    """Insert the next message of *key*."""
    seq = store.next_seq(QUEUE, key)
    numbered = {"order_key": key, "seq": seq, "kind": OutboxKind.MESSAGE.value, **options}
    return insert(store, lane=Lane.OUTBOX, queue_name=QUEUE, task="", **numbered)


def take(store: BaseStore, limit: int = 10) -> Any:
    return claim(store, lane=Lane.OUTBOX, queue_name=QUEUE, limit=limit, now=at(1))


def states(*ids: Any) -> list[str | None]:
    return [place(each) for each in ids]


def test_only_the_first_of_a_key_is_ready(store: BaseStore) -> None:
    ids = [publish(store) for _ in range(3)]
    other = publish(store, "b")
    assert states(*ids, other) == ["ready", "held", "held", "ready"]
    assert [row(each)["held_reason"] for each in ids] == ["", "key", "key"]


def test_advance_lets_the_next_one_go_only_when_the_first_has_left(store: BaseStore) -> None:
    first, second, third = (publish(store) for _ in range(3))
    assert store.advance(QUEUE, "a")
    assert states(first, second, third) == ["ready", "held", "held"]
    store.cancel(first, now=at(1))
    assert store.advance(QUEUE, "a")
    assert states(first, second, third) == ["finished", "ready", "held"]
    assert store.advance(QUEUE, "a")
    assert states(second, third) == ["ready", "held"]


def test_numbers_begin_anew_when_every_message_has_left(store: BaseStore) -> None:
    store.cancel(publish(store), now=at(1))
    assert store.advance(QUEUE, "a")
    assert OutboxKey.objects.get().last_seq == 0
    again = publish(store)
    assert (row(again)["seq"], place(again)) == (1, "ready")


def test_advance_of_a_key_that_is_not_there_is_decided(store: BaseStore) -> None:
    assert store.advance(QUEUE, "never")


def test_keys_are_told_apart_exactly(store: BaseStore) -> None:
    """Case O13, for keys."""
    ids = [publish(store, key) for key in ("Key", "key", "key ", "kéy")]
    assert states(*ids) == ["ready"] * 4


def test_what_one_token_claimed_goes_back_together(store: BaseStore) -> None:
    ids = [publish(store, key) for key in "abc"]
    claims = take(store)
    store.cancel(claims[1].id, now=at(2))
    assert store.release_together(claims) == {claims[0].hold, claims[2].hold}
    assert states(*ids) == ["ready", "running", "ready"]
    assert [row(each.id)["attempt"] for each in claims] == [0, 1, 0]
    assert store.release(claims[1]) == "cancelled"


def test_a_late_release_together_changes_nothing_of_a_newer_claim(store: BaseStore) -> None:
    for key in "ab":
        publish(store, key)
    late = take(store)
    assert len(store.reclaim(now=at(3600))) == 2
    newer = claim(store, lane=Lane.OUTBOX, queue_name=QUEUE, limit=10, now=at(3600))
    store.release_together(late)
    assert states(*(each.id for each in newer)) == ["running", "running"]
    assert [row(each.id)["attempt"] for each in newer] == [2, 2]
