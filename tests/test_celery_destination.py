"""`contrib.celery`: a message of the outbox becomes a task of another service, whatever its broker.

In one process, with kombu's broker in memory; tests/celery has real brokers and workers.
"""

from __future__ import annotations

import itertools
import socket
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from celery import Celery
from kombu.exceptions import OperationalError

from django_workqueue import clock, outbox
from django_workqueue.contrib.celery import celery_destination, destination
from django_workqueue.outbox import Message, destinations

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _destinations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Destinations that a test declares are gone after it."""
    monkeypatch.setattr(destinations, "_declared", dict(destinations._declared))


class WithoutBackend(Celery):
    """An app whose result backend nobody may ask for."""

    @property
    def backend(self) -> Any:
        raise AssertionError("the result backend was asked for")


@pytest.fixture
def app() -> Iterator[Celery]:
    """A producer's app with a broker in this process, and a result backend that is down."""
    made = WithoutBackend(
        set_as_current=False, broker="memory://", backend="redis://127.0.0.1:1/0", fixups=[]
    )
    yield made
    made.close()


@pytest.fixture
def dead_port() -> Iterator[int]:
    """A port on which connections are made and nobody ever answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def message(payload: Any, **headers: Any) -> Message:
    return Message(
        id=uuid.uuid4(),
        destination="bookings",
        payload=payload,
        key="",
        attempt=2,
        max_attempts=3,
        headers=headers,
        published_at=datetime.now(UTC),
    )


def sent(app: Celery, queue: str) -> Any:
    """Return the raw message that is next in the broker's *queue*."""
    with app.connection_for_read() as connection:
        queue_there = connection.SimpleQueue(queue)
        try:
            found = queue_there.get(timeout=5)
            found.ack()
        finally:
            queue_there.close()
    return found


def queue_name() -> str:
    return f"bookings-{next(_numbers)}"


@pytest.mark.parametrize(
    ("payload", "args", "kwargs"),
    [({"order": 7, "lines": [1]}, [], {"order": 7, "lines": [1]}), ([7, "x"], [7, "x"], {})],
)
def test_message_is_a_task_with_its_id(
    app: Celery, payload: Any, args: list[Any], kwargs: dict[str, Any]
) -> None:
    queue = queue_name()
    deliver = celery_destination("bookings", app=app, task="billing.tasks.book", queue=queue)
    published = message(payload)
    deliver(published)
    found = sent(app, queue)
    assert found.headers["task"] == "billing.tasks.book"
    assert found.headers["id"] == str(published.id)
    assert found.headers["root_id"] == str(published.id)
    assert found.payload[:2] == [args, kwargs]
    assert found.properties["delivery_mode"] == 2, "kept on the broker's disk"


def test_headers_go_along_and_never_take_celery_s_own_place(app: Celery) -> None:
    """Case M9, as far as the broker."""
    queue = queue_name()
    deliver = celery_destination("bookings", app=app, task="billing.tasks.book", queue=queue)
    deliver(message([], traceparent="00-abc", tenant="acme", task="rm", id="1", retries=99))
    headers = sent(app, queue).headers
    assert (headers["traceparent"], headers["tenant"]) == ("00-abc", "acme")
    assert (headers["task"], headers["retries"]) == ("billing.tasks.book", 0)


def test_routes_priority_and_expiry_are_those_asked_for(app: Celery) -> None:
    queue = queue_name()
    app.conf.task_routes = {"billing.*": {"queue": queue}}
    options: dict[str, Any] = {"app": app, "task": "billing.tasks.book", "priority": 7}
    deliver = celery_destination("bookings", **options, expires=60)
    before = datetime.now(UTC)
    deliver(message([]))
    found = sent(app, queue)
    assert found.properties["priority"] == 7
    expires = datetime.fromisoformat(found.headers["expires"])
    assert 50 < (expires - before).total_seconds() < 120


def test_no_result_backend_is_asked_for_anything(app: Celery) -> None:
    queue = queue_name()
    with pytest.raises(AssertionError, match="the result backend was asked for"):
        app.send_task("billing.tasks.book", queue=queue)
    celery_destination("bookings", app=app, task="billing.tasks.book", queue=queue)(message([]))
    assert sent(app, queue).headers["ignore_result"] is False, "that is the worker's own affair"


@pytest.mark.parametrize("payload", ["text", 7, None, True])
def test_payload_that_is_no_arguments_is_dead_at_once(app: Celery, payload: Any) -> None:
    deliver = celery_destination("bookings", app=app, task="billing.tasks.book")
    with pytest.raises(outbox.Terminal, match="must be a dict"):
        deliver(message(payload))


def test_payload_that_the_serializer_refuses_is_dead_at_once(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver = celery_destination("bookings", app=app, task="billing.tasks.book", queue=queue_name())
    with pytest.raises(outbox.Terminal, match="the serializer refuses the payload"):
        deliver(message([object()]))


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_broker_that_is_down_is_an_error_to_be_retried(scheme: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"{scheme}://127.0.0.1:{unused.getsockname()[1]}//"
        made = Celery(set_as_current=False, broker=address)
        deliver = celery_destination("bookings", app=made, task="billing.tasks.book")
        with pytest.raises(OperationalError):
            deliver(message([]))
    assert deliver.max_attempts == 32_767
    assert deliver.backoff == destination.BROKER_BACK


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_broker_that_never_answers_is_given_up(
    scheme: str, dead_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(destination, "CONNECT_SECONDS", 0.2)
    limits = {name: 0.2 for name in destination.BY_TRANSPORT[scheme] if name != "confirm_publish"}
    monkeypatch.setitem(destination.BY_TRANSPORT, scheme, limits)
    made = Celery(set_as_current=False, broker=f"{scheme}://127.0.0.1:{dead_port}//")
    deliver = celery_destination("bookings", app=made, task="billing.tasks.book")
    started = clock.monotonic()
    with pytest.raises(OperationalError):
        deliver(message([]))
    # No figure: a broker without limits is waited for until the test's own time-out.
    assert clock.monotonic() > started


def test_what_cannot_be_used_is_refused_by_name(app: Celery) -> None:
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("app", {"app": "redis://", "task": "x"}),
        ("task", {"app": app, "task": ""}),
        ("queue", {"app": app, "task": "x", "queue": ""}),
        ("expires", {"app": app, "task": "x", "expires": -1}),
        ("max_attempts", {"app": app, "task": "x", "max_attempts": 0}),
        ("priority", {"app": app, "task": "x", "priority": "high"}),
    ]
    for argument, options in wrong:
        with pytest.raises(ValueError, match=f"^{argument} "):
            celery_destination("bookings", **options)
