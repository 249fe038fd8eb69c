"""`results`: a job wherever it is, as Django's TaskResult."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest

from django_workqueue import clock, results
from django_workqueue.compat import TaskResultStatus
from django_workqueue.exceptions import Snooze, WorkerLost, WorkQueueError
from django_workqueue.states import DeathReason
from django_workqueue.store import Ack, get_store
from tests import jobs
from tests.jobs import app

real = pytest.mark.usefixtures("transactional_db")


def find(result: Any) -> Any:
    return results.find("default", uuid.UUID(result.id))


def refreshed(result: Any) -> Any:
    result.refresh()
    return result


@pytest.mark.django_db
def test_a_job_is_found_in_one_statement_wherever_it_is(django_assert_num_queries: Any) -> None:
    waiting, buried, done = (app.echo.using(queue_name=name).enqueue(1) for name in "abc")
    (claim,) = jobs.claim("b")
    get_store().bury(claim, DeathReason.TERMINAL, jobs.error_of(claim))
    (claim,) = jobs.claim("c")
    get_store().ack([Ack(claim=claim, value="7")])

    expected = ((waiting, "ready", "a"), (buried, "dead", "b"), (done, "succeeded", "c"))
    for result, state, queue_name in expected:
        with django_assert_num_queries(1):
            found = find(result)
        assert (found.state, found.queue_name) == (state, queue_name)
    assert results.find("default", uuid.uuid4()) is None


@real
def test_each_state_has_its_django_status() -> None:
    later = app.echo.using(run_after=jobs.in_an_hour()).enqueue(1)
    ready = app.echo.enqueue(1)
    assert refreshed(later).status == refreshed(ready).status == TaskResultStatus.READY

    (claim,) = jobs.claim()
    assert refreshed(ready).status == TaskResultStatus.RUNNING
    assert ready.worker_ids == [claim.worker_id]
    assert ready.started_at == ready.last_attempted_at == claim.claimed_at
    assert ready.finished_at is None
    with pytest.raises(ValueError, match="not finished"):
        _ = ready.return_value

    get_store().cancel(uuid.UUID(later.id))
    assert refreshed(later).status == TaskResultStatus.FAILED
    assert later.is_finished


@real
def test_a_failed_job_shows_every_attempt_with_its_traceback() -> None:
    def fail() -> None:
        raise KeyError("order 7")

    result: Any = jobs.enqueue(fail)
    jobs.drain()
    refreshed(result)

    assert result.status == TaskResultStatus.FAILED
    assert result.attempts == 3
    assert [error.exception_class for error in result.errors] == [KeyError] * 3
    assert all('raise KeyError("order 7")' in error.traceback for error in result.errors)
    assert result.started_at < result.last_attempted_at <= result.finished_at
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value


@real
def test_a_success_after_failures_keeps_their_errors() -> None:
    errors = [ValueError("one"), ValueError("two")]

    def third_time_lucky() -> str:
        if errors:
            raise errors.pop(0)
        return "done"

    result: Any = jobs.enqueue(third_time_lucky)
    jobs.drain()
    refreshed(result)

    assert result.return_value == "done"
    assert ["ValueError: one" in each.traceback for each in result.errors] == [True, False]
    assert result.attempts == 3


@real
def test_a_start_that_was_refunded_is_no_attempt_of_the_result() -> None:
    naps = [Snooze(0), Snooze(0)]

    def sleepy() -> str:
        if naps:
            raise naps.pop()
        return "awake"

    result: Any = jobs.enqueue(sleepy)
    jobs.drain()
    refreshed(result)

    assert result.return_value == "awake"
    assert result.attempts == 1
    assert len(result.worker_ids) == 1
    assert result.errors == []


@real
def test_a_lost_attempt_names_a_class_that_can_be_imported() -> None:
    result = app.echo.using(max_attempts=1).enqueue(1)
    (claim,) = jobs.claim(lease_seconds=1)
    get_store().mark_started([claim])
    get_store().reclaim(now=claim.lease_expires_at + timedelta(seconds=1))
    refreshed(result)

    assert result.status == TaskResultStatus.FAILED
    (error,) = result.errors
    assert error.exception_class is WorkerLost
    assert "worker lost" in error.traceback


@real
def test_a_retention_of_half_a_second_is_half_a_second() -> None:
    result = app.echo.using(result_ttl=0.5).enqueue(1)

    jobs.drain()

    row = jobs.finished(result)
    # SQLite's clock has milliseconds.
    kept = (row.expires_at - row.finished_at).total_seconds()
    assert kept == pytest.approx(0.5, abs=0.002)


def test_an_attempt_without_an_exception_names_the_root_of_our_errors() -> None:
    record = {"exception_class": "", "outcome": "expired", "message": "late", "traceback": ""}

    error = results.task_error(record)

    assert error.exception_class is WorkQueueError
    assert error.traceback == "late"


@pytest.mark.django_db
def test_a_moment_of_a_run_is_never_later_than_the_database_when_it_is_told() -> None:
    app.echo.enqueue(1)
    (claim,) = jobs.claim()

    for _ in range(50):
        moment = claim.moment(clock.monotonic())
        assert claim.claimed_at <= moment <= get_store().now()
