"""`relay`: what is committed to an outbox is delivered, in order, and by nobody twice."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from django_workqueue import clock
from django_workqueue.exceptions import LeaseLost, Retry, Snooze, Terminal
from django_workqueue.models import DeadJob, LiveJob, OutboxKey, Result
from django_workqueue.outbox import Message
from django_workqueue.relay import Relays
from django_workqueue.store import Ack, get_store
from tests import jobs
from tests.outboxes import Received, claim, declare, deliver_all, publish, relaying
from tests.processes import wait_until
from tests.threads import in_thread

pytestmark = pytest.mark.usefixtures("transactional_db", "own_destinations")


def test_a_committed_message_is_delivered_with_all_that_was_published() -> None:
    """Case M9."""
    received = Received()
    events = declare(received)
    headers = {"traceparent": "00-abc-def-01", "tenant": "acme"}
    (message_id,) = publish(events, {"order": 7}, key="7", headers=headers)
    row = LiveJob.objects.get()
    deliver_all()
    (message,) = received.messages
    assert message == Message(
        id=message_id,
        destination="events",
        payload={"order": 7},
        key="7",
        attempt=1,
        max_attempts=3,
        headers=headers,
        published_at=row.enqueued_at,
    )
    assert jobs.counts() == (0, 0, 1)


def test_messages_of_one_key_go_in_order_one_at_a_time() -> None:
    running, most = 0, 0
    lock = threading.Lock()

    def handler(message: Message) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        with lock:
            running -= 1

    received = Received(handler)
    events = declare(received)
    publish(events, *range(20), key="a")
    deliver_all()
    assert received.payloads == list(range(20))
    assert most == 1


def test_a_message_that_fails_holds_back_its_key_and_no_other() -> None:
    """Case M4: 1 and 2 are delivered, 4 and 5 never go before 3."""
    failed: list[Any] = []

    def handler(message: Message) -> None:
        if message.payload == "a3" and len(failed) < 2:
            failed.append(message.attempt)
            raise ValueError

    received = Received(handler)
    events = declare(received)
    publish(events, *(f"a{n}" for n in range(1, 6)), key="a")
    publish(events, *(f"b{n}" for n in range(1, 6)), key="b")
    deliver_all()
    delivered = received.payloads
    assert [each for each in delivered if each[0] == "a"] == [
        "a1",
        "a2",
        "a3",
        "a3",
        "a3",
        "a4",
        "a5",
    ]
    assert [each for each in delivered if each[0] == "b"] == ["b1", "b2", "b3", "b4", "b5"]
    assert failed == [1, 2]
    assert jobs.counts() == (0, 0, 10)


def test_a_failed_delivery_hands_back_the_rest_of_its_batch_uncharged() -> None:
    attempts: list[tuple[Any, int]] = []

    def handler(message: Message) -> None:
        attempts.append((message.payload, message.attempt))
        if len(attempts) == 1:
            raise ValueError

    publish(declare(handler, backoff=3600), "a", "b", "c")
    settled = deliver_all(relay_threads=1)
    assert attempts == [("a", 1), ("b", 1), ("c", 1)]
    places = [(each.job.claim.payload, each.place) for each in settled]
    assert places[:3] == [('"a"', "scheduled"), ('"b"', "ready"), ('"c"', "ready")]


@pytest.mark.parametrize(
    ("error", "place", "attempt"),
    [
        (Terminal("gone"), "dead", 1),
        (Snooze(3600), "scheduled", 0),
        (Retry(after=60), "scheduled", 1),
        (ValueError("no"), "scheduled", 1),
        (KeyError("not retried"), "dead", 1),
        (SystemExit(3), "scheduled", 1),
    ],
)
def test_what_a_handler_may_raise(error: BaseException, place: str, attempt: int) -> None:
    def handler(message: Message) -> None:
        raise error

    events = declare(handler, backoff=60, terminal_on=(KeyError,))
    (message_id,) = publish(events, 1)
    deliver_all()
    model: Any = DeadJob if place == "dead" else LiveJob
    job = model.objects.get(pk=message_id)
    assert job.attempt == attempt
    assert place in {"dead", job.state if place != "dead" else ""}


def test_a_backoff_s_function_gets_the_error_and_the_message() -> None:
    given: list[Any] = []

    def backoff(error: BaseException, message: Any) -> float:
        given.append((error.args, message.payload, message.attempt))
        return 0

    def handler(message: Message) -> None:
        if message.attempt == 1:
            raise ValueError("no")

    publish(declare(handler, backoff=backoff), "content")
    deliver_all()
    assert given == [(("no",), "content", 1)]


def test_a_message_that_is_always_refused_dies_and_its_key_waits_for_an_operator() -> None:
    """Case M11, and what a requeue and a discard do to the key's order."""
    refused = True

    def handler(message: Message) -> None:
        if message.payload in {2, 4} and refused:
            raise ValueError("refused")

    received = Received(handler)
    events = declare(received, max_attempts=2)
    ids = publish(events, 1, 2, 3, 4, 5, key="a")
    deliver_all()
    assert received.payloads == [1, 2, 2]
    dead = DeadJob.objects.get()
    assert (dead.pk, dead.reason, dead.lane, dead.errors[-1]["message"]) == (
        ids[1],
        "exhausted",
        "outbox",
        "refused",
    )
    assert LiveJob.objects.filter(state="held", held_reason="key").count() == 3

    refused = False
    assert get_store().requeue(ids[1])
    refused_again = received.payloads
    deliver_all()
    assert received.payloads == [*refused_again, 2, 3, 4, 5]

    refused = True
    ids = publish(events, 4, 5, key="a")
    deliver_all()
    refused = False
    assert received.payloads[-2:] == [4, 4]
    assert get_store().discard(ids[0])
    deliver_all()
    assert received.payloads[-3:] == [4, 4, 5]


