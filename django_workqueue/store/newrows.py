"""What the row of a new job holds, and which of it most new jobs share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

from ..states import Lane, State
from .records import NewJob

FACTS: Final = (
    "id",
    "lane",
    "queue_name",
    "task",
    "kind",
    "backend",
    "payload",
    "rank",
    "state",
    "held_reason",
    "max_attempts",
    "unique_key",
    "unique_while",
    "unique_hash",
    "order_key",
    "seq",
    "schedule",
    "scheduled_for",
    "timeout",
    "result_ttl",
    "dead_letter",
    "atomic",
    "headers",
)
TIMES: Final = ("due", "delay", "expires")
"""When it is due, if a moment was given; the seconds from then, or now, to both others."""
NAMES: Final = (*FACTS, *TIMES)
PLAIN: Final[dict[str, Any]] = {
    "lane": Lane.TASK.value,
    "kind": "",
    "rank": 0,
    "state": State.READY.value,
    "held_reason": "",
    "unique_key": "",
    "unique_while": "",
    "unique_hash": None,
    "order_key": "",
    "seq": None,
    "schedule": "",
    "scheduled_for": None,
    "timeout": None,
    "dead_letter": True,
    "atomic": False,
    "headers": "{}",
    "due": None,
    "delay": 0.0,
    "expires": None,
}
"""What most jobs have: it stands in the statement's text, where a parameter would cost more."""
PLAINS: Final = tuple(PLAIN.get(name, ...) for name in NAMES)
OF_A_TASK: Final = ("queue_name", "task", "backend", "max_attempts", "result_ttl")
"""What is the same in most calls of a task, and has no value that most jobs have."""
CONSTANTS: Final = {
    "suspect": "FALSE",
    "attempt": "0",
    "fence": "0",
    "worker_ids": "'[]'",
    "errors": "'[]'",
    "deaths": "0",
}


def unique_hash(queue_name: str, task: str, key: str) -> str:
    """Return the 64 hex digits under which *key* constrains, within its queue and task."""
    return hashlib.sha256(json.dumps([queue_name, task, key]).encode()).hexdigest()


def hash_of(job: NewJob) -> str | None:
    """Return the hash of a new job's key; None: it has none."""
    key = job.unique_key
    return None if key is None else unique_hash(job.queue_name, job.task, key)


def is_behind(job: NewJob) -> bool:
    """True for a message whose key has an earlier one that has not left; see store.ordering."""
    return job.seq is not None and job.seq > 1


def state_of(job: NewJob) -> State:
    """Return the state in which a new job begins."""
    if is_behind(job):
        return State.HELD
    # A moment given may be past: the next claim pass promotes what is due.
    later = job.run_after is not None or job.delay_seconds > 0
    return State.SCHEDULED if later else State.READY


_OF_THE_TASK: Final = attrgetter(
    "lane",
    "queue_name",
    "task",
    "kind",
    "backend",
    "priority",
    "expires_seconds",
    "max_attempts",
    "timeout",
    "result_ttl",
    "dead_letter",
    "atomic",
)


def steady(job: NewJob) -> tuple[Any, ...] | None:
    """Return all that is known of *job* but its id and payload; None where that is its own."""
    its_own = (
        job.run_after is not None
        or job.delay_seconds
        or job.unique_key is not None
        or job.seq is not None
        or job.order_key
        or job.schedule
        or job.headers != PLAIN["headers"]
    )
    facts: tuple[Any, ...] = _OF_THE_TASK(job)
    return None if its_own else facts


def parted(
    rows: Sequence[tuple[Any, ...]],
) -> tuple[dict[str, Sequence[Any]], dict[str, Any]]:
    """Return the columns in which *rows* differ, and the values of the rest that are not plain.

    What all rows of a statement share is said once.
    """
    differing: dict[str, Sequence[Any]] = {}
    if len(rows) > 1:
        columns = zip(NAMES, zip(*rows, strict=True), strict=True)
        differing = {
            name: values
            for name, values in columns
            if name == "id" or values.count(values[0]) < len(rows)
        }
    first = zip(NAMES, PLAINS, rows[0], strict=True)
    shared = {
        name: value for name, plain, value in first if value != plain and name not in differing
    }
    return differing, shared


def literal(value: Any) -> str:
    """Return the SQL of one of PLAIN; none for null, which a column has that is not named."""
    if value is None:
        return ""
    return f"'{value}'" if isinstance(value, str) else str(value).upper()


def text_of(value: Any) -> str:
    """Return what a driver sends of *value*, without what a str of another class says it is.

    To str() and in an f-string, a member of an Enum that is a str is its name in its class.
    """
    return str.__str__(value) if isinstance(value, str) else str(value)
