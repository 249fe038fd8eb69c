"""extend and mark_started: what a holder says while it works."""

from __future__ import annotations

import pytest
from django.db import connection

from django_workqueue.models import LiveJob
from django_workqueue.store import BaseStore
from tests.factories import NOT_HELD, at, claim, new_job, running
from tests.sound import changes, row, rows


def test_extend_moves_the_end_of_the_lease_and_nothing_else(store: BaseStore) -> None:
    taken = running(store, unique_key="k")
    before = row(taken.id)
    assert store.extend([taken], 30, now=at(10)) == {taken.hold: False}
    assert changes(before, row(taken.id)) == {"lease_expires_at": at(40)}


def test_extend_can_shorten_a_lease(store: BaseStore) -> None:
    taken = running(store, lease_seconds=100)
    store.extend([taken], 0.5, now=at(10))
    assert row(taken.id)["lease_expires_at"] == at(10.5)


def test_a_holder_that_is_late_still_holds_what_nobody_took(store: BaseStore) -> None:
    taken = running(store, lease_seconds=5)
    assert store.extend([taken], 5, now=at(1000)) == {taken.hold: False}
    assert store.reclaim(now=at(1004)) == []


def test_extend_reports_a_cancel_that_was_asked_and_keeps_the_lease(store: BaseStore) -> None:
    # L9.
    first, second = running(store), running(store)
    store.cancel(first.id, now=at(1))
    assert store.extend([first, second], 30, now=at(10)) == {first.hold: True, second.hold: False}
    assert row(first.id)["lease_expires_at"] == at(40)


@pytest.mark.parametrize("where", NOT_HELD)
def test_extend_by_a_claim_that_holds_nothing_changes_nothing(store: BaseStore, where: str) -> None:
    stale = NOT_HELD[where](store)
    before = rows()
    assert store.extend([stale], 30, now=at(3)) == {}
    assert store.mark_started([stale], now=at(3)) == set()
    assert rows() == before


def test_one_stale_claim_in_a_group_does_not_keep_the_others_from_extending(
    store: BaseStore,
) -> None:
    stale = NOT_HELD["running under a newer token of the same worker"](store)
    good = [running(store, queue_name="good") for _ in range(3)]
    before = rows()["live"]
    answers = store.extend([good[0], stale, good[2], good[1]], 30, now=at(9))
    assert answers == {each.hold: False for each in good}
    assert row(stale.id) == before[stale.id]
    assert {row(each.id)["lease_expires_at"] for each in good} == {at(39)}


def test_more_claims_than_a_statement_holds_are_all_extended(store: BaseStore) -> None:
    store.insert([new_job() for _ in range(405)], now=at(0))
    taken = claim(store, limit=405)
    assert len(store.extend(taken, 60, now=at(1))) == 405
    assert {job["lease_expires_at"] for job in rows()["live"].values()} == {at(61)}


def test_extend_of_no_claims_is_no_statement(store: BaseStore) -> None:
    assert store.extend([], 30, now=at(1)) == {}
    assert store.mark_started([], now=at(1)) == set()
    assert store.ack([], now=at(1)) == set()


def test_mark_started_writes_the_moment_the_body_begins(store: BaseStore) -> None:
    taken = running(store)
    before = row(taken.id)
    assert store.mark_started([taken], now=at(1.5)) == {taken.hold}
    assert changes(before, row(taken.id)) == {"started_at": at(1.5)}


def test_progress_is_noted_by_the_holder_only(store: BaseStore) -> None:
    taken = running(store)
    before = row(taken.id)
    assert store.note_progress(taken, '{"done":1,"total":3}') is True
    assert changes(before, row(taken.id)) == {"progress": {"done": 1, "total": 3}}


@pytest.mark.parametrize("where", NOT_HELD)
def test_progress_of_a_claim_that_holds_nothing_changes_nothing(
    store: BaseStore, where: str
) -> None:
    stale = NOT_HELD[where](store)
    before = rows()
    assert store.note_progress(stale, "1") is False
    assert rows() == before


@pytest.mark.vendor("postgresql")
def test_an_extension_writes_to_no_index(store: BaseStore) -> None:
    # Case 103: a heartbeat is a heap-only update, whose dead tuple the next one reuses.
    def updates() -> tuple[int, int]:
        """Return how many rows were updated, and how many of them without touching an index."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relname = %s",
                [LiveJob._meta.db_table],
            )
            every, heap_only = cursor.fetchone()
            return every, heap_only

    with connection.cursor() as cursor:
        # Room on one page, whatever other tests have left on those there were.
        cursor.execute(f"TRUNCATE {LiveJob._meta.db_table}")
    start = updates()
    taken = [running(store, queue_name=f"q{number}") for number in range(5)]
    claimed = updates()
    assert len(store.extend(taken, 30, now=at(10))) == 5
    extended = updates()
    assert (claimed[0] - start[0], claimed[1] - start[1]) == (5, 0), "the control: a claim does"
    assert (extended[0] - claimed[0], extended[1] - claimed[1]) == (5, 5)
