"""Keeping a job and ending it: L9, and the claim in its holder's hands."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import transaction
from django.test import override_settings

from django_workqueue.models import DeadJob
from django_workqueue.queues import (
    Cancelled,
    Claim,
    LeaseLost,
    PayloadError,
    Queue,
)
from tests.database_clock import EPOCH, DatabaseClock
from tests.queues.pull import claim_one, claim_one_of, lapse, live
from tests.sound import assert_sound

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_claim_shows_its_job(queue: Queue, database_clock: DatabaseClock) -> None:
    job_id = queue.enqueue({"n": (1, "é")}, kind="k", max_attempts=4, headers={"tenant": "a"})

    claim = claim_one(queue, "agent-7", lease_seconds=2.5)

    assert (claim.id, claim.kind, claim.worker, claim.queue_name) == (
        job_id,
        "k",
        "agent-7",
        "agents",
    )
    assert (claim.payload, claim.headers) == ({"n": [1, "é"]}, {"tenant": "a"})
    assert (claim.attempt, claim.max_attempts, claim.fence) == (1, 4, 1)
    assert claim.lease_expires_at == EPOCH + timedelta(seconds=2.5)
    assert claim.token == live(job_id).token


def test_extend_moves_the_end_of_the_lease(queue: Queue, database_clock: DatabaseClock) -> None:
    claim = claim_one_of(queue, lease_seconds=10)
    database_clock.advance(9)

    assert claim.extend() == claim.lease_expires_at == EPOCH + timedelta(seconds=19)
    assert claim.extend(0.25) == EPOCH + timedelta(seconds=9.25)
    assert live(claim.id).lease_expires_at == claim.lease_expires_at


def test_a_holder_that_is_late_still_holds_a_job_nobody_took(queue: Queue) -> None:
    claim = claim_one_of(queue)
    lapse(claim)
    claim.extend()
    lapse(claim)
    claim.ack()
    assert_sound(claim.id)


def test_l9_a_cancel_is_told_to_the_holder_and_a_second_one_answers_false(queue: Queue) -> None:
    claim = claim_one_of(queue)

    assert queue.cancel(claim.id)
    with pytest.raises(Cancelled) as caught:
        claim.extend()
    assert caught.value.job_id == claim.id
    assert not queue.cancel(claim.id)
    assert live(claim.id).state == "running"


def test_ack_wins_over_a_cancel(queue: Queue) -> None:
    claim = claim_one_of(queue)
    queue.cancel(claim.id)
    claim.ack("done")

    view = queue.get(claim.id)
    assert view is not None
    assert (view.state, view.value) == ("succeeded", "done")


@pytest.mark.parametrize(
    "settle",
    [
        pytest.param(lambda claim: claim.retry(0, "x"), id="retry"),
        pytest.param(lambda claim: claim.release(), id="release"),
        pytest.param(lambda claim: claim.bury("x"), id="bury"),
    ],
)
def test_every_other_end_of_a_cancelled_job_is_cancelled(
    queue: Queue, settle: Callable[[Claim], str]
) -> None:
    claim = claim_one_of(queue)
    queue.cancel(claim.id)

    assert settle(claim) == "cancelled"
    view = queue.get(claim.id)
    assert view is not None
    assert view.state == "cancelled"
    assert_sound(claim.id)


def test_a_waiting_job_is_cancelled_at_once(queue: Queue) -> None:
    job_id = queue.enqueue("x", delay=60)

    assert queue.cancel(str(job_id))
    assert not queue.cancel(job_id)
    view = queue.get(job_id)
    assert view is not None
    assert view.state == "cancelled"
    assert queue.claim("w") == []


def test_ack_keeps_the_value(queue: Queue) -> None:
    claim = claim_one_of(queue, kind="k", priority=7)
    claim.ack({"pages": 3})

    view = queue.get(claim.id)
    assert view is not None
    assert (view.state, view.value, view.payload) == ("succeeded", {"pages": 3}, "x")
    assert (view.kind, view.priority, view.attempt, view.errors) == ("k", 7, 1, [])
    assert view.ended_at is not None
    assert view.ended_at >= view.enqueued_at
    with pytest.raises(LeaseLost):
        claim.ack()


def test_a_value_that_cannot_be_kept_is_refused_while_the_job_is_held(queue: Queue) -> None:
    claim = claim_one_of(queue)
    with pytest.raises(PayloadError, match=r"^value\.a must be a finite number"):
        claim.ack({"a": math.nan})
    claim.ack({"a": None})


def test_ack_commits_or_rolls_back_with_the_callers_transaction(queue: Queue) -> None:
    claim = claim_one_of(queue)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        claim.ack()
        raise ZeroDivisionError
    assert live(claim.id).state == "running"

    with transaction.atomic():
        claim.ack()
    assert_sound(claim.id)


def test_retry_waits_for_its_delay(queue: Queue, database_clock: DatabaseClock) -> None:
    claim = claim_one_of(queue, max_attempts=3)

    assert claim.retry(0.5, "busy") == "scheduled"
    database_clock.advance(0.499)
    assert queue.claim("w") == []
    database_clock.advance(0.001)
    assert claim_one(queue).attempt == 2


@override_settings(WORKQUEUE={"BACKOFF": {"base": 4, "factor": 3, "jitter": False}})
def test_retry_without_a_delay_takes_the_settings_backoff(
    queue: Queue, database_clock: DatabaseClock
) -> None:
    claim_one_of(queue, max_attempts=3).retry()
    assert queue.next_due() == EPOCH + timedelta(seconds=4)
    database_clock.advance(4)
    claim_one(queue).retry()
    assert queue.next_due() == EPOCH + timedelta(seconds=16)


def test_retry_of_the_last_attempt_is_dead_as_exhausted(queue: Queue) -> None:
    claim = claim_one_of(queue, max_attempts=1)

    assert claim.retry(error=ValueError("a\x00b")) == "dead"
    view = queue.get(claim.id)
    assert view is not None
    assert (view.state, view.reason) == ("dead", "exhausted")
    [error] = view.errors
    assert (error["attempt"], error["worker"]) == (1, "w")
    assert error["exception_class"] == "builtins.ValueError"
    assert error["message"] == r"a\x00b"
    assert error["traceback"].endswith("ValueError: a\\x00b\n")


@override_settings(WORKQUEUE={"ERROR_MAX_BYTES": 1024})
def test_an_error_text_is_made_storable_and_cut(queue: Queue) -> None:
    claim = claim_one_of(queue)
    claim.bury("\ud800\x00" + "é" * 2000)

    [error] = DeadJob.objects.get(pk=claim.id).errors
    assert error["cut"] is True
    assert len(error["message"].encode()) <= 1024
    assert error["message"].startswith(r"\ud800\x00")


def test_bury_is_dead_whatever_is_left_of_the_budget(queue: Queue) -> None:
    claim = claim_one_of(queue, max_attempts=9)

    assert claim.bury("the card expired") == "dead"
    view = queue.get(claim.id)
    assert view is not None
    assert (view.reason, view.errors[0]["message"]) == ("terminal", "the card expired")


def test_release_is_not_charged(queue: Queue, database_clock: DatabaseClock) -> None:
    claim = claim_one_of(queue, max_attempts=1)

    assert claim.release() == "ready"
    again = claim_one(queue)
    assert (again.attempt, again.fence) == (1, 2)
    assert again.release(delay=1.5) == "scheduled"
    assert queue.next_due() == EPOCH + timedelta(seconds=1.5)
