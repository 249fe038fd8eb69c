"""Deliver one claimed message, or move one claimed job, and say what came of it.

Touches no row of the outbox, as the executor touches none of a task.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from django.db import DatabaseError

from . import clock, conf, moving, payload
from .backoff import Backoff
from .connecting import clean_connections
from .exceptions import TransactionLeftOpen
from .job import Job, Outcome, Verb
from .outbox import Destination, Message, destinations
from .outcomes import failed
from .states import DeathReason
from .store import Claim

logger = logging.getLogger("django_workqueue.delivery")

MOVE: Final = Destination(
    name=destinations.RESERVED,
    handler=lambda message: None,
    # The queue's database is away: nothing else can be the matter for long.
    backoff=Backoff(base=1, factor=2, maximum=60),
)
"""Stands for the way to the queue's database where a policy is asked for."""


def served(*, moves: bool) -> dict[str, Destination]:
    """Return what this process can take from an outbox, by the names of the queues."""
    declared = destinations.declared()
    return {**declared, MOVE.queue_name: MOVE} if moves else declared


def message_of(claim: Claim) -> Message:
    """Return the message of a claimed row. Raises PayloadError for one that was edited."""
    headers: Mapping[str, Any] = payload.decode(claim.headers)
    return Message(
        id=claim.id,
        destination=claim.queue_name.removeprefix(destinations.QUEUE_PREFIX),
        payload=payload.decode(claim.payload),
        key=claim.order_key,
        attempt=claim.attempt,
        max_attempts=claim.max_attempts,
        headers=headers,
        published_at=claim.enqueued_at,
    )


def deliver(
    job: Job, destination: Destination, settings: conf.Settings, *, inside: str | None = None
) -> Outcome:
    """Deliver the job's message in this thread; return what came of it. Never raises.

    *inside* is the alias on which the caller holds a transaction around it.
    """
    started = job.started = clock.monotonic()
    # The policy of a destination and that of a task are asked for in the same way.
    policy: Any = destination
    try:
        message = message_of(job.claim)
        job.result = message  # type: ignore[assignment]  # what a backoff's function is given
        destination(message)
    except BaseException as error:  # noqa: BLE001  # sys.exit() of a handler must not end the relay
        clean_connections(keep=inside)
        return failed(job, policy, started, error, settings)
    if left_open := clean_connections(keep=inside):
        open_error = TransactionLeftOpen(
            f"A handler must end the transactions it began, and one was left open on "
            f"{', '.join(left_open)}. It was rolled back; use transaction.atomic()."
        )
        return failed(job, policy, started, open_error, settings)
    return Outcome(verb=Verb.ACK, started=started, ended=clock.monotonic())


def move(job: Job, settings: conf.Settings, source: str) -> Outcome:
    """Move a claimed job from the outbox of *source* to the queue's database.

    Raises that database's error if it is away.

    A job that is too large for it is dead at once: until somebody lets the server take more,
    trying it again is in vain, and holds up the others.
    """
    started = job.started = clock.monotonic()
    policy: Any = MOVE
    try:
        moving.arrive(job.claim, source)
    except moving.REFUSED as error:
        return failed(job, policy, started, error, settings)
    except DatabaseError as error:
        if not moving.is_too_large(job.claim, error):
            raise
        outcome = failed(job, policy, started, error, settings)
        assert outcome.error is not None
        told = (
            "a job must fit in one statement of the queue's database; let its server take more "
            f"(max_allowed_packet) and requeue it. {outcome.error.message}"
        )
        record = replace(outcome.error, outcome=DeathReason.TERMINAL, message=told)
        return outcome._replace(verb=Verb.BURY, reason=DeathReason.TERMINAL, error=record)
    return Outcome(verb=Verb.ACK, started=started, ended=clock.monotonic())
