"""Deliver what was published, and move what was enqueued elsewhere, in the test's thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from .. import conf, registry
from ..delivery import MOVE, deliver, message_of, move, served
from ..ids import new_token
from ..job import Job
from ..outbox import Destination, Message
from ..states import Lane
from ..store import BaseStore, get_store, outbox_aliases, queue_alias
from ..transactions import refuse_open
from .running import LEASE_SECONDS, WORKER_ID, run, too_many


def deliver_outbox(
    *,
    destinations: Sequence[Destination] | None = None,
    max_messages: int = 1_000,
    raise_errors: bool = True,
) -> list[Message]:
    """Deliver the messages that are due, in this thread, until none is; return them in order.

    Each is claimed, given to its handler and settled as by a relay, but in the test's transaction;
    a message tried twice is there twice. Jobs of ``outbox.enqueue`` are moved to their queue's
    database, for ``run_jobs``. *destinations*: only these, and no moves. An error of a handler is
    raised once its message is settled; with *raise_errors* False it is only in the row. Raises
    AssertionError where more than *max_messages* are due.
    """
    registry.discover()
    wanted = None if destinations is None else {each.queue_name for each in destinations}
    messages: list[Message] = []
    while (found := next(_claims(wanted), None)) is not None:
        store, job, destination = found
        if len(messages) >= max_messages:
            store.release(job.claim)
            raise too_many("deliver_outbox()", f"max_messages={max_messages}", destination.name)
        if destination is MOVE:
            ran = run(store, job, partial(move, job, conf.current(), store.alias))
        else:
            messages.append(message_of(job.claim))
            ran = run(store, job, partial(deliver, job, destination, conf.current()))
        if job.claim.seq is not None:
            # Decides by what is left of the key, whatever became of this one.
            store.advance(job.claim.queue_name, job.claim.order_key)
        if raise_errors:
            ran.raise_error()
    return messages


def _claims(wanted: set[str] | None) -> Iterator[tuple[BaseStore, Job, Destination]]:
    """Claim the next message of any outbox; with it come its store and its destination."""
    home = queue_alias()
    for alias in dict.fromkeys([home, *outbox_aliases()]):
        refuse_open(alias, "deliver_outbox()", "what a handler commits would depend on the caller")
        store = get_store(alias)
        store.promote()
        known = served(moves=alias != home)
        for name in store.ready_queues(Lane.OUTBOX):
            if name in known and (wanted is None or name in wanted):
                for claim in store.claim(Lane.OUTBOX, name, **_terms()):
                    yield store, Job(claim), known[name]


def _terms() -> dict[str, Any]:
    return {
        "worker_id": WORKER_ID,
        "token": new_token(),
        "limit": 1,
        "lease_seconds": LEASE_SECONDS,
    }
