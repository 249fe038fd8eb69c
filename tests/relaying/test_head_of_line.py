"""A key that always fails costs the other keys next to nothing.

What it costs in time is measured by `python -m tests.benchmarks.head_of_line`; here is counted what
it makes of work.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F

from django_workqueue.models import LiveJob
from django_workqueue.outbox import Message
from django_workqueue.relay_thread import BATCH, RelayThread
from django_workqueue.store import get_store
from tests.outboxes import Received, declare, publish, relaying
from tests.processes import wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("own_destinations"),
]

KEYS = 49
PER_KEY = 4


def fail_always(message: Message) -> None:
    if message.key == "failing":
        raise ValueError("always")


def age_all_but(key: str) -> None:
    """Let *key* be first at each claim, as if the others had been published after its retry."""
    LiveJob.objects.exclude(order_key=key).update(run_after=F("run_after") + timedelta(days=1))


def without_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RelayThread, "_put_failed_last", lambda self: None)


@pytest.mark.parametrize("is_last", [True, False], ids=["", "control"])
def test_a_key_that_always_fails_sends_the_others_back_at_its_first_failure_only(
    is_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its failures costs one claim's place and one settle, not nine claims more.

    The control delivers in the order of the claim, in which it is the first each time.
    """
    if not is_last:
        without_turns(monkeypatch)
    events = declare(Received(fail_always), max_attempts=10_000)
    keys = [f"k{number:02}" for number in range(KEYS)]
    for number in range(PER_KEY):
        for key in ["failing", *keys]:
            publish(events, number, key=key)
    age_all_but("failing")
    with relaying(threads=1, poll_seconds=0.001) as settled:
        # In the control it never comes to another while it is due at every claim.
        wait_until(lambda: len([each for each in settled if each.place == "scheduled"]) > 15)
        failed = places(settled)["scheduled"]
        given_back = places(settled)["ready"]
        delivered = places(settled)["succeeded"]
        if is_last:
            wait_until(lambda: len(places(settled)["succeeded"]) == KEYS * PER_KEY)
    assert set(failed) == {"failing"}
    if not is_last:
        assert len(given_back) >= 10 * (BATCH - 1)
        assert not delivered
        return
    assert len(given_back) == BATCH - 1
    assert len(delivered) >= 10 * (BATCH - 1)
    assert set(places(settled)["succeeded"]) == set(keys)


def places(settled: list[Any]) -> dict[str, list[str]]:
    """Return the keys of what was settled, by where it is then."""
    found: dict[str, list[str]] = defaultdict(list)
    for each in list(settled):
        found[each.place].append(each.job.claim.order_key)
    return found


@pytest.mark.parametrize("is_fair", [True, False], ids=["", "control"])
def test_a_message_that_failed_has_its_turn_where_batches_are_too_slow_to_end(
    is_fair: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Always the last of a batch that is handed back before its end, it would wait for all."""
    monkeypatch.setattr("django_workqueue.relay_thread.HAND_BACK_SECONDS", 0.01)
    if not is_fair:
        never = property(lambda self: False, lambda self, value: None)
        monkeypatch.setattr(RelayThread, "_was_slow", never, raising=False)

    def handler(message: Message) -> None:
        threading.Event().wait(0.02)
        if message.payload == "again" and message.attempt == 1:
            raise ValueError

    received = Received(handler)
    events = declare(received)
    publish(events, "again", *range(20))
    age_all_but("none")
    LiveJob.objects.filter(payload="again").update(run_after=F("run_after") - timedelta(days=1))
    with relaying(threads=1):
        wait_until(lambda: len(received.payloads) == 22)
    second = received.payloads.index("again", 1)
    assert second <= 3 if is_fair else second > 10


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
