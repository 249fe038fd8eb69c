"""`testing.deliver_outbox`: messages reach their handlers inside the test's own transaction."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import transaction
from django.test import TestCase, override_settings

from django_workqueue import outbox
from django_workqueue.compat import TaskResultStatus, task_finished
from django_workqueue.exceptions import InTransaction, NotInTransaction
from django_workqueue.models import DeadJob, LiveJob
from django_workqueue.outbox import Message, Retry, Terminal, destinations
from django_workqueue.testing import deliver_outbox, run_jobs
from django_workqueue.testing.fixture import WorkQueue
from tests import jobs
from tests.jobs import app, body


@pytest.fixture(autouse=True)
def _destinations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Destinations that a test declares are gone after it."""
    monkeypatch.setattr(destinations, "_declared", dict(destinations._declared))


class Receiver:
    """A destination that notes what it was given, and raises what it was told to raise."""

    def __init__(self, name: str = "events", **options: Any) -> None:
        self.got: list[Any] = []
        self.errors: list[Exception] = []
        self.destination = outbox.destination(name, **options)(self.receive)

    def receive(self, message: Message) -> None:
        self.got.append(message.payload)
        if self.errors:
            raise self.errors.pop(0)

    def publish(self, *payloads: Any, **options: Any) -> None:
        with transaction.atomic(using=options.get("using")):
            for payload in payloads:
                self.destination.publish(payload, **options)


class InsideTestCase(TestCase):
    """Case D 98, for messages."""

    def test_published_messages_are_delivered(self) -> None:
        receiver = Receiver()
        receiver.publish({"order": 7}, headers={"tenant": "acme"})
        (message,) = deliver_outbox()
        assert (message.payload, message.headers) == ({"order": 7}, {"tenant": "acme"})
        assert receiver.got == [{"order": 7}]
        assert not LiveJob.objects.exists()

    def test_publishing_outside_of_atomic_is_refused_as_it_is_outside_of_tests(self) -> None:
        """Case M7, which the transaction of TestCase must not hide."""
        with pytest.raises(NotInTransaction):
            Receiver().destination.publish(1)


@pytest.mark.django_db
def test_messages_of_a_key_come_in_order() -> None:
    """Cases M4 and M5."""
    receiver = Receiver()
    receiver.publish(1, 2, 3, key="a")
    receiver.publish(4, key="a")
    deliver_outbox()
    assert receiver.got == [1, 2, 3, 4]


def test_failed_message_holds_back_its_key_and_no_other(workqueue: WorkQueue) -> None:
    receiver = Receiver(backoff=60)
    receiver.errors = [ValueError("boom")]
    receiver.publish(1, 2, key="a")
    receiver.publish(3, key="b")
    with pytest.raises(ValueError, match="boom") as raised:
        workqueue.deliver_outbox()
    assert raised.value.__notes__ == [
        "Raised by attempt 1 of outbox:events, which is scheduled now."
    ]
    workqueue.deliver_outbox()
    assert receiver.got == [1, 3]
    workqueue.clock.advance(60)
    workqueue.deliver_outbox()
    assert receiver.got == [1, 3, 1, 2]


@pytest.mark.django_db
def test_dead_message_is_where_an_operator_finds_it() -> None:
    """Case M11."""
    receiver, other = Receiver(), Receiver("skipping", skip_dead=True)
    for each in (receiver, other):
        each.errors = [Terminal("never")]
        each.publish(1, 2, key="a")
    assert len(deliver_outbox(raise_errors=False)) == 3
    assert (receiver.got, other.got) == ([1], [1, 2])
    assert sorted(DeadJob.objects.values_list("queue_name", flat=True)) == [
        "outbox:events",
        "outbox:skipping",
    ]


@pytest.mark.django_db
def test_what_a_handler_asks_for_is_no_error() -> None:
    receiver = Receiver()
    receiver.errors = [Retry(after=30)]
    receiver.publish(1)
    assert len(deliver_outbox()) == 1
    assert LiveJob.objects.get().state == "scheduled"


@pytest.mark.django_db
def test_only_the_destinations_asked_for_are_served() -> None:
    first, second = Receiver("first"), Receiver("second")
    first.publish(1)
    second.publish(2)
    deliver_outbox(destinations=[second.destination])
    assert (first.got, second.got) == ([], [2])


@pytest.mark.django_db
def test_writes_and_messages_of_a_handler_are_the_test_s() -> None:
    def handle(message: Message) -> None:
        with transaction.atomic():
            Group.objects.create(name=message.payload)
            transaction.on_commit(lambda: seen.append("committed"))
            if message.payload == "first":
                destination.publish("second")

    seen: list[str] = []
    destination = outbox.destination("groups")(handle)
    finished: list[Any] = []
    task_finished.connect(finished.append)
    try:
        with transaction.atomic():
            destination.publish("first")
        deliver_outbox()
    finally:
        task_finished.disconnect(finished.append)
    assert sorted(Group.objects.values_list("name", flat=True)) == ["first", "second"]
    assert (seen, finished) == (["committed", "committed"], [])


@pytest.mark.django_db
def test_endless_messages_are_noticed() -> None:
    def handle(message: Message) -> None:
        with transaction.atomic():
            destination.publish(message.payload + 1)

    destination = outbox.destination("echo")(handle)
    with transaction.atomic():
        destination.publish(0)
    with pytest.raises(AssertionError, match=r"deliver_outbox\(\) must come to its end within"):
        deliver_outbox(max_messages=5)
    with transaction.atomic(), pytest.raises(InTransaction):
        deliver_outbox()


@pytest.mark.django_db(databases=["default", "other"])
@override_settings(WORKQUEUE={"OUTBOX_DATABASES": ("default", "other")})
def test_jobs_of_another_database_are_moved_and_then_run() -> None:
    with transaction.atomic(using="other"):
        result = outbox.enqueue(app.run, body(lambda: "done"), using="other")
    assert (run_jobs(), jobs.counts()) == ([], (0, 0, 0))
    assert deliver_outbox() == []
    assert [(ran.id, ran.return_value) for ran in run_jobs()] == [(result.id, "done")]
    result.refresh()
    assert result.status == TaskResultStatus.SUCCESSFUL
    assert not LiveJob.objects.using("other").exists()


@pytest.mark.django_db(databases=["default", "other"])
@override_settings(WORKQUEUE={"OUTBOX_DATABASES": ("default", "other")})
def test_outboxes_of_all_databases_are_served() -> None:
    receiver = Receiver()
    receiver.publish(1, using="default")
    receiver.publish(2, key="a", using="other")
    deliver_outbox()
    assert sorted(receiver.got) == [1, 2]
