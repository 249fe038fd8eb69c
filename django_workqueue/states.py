"""Names of states, and the table of transitions.

insert -> SCHEDULED | READY | HELD
SCHEDULED -promote-> READY -claim-> RUNNING -ack-> finished
RUNNING -retry-> SCHEDULED      RUNNING -release-> READY | SCHEDULED
RUNNING -bury-> dead            RUNNING, lapsed -reclaim-> READY | dead
READY <-hold / unhold-> HELD    RUNNING -hold-> HELD (a task this process does not know)
any live -expire-> dead         not running -cancel-> finished
dead -requeue-> READY           dead, finished -purge-> gone
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class State(StrEnum):
    """States of a live job."""

    SCHEDULED = "scheduled"
    READY = "ready"
    RUNNING = "running"
    HELD = "held"


class Place(StrEnum):
    """Where a job is when it is not live."""

    DEAD = "dead"
    FINISHED = "finished"


class Lane(StrEnum):
    """Who takes a job: a Django worker, a caller of the pull API, or a relay."""

    TASK = "task"
    PAYLOAD = "payload"
    OUTBOX = "outbox"


class OutboxKind(StrEnum):
    """What a row of the outbox is: a job on its way to the queue's database, or a message.

    A skippable one does not hold back its key once it is dead.
    """

    MOVE = "move"
    MESSAGE = "message"
    SKIPPABLE = "skippable"


class HeldReason(StrEnum):
    """Why a ready job may not be taken now."""

    KEY = "key"
    LIMIT = "limit"
    UNKNOWN = "unknown"
    SUSPECT = "suspect"


class DeathReason(StrEnum):
    """Why a job is dead."""

    EXHAUSTED = "exhausted"
    TERMINAL = "terminal"
    LOST = "lost"
    TIMEOUT = "timeout"
    EXPIRED = "expired"
    UNKNOWN_TASK = "unknown_task"
    BAD_ARGUMENTS = "bad_arguments"
    UNSTORABLE_RESULT = "unstorable_result"


class ResultOutcome(StrEnum):
    """How a finished job ended."""

    SUCCEEDED = "succeeded"
    CANCELLED = "cancelled"


class UniqueWhile(StrEnum):
    """How long a unique key constrains: until the first claim, or until finished or dead."""

    QUEUED = "queued"
    LIVE = "live"


NOT_RUNNING: Final = (State.SCHEDULED, State.READY, State.HELD)

TRANSITIONS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "insert": ((), (State.SCHEDULED, State.READY, State.HELD)),
    "promote": ((State.SCHEDULED,), (State.READY,)),
    "claim": ((State.READY,), (State.RUNNING,)),
    "extend": ((State.RUNNING,), (State.RUNNING,)),
    "ack": ((State.RUNNING,), (Place.FINISHED,)),
    "retry": ((State.RUNNING,), (State.SCHEDULED, Place.FINISHED)),
    "bury": ((State.RUNNING,), (Place.DEAD, Place.FINISHED)),
    "release": ((State.RUNNING,), (State.READY, State.SCHEDULED, Place.FINISHED)),
    "reclaim": ((State.RUNNING,), (State.READY, Place.DEAD, Place.FINISHED)),
    "hold": ((State.READY, State.RUNNING), (State.HELD, Place.FINISHED)),
    "unhold": ((State.HELD,), (State.READY,)),
    "expire": (tuple(State), (Place.DEAD,)),
    "cancel": (NOT_RUNNING, (Place.FINISHED,)),
    "requeue": ((Place.DEAD,), (State.READY,)),
    "purge": ((Place.DEAD, Place.FINISHED), ()),
}
"""Transition, which is also the store's method: where it may start, where it may end."""

DJANGO_STATUS: Final[dict[str, str]] = {
    State.SCHEDULED: "READY",
    State.READY: "READY",
    State.HELD: "READY",
    State.RUNNING: "RUNNING",
    Place.DEAD: "FAILED",
    ResultOutcome.CANCELLED: "FAILED",
    ResultOutcome.SUCCEEDED: "SUCCESSFUL",
}
"""State, place or outcome to the value of Django's TaskResultStatus."""