def test_a_destination_may_let_its_key_go_on_past_a_dead_message() -> None:
    """Case M11, "at once if the destination says so"."""
    refused = True

    def handler(message: Message) -> None:
        if message.payload == 2 and refused:
            raise Terminal("never")

    received = Received(handler)
    events = declare(received, skip_dead=True)
    ids = publish(events, 1, 2, 3, key="a")
    deliver_all()
    assert received.payloads == [1, 2, 3]
    refused = False
    assert get_store().requeue(ids[1])
    publish(events, 4, key="a")
    deliver_all()
    assert sorted(received.payloads) == [1, 2, 2, 3, 4]


def test_a_cancelled_message_lets_its_key_go_on() -> None:
    received = Received()
    events = declare(received)
    ids = publish(events, 1, 2, 3, key="a")
    get_store().cancel(ids[0])
    get_store().cancel(ids[1])
    deliver_all()
    assert received.payloads == [3]


def test_a_delivery_slower_than_its_lease_is_renewed_and_not_repeated() -> None:
    """Case M10."""
    received = Received(lambda message: threading.Event().wait(1.5))
    publish(declare(received), 1)
    with relaying(lease_seconds=0.6), relaying(lease_seconds=0.6):
        wait_until(Result.objects.exists)
    assert received.payloads == [1]


def test_a_message_of_one_attempt_is_tried_once_and_marked_before() -> None:
    marks: list[bool] = []

    def handler(message: Message) -> None:
        marks.append(LiveJob.objects.get().started_at is not None)
        raise ValueError

    publish(declare(handler, max_attempts=1), 1)
    deliver_all()
    assert marks == [True]
    assert DeadJob.objects.get().reason == "exhausted"


def test_a_message_whose_destination_nobody_knows_waits_uncharged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (message_id,) = publish(declare(Received(), name="elsewhere"), 1)
    monkeypatch.setattr("django_workqueue.outbox.destinations._declared", {})
    received = Received()
    publish(declare(received), 2)
    deliver_all()
    deliver_all()
    assert received.payloads == [2]
    job = LiveJob.objects.get()
    assert (job.pk, job.state, job.attempt) == (message_id, "ready", 0)
    told = "messages wait for a destination that is not declared here"
    assert told in jobs.logged(caplog)

    late = Received()
    declare(late, name="elsewhere")
    deliver_all()
    assert late.payloads == [1]


def test_a_late_holder_changes_nothing() -> None:
    """Cases M1, M2, M3 and M8, on the store's own calls."""
    store = get_store()
    publish(declare(Received()), 1, 2, 3)
    first = claim(limit=10)
    assert len(first) == 3
    assert claim(limit=10) == []
    lapses = first[0].lease_expires_at
    assert store.reclaim(now=lapses - timedelta(milliseconds=1)) == []
    assert len(store.reclaim(now=lapses)) == 3
    second = claim(limit=10)
    assert {each.worker_id for each in first + second} == {"a-relay-of-the-tests"}
    # The first says that it has delivered one, and gives all back.
    assert store.ack([Ack(claim=first[0], value="null")]) == set()
    for each in first:
        with pytest.raises(LeaseLost):
            store.release(each)
    assert store.still_held([each.hold for each in second]) == {each.hold for each in second}
    assert claim(limit=10) == []
    held = store.ack([Ack(claim=each, value="null") for each in second])
    assert held == {each.hold for each in second}
    assert jobs.counts() == (0, 0, 3)


