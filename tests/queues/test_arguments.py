"""L11 and L19: what cannot be used is refused by the argument's name, or kept exactly."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import override_settings

from django_workqueue.queues import (
    PayloadError,
    Queue,
)
from tests.database_clock import EPOCH, DatabaseClock
from tests.queues.pull import claim_one_of, live

pytestmark = pytest.mark.django_db(transaction=True)


HUGE = 10**5000
NO_NUMBERS = [-1, -0.5, math.nan, math.inf, -math.inf, True, "1", HUGE]


def each(*values: Any) -> pytest.MarkDecorator:
    """Run a test with each of *values*, named by its repr."""
    ids = ["huge" if value is HUGE else repr(value) for value in values]
    return pytest.mark.parametrize("value", values, ids=ids)


def refused(argument: str, call: Callable[[], object]) -> None:
    with pytest.raises(ValueError) as caught:
        call()
    assert str(caught.value).startswith(f"{argument} must "), str(caught.value)
    assert len(str(caught.value)) < 400


@each(*NO_NUMBERS, None, 0, 10 * 365 * 86_400, 86_400.001)
def test_l11_a_lease_must_be_above_0_and_at_most_a_day(queue: Queue, value: Any) -> None:
    claim = claim_one_of(queue)
    refused("lease_seconds", lambda: queue.claim("w", lease_seconds=value))
    if value is not None:
        refused("lease_seconds", lambda: claim.extend(value))


def test_l11_the_refusal_names_the_rule_and_the_value(queue: Queue) -> None:
    with pytest.raises(ValueError) as caught:
        queue.claim("w", lease_seconds=315_360_000)
    assert str(caught.value) == (
        "lease_seconds must be a number of seconds above 0 and at most 86400, got 315360000. "
        "Set it above the longest pause between two extends; a job that needs longer calls "
        "extend()."
    )


@each(*NO_NUMBERS, None, 0, 1.5, 1_001)
def test_l19_a_limit_is_a_whole_number_and_never_everything(queue: Queue, value: Any) -> None:
    queue.enqueue("x")
    refused("limit", lambda: queue.claim("w", limit=value))
    assert queue.stats().ready == 1


@each(*NO_NUMBERS)
def test_l19_a_delay_is_0_or_more(queue: Queue, value: Any) -> None:
    claim = claim_one_of(queue)
    refused("delay", lambda: queue.enqueue("x", delay=value))
    refused("delay", lambda: claim.retry(value))
    refused("delay", lambda: claim.release(value))
    refused("expires", lambda: queue.enqueue("x", expires=value))
    claim.ack()


@each(*NO_NUMBERS, 0, 1.0, 99_999)
def test_l19_max_attempts_is_a_whole_number_above_0(queue: Queue, value: Any) -> None:
    refused("max_attempts", lambda: queue.enqueue("x", max_attempts=value))


@each(101, -101, 0.5, True, None)
def test_l19_a_priority_is_djangos(queue: Queue, value: Any) -> None:
    refused("priority", lambda: queue.enqueue("x", priority=value))


def test_l19_fractional_delays_are_kept_exactly(
    queue: Queue, database_clock: DatabaseClock
) -> None:
    for delay in (0.001, 0.25, 1.5, 86_400.125):
        job_id = queue.enqueue("x", delay=delay)
        assert live(job_id).run_after == EPOCH + timedelta(seconds=delay)


REFUSED: dict[str, tuple[str, Callable[[Queue], object]]] = {
    "queue without a name": ("name", lambda queue: Queue("")),
    "queue with a long name": ("name", lambda queue: Queue("x" * 256)),
    "queue with NUL in its name": ("name", lambda queue: Queue("a\x00b")),
    "worker without a name": ("worker", lambda queue: queue.claim("")),
    "worker None": ("worker", lambda queue: queue.claim(wrong(None))),
    "claim of kind 7": ("kind", lambda queue: queue.claim("w", kind=wrong(7))),
    "kind with a lone surrogate": ("kind", lambda queue: queue.enqueue("x", kind="\ud800")),
    "seconds for a moment": ("run_after", lambda queue: queue.enqueue("x", run_after=wrong(60))),
    "the year 1": ("run_after", lambda queue: queue.enqueue("x", run_after=datetime(1, 1, 1))),
    "the end of time, though a delay wins": (
        "run_after",
        lambda queue: queue.enqueue("x", delay=1, run_after=datetime.max),
    ),
    "pause of 60": ("until", lambda queue: queue.pause(wrong(60))),
    "empty unique key": ("unique_key", lambda queue: queue.enqueue("x", unique_key="")),
    "unique key of bytes": ("unique_key", lambda queue: queue.enqueue("x", unique_key=wrong(b"k"))),
    "unique key with NUL": ("unique_key", lambda queue: queue.enqueue("x", unique_key="a\x00b")),
    "one key for many": (
        "unique_key",
        lambda queue: queue.enqueue_many(["x"], unique_key=wrong("k")),
    ),
    "headers in a list": ("headers", lambda queue: queue.enqueue("x", headers=wrong([1]))),
    "NaN in headers": ("headers.a", lambda queue: queue.enqueue("x", headers={"a": math.nan})),
    "an object": ("payload", lambda queue: queue.enqueue(object())),
    "bytes inside": ("payload.a[0]", lambda queue: queue.enqueue({"a": [b"x"]})),
    "id that is none": ("job_id", lambda queue: queue.get("7")),
    "id 7": ("job_id", lambda queue: queue.cancel(wrong(7))),
    "error None": ("error", lambda queue: claim_one_of(queue).bury(wrong(None))),
}


def wrong(value: Any) -> Any:
    """Return *value*, of a type that the call does not take."""
    return value


@pytest.mark.parametrize("what", REFUSED)
def test_l19_what_cannot_be_used_is_refused_by_name(queue: Queue, what: str) -> None:
    argument, call = REFUSED[what]
    refused(argument, lambda: call(queue))


@override_settings(WORKQUEUE={"PAYLOAD_MAX_BYTES": 1024})
def test_a_payload_is_held_to_the_settings_limit(queue: Queue) -> None:
    queue.enqueue("x" * 1022)
    with pytest.raises(PayloadError, match="must be at most 1024 bytes of JSON, got 1025 bytes"):
        queue.enqueue("x" * 1023)
    assert queue.stats().ready == 1
