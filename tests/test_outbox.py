"""`outbox`: declaring destinations, and publishing in the caller's transaction."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import DatabaseError, transaction

from django_workqueue import outbox
from django_workqueue.exceptions import NotInTransaction, PayloadError
from django_workqueue.models import LiveJob, OutboxKey, Seen
from django_workqueue.outbox import Message
from django_workqueue.store import Ack, BaseStore, get_store
from django_workqueue.store.purging import SEEN_MARGIN_SECONDS
from tests import jobs
from tests.outboxes import claim
from tests.threads import together

pytestmark = pytest.mark.usefixtures("own_destinations")
real = pytest.mark.usefixtures("transactional_db")


class Failed(Exception):
    pass


def declare(name: str = "events", **options: Any) -> outbox.Destination:
    return outbox.destination(name, **options)(lambda message: None)


def row(message_id: uuid.UUID) -> Any:
    return LiveJob.objects.get(pk=message_id)


def states() -> list[tuple[Any, str, str]]:
    """Return payload, state and held reason of every message, in the order of publishing."""
    rows = LiveJob.objects.filter(lane="outbox").order_by("enqueued_at", "id")
    return [(job.payload, job.state, job.held_reason) for job in rows]


# Publishing


@real
def test_a_message_is_a_row_of_its_transaction() -> None:
    """Cases M6 and D 94: of a rolled-back transaction or savepoint, no row."""
    events = declare()
    with transaction.atomic():
        events.publish("A")
        with pytest.raises(Failed), transaction.atomic():
            events.publish("B")
            raise Failed
        events.publish("C")
    with pytest.raises(Failed), transaction.atomic():
        events.publish("D")
        raise Failed
    assert [payload for payload, *_ in states()] == ["A", "C"]


@real
def test_publishing_outside_a_transaction_is_refused_and_writes_nothing() -> None:
    """Case M7."""
    events = declare()
    with pytest.raises(NotInTransaction) as refused:
        events.publish({"order": 7}, key="7")
    assert str(refused.value) == (
        "publish() to 'events' must be part of a transaction on 'default', got none. Call it "
        "inside transaction.atomic(using='default'), together with the writes that it tells of; "
        "nothing was written."
    )
    assert jobs.counts() == (0, 0, 0)
    assert not OutboxKey.objects.exists()


@real
def test_what_was_published_is_in_the_row() -> None:
    events = declare(max_attempts=7, result_ttl=604_800)
    with jobs.workqueue(), transaction.atomic():
        message_id = events.publish({"order": 7}, key="7", headers={"tenant": "acme"})
    job = row(message_id)
    assert (job.lane, job.queue_name, job.kind, job.task) == (
        "outbox",
        "outbox:events",
        "message",
        "",
    )
    assert (job.payload, job.headers) == ({"order": 7}, {"tenant": "acme"})
    assert (job.order_key, job.seq, job.state) == ("7", 1, "ready")
    assert (job.max_attempts, job.result_ttl, job.attempt) == (7, 604_800, 0)


@pytest.mark.django_db
def test_content_that_json_lacks_is_refused_before_any_sql() -> None:
    events = declare()
    with transaction.atomic(), pytest.raises(PayloadError, match="payload"):
        events.publish({"when": object()}, key="7")
    with transaction.atomic(), pytest.raises(ValueError, match="key"):
        events.publish(1, key="k" * 256)
    with transaction.atomic(), pytest.raises(ValueError, match="headers must be a mapping"):
        events.publish(1, headers=[1])  # type: ignore[arg-type]
    assert not LiveJob.objects.exists()
    assert not OutboxKey.objects.exists()


@pytest.mark.django_db
def test_a_database_without_a_relay_is_refused() -> None:
    events = declare()
    with pytest.raises(ValueError) as refused:
        events.publish(1, using="other")
    assert str(refused.value) == (
        "using of publish() must be one of default, got 'other'. Add the alias to "
        'WORKQUEUE["OUTBOX_DATABASES"], migrate it, and restart the workers: they relay the '
        "outboxes of those databases only."
    )


@pytest.mark.django_db
def test_messages_behind_the_first_of_their_key_are_held() -> None:
    events = declare()
    with transaction.atomic():
        for number in (1, 2, 3):
            events.publish(f"a{number}", key="a")
        events.publish("b1", key="b")
        events.publish("free")
    assert states() == [
        ("a1", "ready", ""),
        ("a2", "held", "key"),
        ("a3", "held", "key"),
        ("b1", "ready", ""),
        ("free", "ready", ""),
    ]


@pytest.mark.django_db
def test_a_destination_without_order_holds_nothing() -> None:
    events = declare(ordered=False)
    with transaction.atomic():
        for number in (1, 2):
            events.publish(number, key="a")
    assert states() == [(1, "ready", ""), (2, "ready", "")]
    assert not OutboxKey.objects.exists()


# Declaring


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"name": ""}, "name must be a string of 1 to 255 characters, got ''"),
        ({"name": "n" * 249}, "name must be a string of at most 248 characters"),
        ({"name": "move"}, "name must be another than 'move', got 'move'"),
        ({"max_attempts": 0}, "max_attempts must be a whole number from 1 to 32767, got 0"),
        ({"max_attempts": True}, "max_attempts must be a whole number"),
        ({"backoff": -1}, "seconds of a backoff must be a number from 0"),
        ({"retry_on": "ValueError"}, "retry_on must be exception classes"),
        ({"ordered": 1}, "ordered must be True or False, got 1"),
        ({"result_ttl": -1}, "result_ttl must be a number of seconds from 0"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError) as refused:
        declare(**options)
    assert told in str(refused.value)


def test_a_name_is_one_handler() -> None:
    def first(message: Message) -> None: ...

    def second(message: Message) -> None: ...

    outbox.destination("mail")(first)
    outbox.destination("mail")(first)  # Its module was loaded again.
    with pytest.raises(ValueError, match=r"name must be that of no other destination than .*first"):
        outbox.destination("mail")(second)


# A plain enqueue beside the data's transaction


@pytest.fixture
def unwarned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody was warned in this process before."""
    monkeypatch.setattr("django_workqueue.transactions._warned", False)


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
@pytest.mark.usefixtures("two_databases", "unwarned")
def test_a_plain_enqueue_in_another_transaction_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = jobs.app
    with transaction.atomic(using="other"), transaction.atomic():
        app.echo.enqueue(1)  # Part of a transaction of the queue's database too.
    app.echo.enqueue(2)
    assert jobs.logged(caplog) == []
    with transaction.atomic(using="other"):
        app.echo.enqueue(3)
        app.echo.enqueue(4)
        app.echo.enqueue_many([((5,), {})])
    assert jobs.logged(caplog) == [
        "tests.app.tasks.echo was enqueued in 'default' inside a transaction on 'other', and "
        "commits without it: use django_workqueue.outbox.enqueue(task, ..., using='other'). Said "
        "once a process."
    ]
    assert "test_outbox.py" in caplog.text