def test_messages_of_one_transaction_are_claimed_in_the_order_of_publishing() -> None:
    """Case M5."""
    events = declare(Received())
    publish(events, 7, 8, 9)
    assert [each.payload for each in claim(limit=2)] == ["7", "8"]
    assert [each.payload for each in claim(limit=2)] == ["9"]


def test_a_key_that_nobody_advanced_is_found_by_the_sweep() -> None:
    """The relay died between its settle and letting the next message go."""
    store = get_store()
    received = Received()
    events = declare(received)
    publish(events, 1, 2, 3, key="a")
    (first,) = claim()
    store.ack([Ack(claim=first, value="null")])
    deliver_all()
    assert received.payloads == []
    jobs_left = LiveJob.objects.filter(state="held").count()
    assert jobs_left == 2
    store.tend_keys()
    deliver_all()
    assert received.payloads == [2, 3]


def test_keys_without_messages_are_forgotten_by_the_sweep() -> None:
    events = declare(Received())
    for key in "abc":
        publish(events, key, key=key)
    deliver_all()
    assert OutboxKey.objects.count() == 3
    assert get_store().tend_keys() == 3
    assert not OutboxKey.objects.exists()


@pytest.mark.vendor("postgresql", "mysql")  # SQLite has one writer at a time.
def test_a_publisher_keeps_nobody_from_settling() -> None:
    """The key's row is locked by a transaction that stays open; the first message is settled."""
    received = Received()
    events = declare(received)
    publish(events, 1, key="a")
    publish(events, "b", key="b")
    opened, close = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            events.publish(2, key="a")
            opened.set()
            assert close.wait(20)

    outcome = in_thread(hold)
    assert opened.wait(20)
    with relaying():
        wait_until(lambda: Result.objects.count() == 2)
        assert sorted(map(str, received.payloads)) == ["1", "b"]
        close.set()
        outcome()
        wait_until(lambda: Result.objects.count() == 3)
    assert received.payloads[-1] == 2


# Ends, faults, and what a handler leaves behind


def test_a_stop_lets_the_delivery_end_and_gives_the_rest_back_uncharged() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def handler(message: Message) -> None:
        begun.set()
        assert go_on.wait(20)

    events = declare(handler)
    publish(events, 1, 2, 3)
    relays = Relays(
        "stopped", lease_seconds=5, poll_seconds=0.02, threads=1, on_settled=lambda settled: None
    )
    relays.start()
    assert begun.wait(20)
    relays.stop()
    go_on.set()
    relays.close(clock.monotonic() + 20)
    assert Result.objects.count() == 1
    assert [(job.state, job.attempt) for job in LiveJob.objects.all()] == [("ready", 0)] * 2


def test_two_relays_of_one_name_do_not_free_each_other_s_messages() -> None:
    """Case M8: a name is no right to a message, the token is."""
    store = get_store()
    publish(declare(Received()), 1, 2)
    (first,) = claim(limit=1)
    (second,) = claim(limit=1)
    assert first.worker_id == second.worker_id
    store.release(first)
    assert store.still_held([first.hold, second.hold]) == {second.hold}


def test_a_destination_that_hangs_holds_up_no_other() -> None:
    release = threading.Event()
    hangs = declare(lambda message: release.wait(20), name="hangs")
    received = Received()
    quick = declare(received, name="quick")
    publish(hangs, *range(8))
    with relaying(threads=2):
        wait_until(lambda: LiveJob.objects.filter(state="running").exists())
        publish(quick, "one")
        wait_until(lambda: received.payloads)
        release.set()


def test_a_handler_that_leaves_a_transaction_open_has_failed() -> None:
    """Case D 100, for a handler: the next message of that thread is delivered."""
    failed: list[int] = []

    def handler(message: Message) -> None:
        if message.attempt == 1:
            failed.append(message.payload)
            transaction.set_autocommit(False)
            LiveJob.objects.exists()

    publish(declare(handler), 1)
    deliver_all(relay_threads=1)
    assert failed == [1]
    result: Any = Result.objects.get()
    assert [error["exception_class"].rpartition(".")[2] for error in result.errors] == [
        "TransactionLeftOpen"
    ]


@pytest.mark.vendor("postgresql")
def test_no_transaction_is_open_while_a_handler_runs() -> None:
    """Case D 102."""
    idle: list[Any] = []

    def handler(message: Message) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT query FROM pg_stat_activity WHERE datname = current_database() "
                "AND state LIKE 'idle in transaction%'"
            )
            idle.extend(cursor.fetchall())

    publish(declare(handler), 1)
    deliver_all()
    assert idle == []
    assert Result.objects.count() == 1
