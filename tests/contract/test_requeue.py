"""requeue: a dead job begins again under its id, unless a live one holds its unique key."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from django_workqueue.exceptions import UniqueKeyTaken
from django_workqueue.states import DeathReason
from django_workqueue.store import BaseStore
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
from tests.sound import FACTS, changes, place, row, rows


def test_requeue_makes_the_same_job_ready_with_a_new_budget(store: BaseStore) -> None:
    # Case 164.
    taken = running(
        store,
        queue_name="mail",
        priority=7,
        unique_key="k",
        expires_seconds=99,
        lease_seconds=1,
        max_attempts=2,
        headers='{"a":1}',
    )
    store.reclaim(now=at(1))
    (taken,) = claim(store, now=at(2), queue_name="mail")
    store.bury(taken, DeathReason.TERMINAL, error(taken), now=at(5))
    before = {name: value for name, value in rows()["dead"][taken.id].items() if name in FACTS}
    assert store.requeue(taken.id, now=at(200)) is True
    after = row(taken.id)
    assert rows()["dead"] == {}
    assert {name: after[name] for name in changes(before, after) if name in before} == {
        "attempt": 0,
        "expires_at": None,
        "run_after": at(200),
        "claimed_at": None,
        "started_at": None,
        "suspect": False,
        "deaths": 0,
    }
    assert (after["state"], after["held_reason"], after["cancel_asked_at"]) == ("ready", "", None)
    assert (after["fence"], after["unique_key"]) == (2, "k")
    assert after["unique_hash"] is not None
    (again,) = claim(store, now=at(200), queue_name="mail")
    assert (again.id, again.attempt, again.fence) == (taken.id, 1, 3)


def test_requeue_twice_is_once(store: BaseStore) -> None:
    taken = dead(store)
    assert store.requeue(taken.id, now=at(9)) is True
    before = rows()
    assert store.requeue(taken.id, now=at(10)) is False
    assert rows() == before


@pytest.mark.parametrize("make", [released, retried, held, running, finished, cancelled])
def test_only_a_dead_job_is_requeued(store: BaseStore, make: Callable[..., Any]) -> None:
    taken = make(store)
    before = rows()
    assert store.requeue(taken.id, now=at(9)) is False
    assert store.requeue(uuid.uuid4(), now=at(9)) is False
    assert rows() == before


def test_requeue_can_correct_the_payload(store: BaseStore) -> None:
    taken = dead(store)
    store.requeue(taken.id, payload='{"args":["ok"],"kwargs":{}}', now=at(9))
    (again,) = claim(store, now=at(9))
    assert again.payload == '{"args":["ok"],"kwargs":{}}'
    assert len(row(taken.id)["errors"]) == 1


def test_requeue_beside_a_twin_says_who_holds_the_key_and_changes_nothing(
    store: BaseStore,
) -> None:
    # O5. The caller's transaction goes on.
    taken = dead(store, unique_key="k")
    twin = insert(store, unique_key="k")
    before = rows()
    with transaction.atomic():
        with pytest.raises(UniqueKeyTaken) as caught:
            store.requeue(taken.id, now=at(9))
        assert rows() == before
    assert caught.value.holder_id == twin
    assert str(twin) in str(caught.value)
    assert "'k'" in str(caught.value)
    store.cancel(twin, now=at(9))
    assert store.requeue(taken.id, now=at(10)) is True


def test_a_requeued_job_is_cancelled_by_nothing_that_was_asked_before(store: BaseStore) -> None:
    taken = dead(store)
    store.requeue(taken.id, now=at(9))
    (again,) = claim(store, now=at(9))
    assert store.extend([again], 5, now=at(9)) == {again.hold: False}


def test_the_claim_a_job_died_under_settles_nothing_after_its_requeue(store: BaseStore) -> None:
    taken = dead(store, now=T0)
    store.requeue(taken.id, now=at(9))
    claim(store, now=at(9))
    before = rows()
    assert store.extend([taken], 30, now=at(10)) == {}
    assert rows() == before
    assert place(taken.id) == "running"
