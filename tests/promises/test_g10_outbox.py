"""G10: a message is delivered at least once if its transaction commits and never otherwise, and
within its key, first deliveries follow the order of the commits.
"""

from __future__ import annotations

import time
import uuid
from types import SimpleNamespace

import pytest
from django.db import transaction

from django_workqueue import ids
from django_workqueue.models import DeadJob, LiveJob
from django_workqueue.outbox import Message
from django_workqueue.store import get_store
from tests.outboxes import Received, claim, declare, deliver_all, publish
from tests.relaying.storms import publisher
from tests.threads import in_thread
from tests.timescale import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("own_destinations"),
]

KILLED = 9


class Abandoned(Exception):
    """Ends a transaction of these tests."""


def test_g10_a_message_is_delivered_exactly_when_its_transaction_commits() -> None:
    received = Received()
    events = declare(received)
    with pytest.raises(Abandoned), transaction.atomic():
        events.publish("rolled back", key="a")
        raise Abandoned
    with transaction.atomic():
        events.publish("committed", key="a")
        with pytest.raises(Abandoned), transaction.atomic():
            events.publish("rolled back with its savepoint", key="a")
            raise Abandoned
        in_thread(deliver_all)()
        assert received.payloads == []
    deliver_all()
    assert received.payloads == ["committed"]


def test_g10_a_publisher_killed_between_commit_and_its_hooks_is_heard() -> None:
    """Case M6. The control beside it: killed before COMMIT, there is nothing."""
    processes = [publisher(when, key, "default") for when, key in _ENDS]
    assert [each.wait(2 * PATIENCE_SECONDS) for each in processes] == [KILLED] * len(_ENDS)
    received = Received()
    declare(received, name="storm")
    deliver_all()
    assert received.payloads == ["die-after"]


_ENDS = (("die-after", "a"), ("die-before", "b"))


def test_g10_deliveries_follow_commits_whatever_the_publishers_clocks_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Case O7: two publishers five seconds apart take turns, and message 3 fails at first."""
    failed: list[int] = []

    def handler(message: Message) -> None:
        if message.payload == 3 and len(failed) < 2:
            failed.append(message.payload)
            raise ValueError

    received = Received(handler)
    events = declare(received)
    published: list[uuid.UUID] = []
    for number in range(1, 11):
        ahead = 5 * (number % 2) * 10**9
        clock = SimpleNamespace(time_ns=lambda ahead=ahead: time.time_ns() + ahead)
        monkeypatch.setattr(ids, "time", clock)
        monkeypatch.setattr(ids, "_last", 0)  # Another process has made no id yet.
        published += publish(events, number, key="a")
    assert published != sorted(published), "control: the ids tell another order"
    deliver_all(relay_threads=3)
    assert received.payloads == [1, 2, 3, 3, 3, 4, 5, 6, 7, 8, 9, 10]


def test_g10_a_relay_that_dies_with_a_message_in_hand_delays_it_and_its_key_only() -> None:
    received = Received()
    events = declare(received)
    publish(events, "a1", "a2", key="a")
    publish(events, "b1", key="b")
    (taken, other) = claim()
    get_store().release(other)
    deliver_all()
    assert received.payloads == ["b1"]
    get_store().reclaim(now=taken.lease_expires_at)
    deliver_all()
    assert received.payloads == ["b1", "a1", "a2"]


def test_g10_a_message_is_never_lost_to_a_destination_that_refuses_it() -> None:
    events = declare(lambda message: 1 / 0, max_attempts=2)
    (message_id,) = publish(events, "content", key="a")
    (behind,) = publish(events, "behind", key="a")
    deliver_all()
    assert DeadJob.objects.get().pk == message_id
    assert LiveJob.objects.get().pk == behind
