"""What goes into the store and what comes out of it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal, NamedTuple

from ..ids import new_id
from ..models.fields import decoded
from ..states import DeathReason, Lane

ERRORS_KEPT = 25
"""Error records kept on a row: the first, and the newest of the rest."""


# Not frozen: that would make it three times as dear. Nobody changes one.
@dataclass(slots=True, kw_only=True)
class NewJob:
    """A job to insert. *payload* and *headers* are JSON text, already checked.

    It becomes due at *run_after*, or *delay_seconds* after the database's now.
    *expires_seconds* counts from then. A *unique_key* constrains together with queue and task.
    """

    payload: str
    queue_name: str
    max_attempts: int
    id: uuid.UUID = field(default_factory=new_id)
    lane: Lane = Lane.TASK
    task: str = ""
    kind: str = ""
    backend: str = ""
    priority: int = 0
    run_after: datetime | None = None
    delay_seconds: float = 0.0
    expires_seconds: float | None = None
    unique_key: str | None = None
    unique_while: str = "live"
    order_key: str = ""
    seq: int | None = None
    schedule: str = ""
    scheduled_for: datetime | None = None
    timeout: float | None = None
    result_ttl: float | None = None
    dead_letter: bool = True
    atomic: bool = False
    headers: str = "{}"

    def numbered(self, seq: int) -> NewJob:
        """Return this message with its number within its key."""
        return replace(self, seq=seq)


Hold = tuple[uuid.UUID, uuid.UUID]
"""Id and token: the right to settle a job."""


class Inserted(NamedTuple):
    """A job that was written, and when by the database's clock."""

    id: uuid.UUID
    enqueued_at: datetime


class Claim(NamedTuple):
    """A job taken under a lease. *id* and *token* together are the right to settle it (I3).

    JSON columns are text as stored. *received* is this process's monotonic time when the claim was
    answered, so that moments of the run can be told on the database's clock.

    What a run and its settle need: the other facts stay in the row. A tuple, since a worker makes
    thousands a second.
    """

    id: uuid.UUID
    attempt: int
    max_attempts: int
    fence: int
    task: str
    kind: str
    backend: str
    payload: str
    rank: int
    run_after: datetime
    claimed_at: datetime
    lease_expires_at: datetime
    enqueued_at: datetime
    worker_ids: str
    suspect: bool
    unknown_since: datetime | None
    order_key: str
    seq: int | None
    scheduled_for: datetime | None
    timeout: float | None
    result_ttl: float | None
    atomic: bool
    headers: str
    errors: str
    token: uuid.UUID
    worker_id: str
    lane: str
    queue_name: str
    received: float

    @property
    def hold(self) -> Hold:
        return self.id, self.token

    @property
    def log_fields(self) -> dict[str, Any]:
        """What each log event about the job says. Never arguments, nor results."""
        return {
            "job_id": self.id,
            "task": self.task,
            "queue": self.queue_name,
            "attempt": self.attempt,
            "worker_id": self.worker_id,
        }

    def moment(self, monotonic: float) -> datetime:
        """Return the database's moment for a monotonic time of this process.

        Early by the way of the claim's answer and less than a millisecond, never late: a job does
        not start after the database has recorded its end, whose clock may have milliseconds only.
        """
        elapsed = max(int(1000 * (monotonic - self.received)), 0)
        return self.claimed_at + timedelta(milliseconds=elapsed)


CLAIM_COLUMNS: Final = Claim._fields[: Claim._fields.index("token")]
"""Those that a claim reads from the row; the rest it knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRecord:
    """One attempt that did not succeed, as it is kept on the row."""

    attempt: int
    worker: str
    started: datetime | None
    ended: datetime | None
    outcome: str
    exception_class: str = ""
    message: str = ""
    traceback: str = ""
    cut: bool = False

    def as_json(self) -> dict[str, Any]:
        return {
            "attempt": self.attempt,
            "worker": self.worker,
            "started": self.started and self.started.isoformat(),
            "ended": self.ended and self.ended.isoformat(),
            "outcome": self.outcome,
            "exception_class": self.exception_class,
            "message": self.message,
            "traceback": self.traceback,
            "cut": self.cut,
        }


class Ack(NamedTuple):
    """A success to write: *value* is JSON text; the moments are on the database's clock."""

    claim: Claim
    value: str
    started_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Swept:
    """A row that a sweep took back or buried, for the log."""

    id: uuid.UUID
    task: str
    queue_name: str
    worker_id: str
    attempt: int
    outcome: Literal["ready", "scheduled", "dead", "cancelled", "dropped"]
    reason: DeathReason | None = None


def listed(value: Any) -> list[Any]:
    """Return the list that *value* is, or is the JSON text of; an empty one if it is neither."""
    if isinstance(value, str):
        try:
            value = decoded(value)
        except ValueError:
            return []
    return list(value) if isinstance(value, list) else []


def with_error(
    errors: str | list[Any], record: ErrorRecord, *, replace_outcome: bool = False
) -> list[Any]:
    """Return *errors* (JSON text, or decoded) with *record* last, at most ERRORS_KEPT of them.

    What is no list, in a row that was edited by hand, gives way: the job has to end somewhere.

    With *replace_outcome*, a last record of the same outcome gives way instead of piling up.
    """
    known = listed(errors)
    last = known[-1] if known else None
    if replace_outcome and isinstance(last, dict) and last.get("outcome") == record.outcome:
        known.pop()
    known.append(record.as_json())
    if len(known) > ERRORS_KEPT:
        known = [known[0], *known[-(ERRORS_KEPT - 1) :]]
    return known
