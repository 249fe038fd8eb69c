"""`sweeper`: what nobody holds is taken back, buried or purged; after a stall nothing is taken."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any, cast

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from django_workqueue import clock, conf
from django_workqueue.models import DeadJob, LiveJob, Result
from django_workqueue.states import State
from django_workqueue.store import BaseStore, get_store
from django_workqueue.sweeper import Sweeper, sweep
from tests import jobs
from tests.jobs import app
from tests.store_faults import Fault, with_faults

pytestmark = pytest.mark.usefixtures("transactional_db")

LEASE = 30.0


def lapsed(count: int = 1, **options: Any) -> None:
    """Make jobs whose worker is gone and whose lease has ended."""
    app.echo.using(**options).enqueue_many([((number,), {}) for number in range(count)])
    jobs.claim(limit=count)
    LiveJob.objects.update(lease_expires_at=get_store().now() - timedelta(seconds=1))


def swept(**options: Any) -> Any:
    return sweep(get_store(), conf.current(), **options)


# One sweep


def test_a_lapsed_job_is_ready_again_with_its_attempt_charged() -> None:
    lapsed()

    report = swept()

    (job,) = LiveJob.objects.all()
    assert (job.state, job.attempt, job.suspect, job.deaths) == (State.READY, 1, True, 1)
    assert [each.outcome for each in report.reclaimed] == ["ready"]


def test_a_lapsed_job_without_budget_is_dead_of_it() -> None:
    lapsed()
    LiveJob.objects.update(attempt=3)

    report = swept()

    assert DeadJob.objects.get().reason == "lost"
    assert [each.reason for each in report.reclaimed] == ["lost"]


def test_a_lease_that_has_not_ended_is_left_alone() -> None:
    app.echo.enqueue(1)
    jobs.claim()

    assert swept().reclaimed == []
    assert LiveJob.objects.get().state == State.RUNNING


def test_a_lapsed_job_that_has_expired_is_dead_as_such() -> None:
    lapsed(expires=60)
    LiveJob.objects.update(expires_at=get_store().now() - timedelta(seconds=1))

    report = swept()

    assert DeadJob.objects.get().reason == "expired"
    assert (len(report.expired), len(report.reclaimed)) == (1, 0)


def test_a_job_that_the_database_lets_nobody_move_keeps_no_other_from_being_taken_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lapsed(3)
    first, *others = LiveJob.objects.order_by("pk")
    hour_ago = first.enqueued_at - timedelta(hours=1)
    LiveJob.objects.filter(pk=first.pk).update(attempt=3, lease_expires_at=hour_ago)
    # Its place among the dead is taken, by what was restored from a dump say.
    DeadJob.objects.create(**get_store().facts(first), died_at=hour_ago, reason="lost")

    assert {job.id for job in swept().reclaimed} == {job.pk for job in others}
    assert swept().reclaimed == []

    assert LiveJob.objects.get(pk=first.pk).state == State.RUNNING
    told = [each for each in caplog.records if each.message == "job cannot be swept"]
    assert [each.job_id for each in told] == [first.pk] * 2  # type: ignore[attr-defined]


@pytest.mark.vendor("sqlite")
def test_a_database_that_cannot_be_written_is_no_matter_of_one_job(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Who swept believed that all was done, and each of hundreds waited as long as SQLite does.
    lapsed(2)
    worker_id = str(LiveJob.objects.values_list("worker_id", flat=True)[0])
    with closing(sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout = 10")
        for attempt in (swept, lambda: get_store().lose(worker_id, "killed")):
            with pytest.raises(OperationalError, match="locked"):
                attempt()
    assert not caplog.records
    assert len(swept().reclaimed) == 2


def test_each_lost_job_is_one_line_in_the_log_with_its_worker_and_attempt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lapsed(2)
    caplog.clear()

    swept()

    ours = [each for each in caplog.records if each.name == "django_workqueue.sweeper"]
    assert [each.message for each in ours] == ["job taken back"] * 2
    assert {each.job_id for each in ours} == set(LiveJob.objects.values_list("pk", flat=True))  # type: ignore[attr-defined]
    assert {(each.worker_id, each.attempt) for each in ours} == {("a-worker-of-the-tests", 1)}  # type: ignore[attr-defined]


def test_results_and_dead_jobs_past_their_retention_are_purged_and_no_others() -> None:
    now = get_store().now()
    for ttl in (60, None):
        result = app.echo.using(result_ttl=ttl).enqueue(1)
        get_store().cancel(jobs.live(result).pk)
    for _ in range(2):
        jobs.enqueue(lambda: 1)
        (claim,) = jobs.claim()
        get_store().bury(claim, jobs.TERMINAL, jobs.error_of(claim))
    Result.objects.filter(expires_at__lt=now + timedelta(seconds=61)).update(expires_at=now)
    old = DeadJob.objects.first()
    assert old is not None
    DeadJob.objects.filter(pk=old.pk).update(died_at=now - timedelta(days=100))

    report = swept()

    assert report.purged["results"] == report.purged["dead"] == 1
    assert jobs.counts() == (0, 1, 1)


def test_dead_jobs_are_kept_for_ever_where_the_setting_says_so() -> None:
    jobs.enqueue(lambda: 1)
    (claim,) = jobs.claim()
    get_store().bury(claim, jobs.TERMINAL, jobs.error_of(claim))
    DeadJob.objects.update(died_at=get_store().now() - timedelta(days=10_000))

    with jobs.workqueue(DEAD_TTL_SECONDS=None):
        swept()

    assert DeadJob.objects.count() == 1


def test_a_dry_run_says_the_same_and_changes_nothing() -> None:
    lapsed(2)
    before = list(LiveJob.objects.order_by("id").values())

    report = swept(dry_run=True)

    assert len(report.reclaimed) == 2
    assert list(LiveJob.objects.order_by("id").values()) == before
    assert report.as_json()["reclaimed"] == len(swept().reclaimed)


def test_a_sweep_of_a_sound_queue_writes_nothing() -> None:
    app.echo.enqueue(1)
    with CaptureQueriesContext(connection) as captured:
        swept()

    assert captured.captured_queries
    assert all(
        query["sql"].lstrip(" (").upper().startswith(("SELECT", "WITH RECURSIVE"))
        for query in captured
    )


# At intervals


class Timed:
    """A sweeper on a frozen clock that the database's follows, stepped as its loop would."""

    def __init__(self, frozen: clock.Frozen, *faults: Fault) -> None:
        self.frozen = frozen
        self.skew = 0.0
        self._store = with_faults(get_store(), *faults)
        self._began = get_store().now()
        self.sweeper = Sweeper(cast("BaseStore", self), conf.current(), LEASE)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def glance(self) -> tuple[datetime, bool]:
        _, any_running = self._store.glance()
        passed = self.frozen.monotonic() + self.skew
        return self._began + timedelta(seconds=passed), any_running

    def step(self) -> None:
        """Step once, and let the time pass that the step asked for."""
        try:
            seconds = self.sweeper.step()
        except OperationalError as error:
            seconds = self.sweeper._on_fault(error)
        self.frozen.advance(seconds)

    def seconds_until_reclaimed(self) -> float:
        began = self.frozen.monotonic()
        for _ in range(100):
            self.step()
            if LiveJob.objects.get().state == State.READY:
                return self.frozen.monotonic() - began
        pytest.fail("it was never reclaimed")


