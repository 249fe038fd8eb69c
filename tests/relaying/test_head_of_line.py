"""A key that always fails costs the other keys next to nothing."""

from __future__ import annotations

import statistics
import threading
import time

import pytest

from django_workqueue.models import LiveJob, OutboxKey
from django_workqueue.outbox import Message
from django_workqueue.store import get_store
from tests.outboxes import declare, publish, relaying

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("own_destinations"),
]

KEYS = 50
PER_KEY = 20
ROUNDS = 5
MOST_COST = 0.05


def seconds_of_the_others(*, fails: bool) -> float:
    """Return how long 49 keys take; the messages of the fiftieth fail, if *fails*, or are none."""
    others, done = (KEYS - 1) * PER_KEY, threading.Event()
    lock, count = threading.Lock(), 0

    def handler(message: Message) -> None:
        nonlocal count
        if message.key == "k00":
            raise ValueError("always")
        with lock:
            count += 1
            if count == others:
                done.set()

    # Five times as often as the first delay of the default backoff, which grows.
    events = declare(handler, max_attempts=10_000, backoff=1)
    for number in range(PER_KEY):
        for key in range(0 if fails else 1, KEYS):
            publish(events, number, key=f"k{key:02}")
    began = time.monotonic()
    with relaying():
        assert done.wait(120)
        seconds = time.monotonic() - began
    LiveJob.objects.all().delete()
    OutboxKey.objects.all().delete()
    return seconds


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_key_that_always_fails_costs_the_others_less_than_a_twentieth() -> None:
    pairs = []
    for _ in range(ROUNDS):
        without = seconds_of_the_others(fails=False)
        pairs.append((without, seconds_of_the_others(fails=True)))
    cost = statistics.median(with_it / without for without, with_it in pairs) - 1
    rate = (KEYS - 1) * PER_KEY / statistics.median(without for without, _ in pairs)
    print(f"\n{rate:.0f} messages a second; a key that always fails costs {cost:+.1%}")  # noqa: T201
    assert cost < MOST_COST


def test_messages_behind_one_that_fails_are_in_no_index_that_a_claim_walks() -> None:
    """Case O10: what waits behind a failing key is held, not ready and stepped over."""
    events = declare(lambda message: None)
    publish(events, *range(300), key="stuck")
    publish(events, "free")
    ready = LiveJob.objects.filter(state="ready")
    assert sorted(job.payload for job in ready if job.order_key != "stuck") == ["free"]
    assert ready.count() == 2
    assert get_store().tend_keys() == 0
    assert ready.count() == 2
