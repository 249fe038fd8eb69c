"""Destinations whose handler is a function of the test, and relays in this process."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import transaction

from django_workqueue import outbox
from django_workqueue.ids import new_token
from django_workqueue.outbox import Message
from django_workqueue.relay import Relays
from django_workqueue.settler import Settled
from django_workqueue.states import Lane
from django_workqueue.store import Claim, get_store
from tests import jobs

Handler = Callable[[Message], Any]


class Received:
    """A handler that notes what it was given, and does what *then* does."""

    def __init__(self, then: Handler = lambda message: None) -> None:
        self._then = then
        self._lock = threading.Lock()
        self.messages: list[Message] = []

    def __call__(self, message: Message) -> None:
        with self._lock:
            self.messages.append(message)
        self._then(message)

    @property
    def payloads(self) -> list[Any]:
        with self._lock:
            return [message.payload for message in self.messages]


def declare(handler: Handler, name: str = "events", **options: Any) -> outbox.Destination:
    """Declare a destination with retries at once."""
    return outbox.destination(name, **{"backoff": 0, **options})(lambda message: handler(message))


def publish(destination: outbox.Destination, *payloads: Any, **options: Any) -> list[uuid.UUID]:
    """Publish in one transaction, committed."""
    with transaction.atomic(using=options.get("using")):
        return [destination.publish(payload, **options) for payload in payloads]


def claim(
    queue_name: str = "outbox:events", *, limit: int = 10, using: str = "default", **options: Any
) -> list[Claim]:
    """Claim messages as a relay does that is not there."""
    defaults = {"worker_id": "a-relay-of-the-tests", "lease_seconds": 30.0, "token": new_token()}
    return get_store(using).claim(Lane.OUTBOX, queue_name, limit=limit, **{**defaults, **options})


@contextmanager
def relaying(**options: Any) -> Iterator[list[Settled]]:
    """Relay in threads of this process for as long as the block lasts; yield what was settled."""
    settled: list[Settled] = []
    defaults: dict[str, Any] = {"lease_seconds": 5.0, "poll_seconds": 0.02, "threads": 2}
    relays = Relays(
        f"relay-{uuid.uuid4().hex[:8]}", on_settled=settled.append, **{**defaults, **options}
    )
    relays.start()
    try:
        yield settled
    finally:
        relays.close(10)


def deliver_all(**options: Any) -> list[Settled]:
    """Run a worker until nothing is due in any outbox and queue; return all it settled."""
    return jobs.drain(**options)
