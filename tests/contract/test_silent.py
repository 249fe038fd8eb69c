"""extend_all and time_out: what a parent does for a child that cannot."""

from __future__ import annotations

from typing import Any

import pytest

from django_workqueue.store import BaseStore
from tests.factories import NOT_HELD, at, running
from tests.sound import changes, place, row, rows


def test_all_leases_of_one_worker_move_and_those_of_no_other(store: BaseStore) -> None:
    first, second = (running(store, worker_id="silent") for _ in range(2))
    other = running(store, worker_id="other")
    store.cancel(second.id, now=at(1))
    before = row(first.id)

    answers = store.extend_all("silent", 30, now=at(10))

    assert answers == {first.hold: False, second.hold: True}
    assert changes(before, row(first.id)) == {"lease_expires_at": at(40)}
    assert row(second.id)["lease_expires_at"] == at(40)
    assert row(other.id)["lease_expires_at"] < at(40)
    assert store.extend_all("nobody", 30, now=at(10)) == {}


def test_a_job_over_its_limit_is_scheduled_charged_and_no_suspect(store: BaseStore) -> None:
    taken = running(store, timeout=5.0)

    (swept,) = store.time_out([taken.hold], "killed", lambda attempt: 7.0 * attempt, now=at(10))

    assert swept.outcome == "scheduled"
    job: dict[str, Any] = row(taken.id)
    assert (job["state"], job["attempt"], job["run_after"]) == ("scheduled", 1, at(17))
    assert (job["suspect"], job["deaths"]) == (False, 0)
    (error,) = job["errors"]
    assert error["outcome"] == "timeout"
    assert error["message"].endswith("must end within 5 s; killed")


def test_a_job_over_its_limit_in_its_last_attempt_is_dead(store: BaseStore) -> None:
    taken = running(store, timeout=5.0, max_attempts=1)

    (swept,) = store.time_out([taken.hold], "killed", lambda attempt: 1.0, now=at(10))

    assert (swept.outcome, swept.reason) == ("dead", "timeout")
    assert place(taken.id) == "dead"


def test_a_job_over_its_limit_whose_cancel_was_asked_is_cancelled(store: BaseStore) -> None:
    taken = running(store)
    store.cancel(taken.id, now=at(1))

    (swept,) = store.time_out([taken.hold], "killed", lambda attempt: 1.0, now=at(10))

    assert swept.outcome == "cancelled"
    assert place(taken.id) == "finished"


@pytest.mark.parametrize("where", NOT_HELD)
def test_a_hold_that_holds_nothing_is_not_timed_out(store: BaseStore, where: str) -> None:
    stale = NOT_HELD[where](store)
    before = rows()

    assert store.time_out([stale.hold], "killed", lambda attempt: 1.0, now=at(3)) == []

    assert rows() == before
