"""What is known of a job and of a queue, for reading."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..results import Found


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job as it was when it was read.

    *state* is ``scheduled``, ``ready``, ``running`` or ``held`` for a live job, ``dead``, or
    ``succeeded`` or ``cancelled`` for a finished one; *reason* says why it is held or dead.
    *errors* are the attempts that did not succeed, newest last: ``attempt``, ``worker``,
    ``started``, ``ended``, ``outcome``, ``exception_class``, ``message``, ``traceback``.
    *value* is what the job was acked with, *ended_at* when it died or finished.
    """

    id: uuid.UUID
    queue_name: str
    kind: str
    state: str
    reason: str
    payload: Any
    priority: int
    attempt: int
    value: Any
    errors: list[Mapping[str, Any]]
    run_after: datetime
    enqueued_at: datetime
    claimed_at: datetime | None
    ended_at: datetime | None
    worker: str | None
    """Who holds the job; None unless it is running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """Jobs of one queue by state, all counted at one moment.

    Each is exact below 10,000 and stops there. Finished jobs are not counted: how many there are
    says only how long results are kept.
    """

    scheduled: int
    ready: int
    running: int
    held: int
    dead: int


def job_view(found: Found) -> JobView:
    """Return what a user of the pull API sees of *found*."""
    return JobView(
        id=found.id,
        queue_name=found.queue_name,
        kind=found.kind,
        state=found.state,
        reason=found.reason,
        payload=found.payload,
        priority=-found.rank,
        attempt=found.attempt,
        value=found.value,
        errors=list(found.errors),
        run_after=found.run_after,
        enqueued_at=found.enqueued_at,
        claimed_at=found.claimed_at,
        ended_at=found.ended_at,
        worker=found.worker_id,
    )