@pytest.mark.django_db(databases=["default", "other"])
@pytest.mark.usefixtures("unwarned")
def test_the_transaction_of_a_test_case_is_no_reason_to_warn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    jobs.app.echo.enqueue_many([((1,), {})])
    assert jobs.logged(caplog) == []


# Receiving


@real
def test_a_message_is_taken_in_once_with_what_the_receiver_writes() -> None:
    message_id = uuid.uuid4()
    with pytest.raises(Failed), transaction.atomic():
        assert not outbox.seen(message_id, consumer="mails")
        raise Failed
    with transaction.atomic():
        assert not outbox.seen(message_id, consumer="mails")
        assert outbox.seen(message_id, consumer="mails")
    with transaction.atomic():
        assert outbox.seen(str(message_id), consumer="mails")
        assert not outbox.seen(message_id, consumer="invoices")
        assert not outbox.seen(str(message_id) + " ", consumer="mails")
    with pytest.raises(NotInTransaction, match=r"outbox\.seen\(\) must be part of a transaction"):
        outbox.seen(message_id, consumer="mails")
    with pytest.raises(ValueError, match="using of outbox.seen"), transaction.atomic():
        outbox.seen(message_id, consumer="mails", using="elsewhere")


@real
def test_two_receivers_at_once_take_a_message_in_once() -> None:
    message_id = uuid.uuid4()

    def take() -> bool:
        with transaction.atomic():
            return outbox.seen(message_id, consumer="mails")

    assert sorted(together(2, take)) == [False, True]


@real
def test_notes_are_kept_as_long_as_a_dead_message_may_come_again() -> None:
    store = get_store()
    with transaction.atomic():
        outbox.seen("old", consumer="c")
        outbox.seen("young", consumer="c")
    age = timedelta(seconds=90 * 86_400 + SEEN_MARGIN_SECONDS)
    Seen.objects.filter(message_id="old").update(seen_at=store.now() - age)
    Seen.objects.filter(message_id="young").update(seen_at=store.now() - age + timedelta(hours=1))
    assert store.forget_seen(None) == 0
    assert store.forget_seen(90 * 86_400, dry_run=True) == 1
    assert store.forget_seen(90 * 86_400) == 1
    assert [row.message_id for row in Seen.objects.all()] == ["young"]


# What was delivered is kept as long as its destination says


@real
def test_delivered_messages_go_after_their_retention_and_undelivered_ones_never() -> None:
    """Case M12."""
    store = get_store()
    week = declare(result_ttl=7 * 86_400)
    with transaction.atomic():
        week.publish("delivered")
    (taken,) = claim()
    with transaction.atomic():
        week.publish("waiting")
    store.ack([Ack(claim=taken, value="null")])
    now = store.now()
    assert store.purge(90 * 86_400, now=now + timedelta(days=6.9))["results"] == 0
    assert store.purge(90 * 86_400, now=now + timedelta(days=7.1))["results"] == 1
    assert store.purge(90 * 86_400, now=now + timedelta(days=3650))["results"] == 0
    assert [payload for payload, *_ in states()] == ["waiting"]


# The transaction and its hooks


@real
def test_a_message_that_cannot_be_written_takes_the_business_row_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Case D 92: there is no moment at which the order is saved and nobody will hear of it."""
    events = declare()

    def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise DatabaseError("the disk is full")

    monkeypatch.setattr(BaseStore, "insert", refuse)
    with pytest.raises(DatabaseError), transaction.atomic():
        Group.objects.create(name="order")
        events.publish(1)
    assert not Group.objects.exists()


@real
def test_a_hook_that_fails_before_ours_loses_no_message() -> None:
    """Case D 96."""
    events = declare()

    def fail() -> None:
        raise Failed

    with pytest.raises(Failed), transaction.atomic():
        transaction.on_commit(fail)
        events.publish("written")
    assert states() == [("written", "ready", "")]
