"""The database's own clock decides, whatever zone its session and Django think in (G11, O12)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest
from django.db import connection
from django.test import override_settings

from django_workqueue.models import LiveJob
from django_workqueue.states import Lane
from django_workqueue.store import Ack, BaseStore
from tests.factories import claim, error, insert, new_job, running
from tests.sound import row, rows

SESSION_ZONES: Final = {
    "postgresql": ("SET TIME ZONE 'Asia/Kathmandu'", "SET TIME ZONE 'UTC'"),
    "mysql": ("SET time_zone = '+05:00'", "SET time_zone = '+00:00'"),
}

TOLERANCE: Final = timedelta(seconds=30)
"""How far this host's clock and the database's may be apart; zones differ by hours."""


@pytest.fixture(params=["plain", "session zone elsewhere", "Django without USE_TZ"])
def anywhere(request: pytest.FixtureRequest, store: BaseStore) -> Iterator[BaseStore]:
    """A store whose session or whose Django reckons in another zone than UTC."""
    there, back = SESSION_ZONES.get(connection.vendor, ("SELECT 1", "SELECT 1"))
    with connection.cursor() as cursor:
        if request.param == "session zone elsewhere":
            cursor.execute(there)
        with override_settings(USE_TZ=request.param != "Django without USE_TZ"):
            yield store
        cursor.execute(back)


def near_now(moment: datetime) -> bool:
    return abs(datetime.now(UTC) - moment) < TOLERANCE


def test_now_is_aware_and_utc(anywhere: BaseStore) -> None:
    moment = anywhere.now()
    assert moment.utcoffset() == timedelta(0)
    assert near_now(moment)


def test_a_glance_tells_the_moment_and_whether_any_lease_is_held(anywhere: BaseStore) -> None:
    anywhere.insert([new_job()])
    moment, any_running = anywhere.glance()
    assert moment.utcoffset() == timedelta(0)
    assert near_now(moment)
    assert any_running is False
    claim(anywhere, now=None)
    assert anywhere.glance()[1] is True


def test_every_moment_of_a_jobs_life_is_the_databases(anywhere: BaseStore) -> None:
    before = anywhere.now()
    (inserted,) = anywhere.insert([new_job(expires_seconds=3600.0, result_ttl=60.0)])
    assert before <= inserted.enqueued_at
    (taken,) = claim(anywhere, now=None, lease_seconds=100)
    assert before <= taken.claimed_at
    assert taken.lease_expires_at - taken.claimed_at == timedelta(seconds=100)
    stored = row(taken.id)
    assert stored["expires_at"] == taken.run_after + timedelta(hours=1)
    for name in ("claimed_at", "lease_expires_at", "run_after", "enqueued_at"):
        assert getattr(taken, name) == stored[name]
        assert stored[name].utcoffset() == timedelta(0)
    anywhere.mark_started([taken])
    assert near_now(row(taken.id)["started_at"])
    anywhere.extend([taken], 1000)
    assert near_now(row(taken.id)["lease_expires_at"] - timedelta(seconds=1000))
    anywhere.ack([Ack(claim=taken, value="1")])
    result = rows()["finished"][taken.id]
    assert near_now(result["finished_at"])
    assert result["expires_at"] - result["finished_at"] == timedelta(seconds=60)


def test_a_lease_of_this_moment_has_not_lapsed_and_an_ended_one_has(anywhere: BaseStore) -> None:
    taken = running(anywhere, now=None, lease_seconds=3600)
    assert anywhere.reclaim() == []
    anywhere.extend([taken], -0.001)
    assert [each.outcome for each in anywhere.reclaim()] == ["ready"]


def test_what_is_due_by_the_databases_clock_is_promoted(anywhere: BaseStore) -> None:
    later = insert(anywhere, now=None, delay_seconds=3600)
    past = insert(anywhere, now=None, run_after=anywhere.now() - timedelta(seconds=1))
    assert anywhere.seconds_to_due() == 0.0
    assert anywhere.promote() == 1
    assert (row(later)["state"], row(past)["state"]) == ("scheduled", "ready")
    seconds = anywhere.seconds_to_due()
    assert seconds is not None
    assert 3500 < seconds <= 3600


def test_delays_expiry_and_retention_count_on_the_databases_clock(anywhere: BaseStore) -> None:
    taken = running(anywhere, now=None)
    anywhere.retry(taken, 3600, error(taken))
    assert near_now(row(taken.id)["run_after"] - timedelta(hours=1))
    insert(anywhere, now=None, expires_seconds=3600)
    gone = insert(anywhere, now=None, expires_seconds=-0.001)
    assert claim(anywhere, now=None, limit=1)[0].id != gone
    assert [each.id for each in anywhere.expire()] == [gone]
    assert near_now(rows()["dead"][gone]["died_at"])
    assert anywhere.purge(3600)["dead"] == 0
    assert anywhere.purge(-0.001)["dead"] == 1


def test_a_pause_ends_by_the_databases_clock(anywhere: BaseStore) -> None:
    insert(anywhere, now=None)
    anywhere.pause("default", anywhere.now() + timedelta(hours=1))
    assert anywhere.ready_queues(Lane.TASK) == []
    assert claim(anywhere, now=None) == []
    anywhere.pause("default", anywhere.now() - timedelta(seconds=1))
    assert anywhere.ready_queues(Lane.TASK) == ["default"]
    assert len(claim(anywhere, now=None)) == 1


def test_the_clock_moves_within_a_transaction(store: BaseStore) -> None:
    # The tests' transaction, and a user's, may be long: its start is not "now".
    first = store.now()
    time.sleep(0.01)
    assert store.now() > first


def test_a_naive_moment_is_in_djangos_zone(store: BaseStore) -> None:
    job_id = insert(store, run_after=datetime(2030, 1, 1, 7, 0))
    assert row(job_id)["run_after"] == datetime(2030, 1, 1, 12, 0, tzinfo=UTC)


@pytest.mark.vendor("sqlite")
def test_sqlite_moments_are_texts_of_one_length(store: BaseStore) -> None:
    insert(store, now=None)
    insert(store, now=datetime(2030, 1, 1, tzinfo=UTC))
    insert(store, now=datetime(2030, 1, 1, 0, 0, 0, 5, tzinfo=UTC))
    table = LiveJob._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT DISTINCT length(run_after), length(enqueued_at) FROM {table}")
        assert cursor.fetchall() == [(26, 26)]
