"""A state that newer code wrote, and this code does not know, is left alone (case N4)."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, Final

import pytest
from django.db import connection

from django_workqueue.models import LiveJob
from django_workqueue.states import HeldReason, Lane
from django_workqueue.store import BaseStore, CancelAnswer
from tests.factories import TASK, at, claim, insert
from tests.sound import rows

LATER: Final = 1e6

ACTS: Final[dict[str, Callable[[BaseStore], Any]]] = {
    "promote": lambda store: store.promote(now=at(LATER)),
    "unhold": lambda store: store.unhold(HeldReason.UNKNOWN, [TASK], now=at(LATER)),
    "hold_ready": lambda store: store.hold_ready(HeldReason.UNKNOWN, [TASK], 60, now=at(LATER)),
    "claim": lambda store: claim(store, now=at(1)),
    "ready_queues": lambda store: store.ready_queues(Lane.TASK, now=at(1)),
    "release_strays": lambda store: store.release_strays("w1", set()),
    "reclaim": lambda store: store.reclaim(now=at(LATER)),
    "expire": lambda store: store.expire(now=at(LATER)),
    "bury_spent": lambda store: store.bury_spent(now=at(LATER)),
    "bury_unknown": lambda store: store.bury_unknown(0, now=at(LATER)),
    "purge": lambda store: sum(store.purge(0, now=at(LATER)).values()),
}

WITHOUT_CHECKS: Final = {
    "postgresql": "ALTER TABLE workqueue_livejob DROP CONSTRAINT workqueue_live_state",
    "sqlite": "PRAGMA ignore_check_constraints = ON",
    "mysql": "SET SESSION check_constraint_checks = OFF",
}
WITH_CHECKS: Final = {
    "postgresql": "SELECT 1",  # The transaction of the test is rolled back.
    "sqlite": "PRAGMA ignore_check_constraints = OFF",
    "mysql": "SET SESSION check_constraint_checks = ON",
}


@pytest.fixture
def parked(store: BaseStore) -> uuid.UUID:
    """Return a job in the state "parked", as code with a state of that name would write it."""
    job_id = insert(store, expires_seconds=9)
    with connection.cursor() as cursor:
        cursor.execute(WITHOUT_CHECKS[connection.vendor])
        LiveJob.objects.filter(pk=job_id).update(state="parked")
        cursor.execute(WITH_CHECKS[connection.vendor])
    return job_id


def test_a_cancel_does_not_reach_it(store: BaseStore, parked: uuid.UUID) -> None:
    before = rows()
    assert store.cancel(parked, now=at(1)) == CancelAnswer.NOTHING
    assert rows() == before


@pytest.mark.parametrize("act", ACTS)
def test_a_state_that_this_code_does_not_know_is_left_alone(
    store: BaseStore, parked: uuid.UUID, act: str
) -> None:
    before = rows()
    assert not ACTS[act](store)
    assert rows() == before
    assert before["live"][parked]["state"] == "parked"