@pytest.fixture
def frozen() -> Any:
    with clock.Frozen() as frozen:
        yield frozen


SWEEP = 10.0


def test_a_sweeper_that_just_started_reclaims_nothing_for_a_third_of_a_lease(
    frozen: clock.Frozen,
) -> None:
    lapsed()
    timed = Timed(frozen)

    timed.step()
    assert LiveJob.objects.get().state == State.RUNNING
    assert LEASE / 3 <= timed.seconds_until_reclaimed() + SWEEP <= LEASE / 3 + 3 * SWEEP


def test_a_sweeper_that_could_not_reach_the_database_holds_off(frozen: clock.Frozen) -> None:
    fault = Fault("expire", OperationalError("cut"), times=0)
    timed = Timed(frozen, fault)
    for _ in range(5):
        timed.step()
    lapsed()
    fault.left = 1

    timed.step()
    assert fault.bitten == 1
    back = frozen.monotonic()
    timed.step()
    assert LiveJob.objects.get().state == State.RUNNING
    timed.seconds_until_reclaimed()
    assert frozen.monotonic() - back >= LEASE / 6


def test_the_control_without_a_fault_the_next_sweep_reclaims(frozen: clock.Frozen) -> None:
    timed = Timed(frozen)
    for _ in range(5):
        timed.step()
    lapsed()

    assert timed.seconds_until_reclaimed() <= 2 * SWEEP


def test_a_sweeper_whose_clock_parts_from_the_databases_holds_off_and_says_so(
    frozen: clock.Frozen, caplog: pytest.LogCaptureFixture
) -> None:
    timed = Timed(frozen)
    for _ in range(5):
        timed.step()
    lapsed()
    timed.skew = 3_600

    timed.step()

    assert LiveJob.objects.get().state == State.RUNNING
    assert "clocks parted" in jobs.logged(caplog, logging.WARNING)
    timed.seconds_until_reclaimed()


def test_a_fault_of_the_database_is_warned_of_and_the_sweeping_goes_on(
    frozen: clock.Frozen, caplog: pytest.LogCaptureFixture
) -> None:
    fault = Fault("purge", OperationalError("cut"), times=1)
    timed = Timed(frozen, fault)
    lapsed()

    timed.seconds_until_reclaimed()

    assert fault.bitten == 1
    assert "sweep failed" in jobs.logged(caplog)
