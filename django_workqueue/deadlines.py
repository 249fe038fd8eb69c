"""Time limits of attempts, and cancels that were asked: told to the task first, then enforced.

Past its limit a task is told (``context.cancelled``), and a coroutine is cancelled. A thread cannot
be ended from outside: a task that does not end within a margin is settled as timed out all the
same, and its process has to end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from . import clock, conf
from .job import Job
from .outcomes import timed_out

TIMEOUT_MARGIN_SECONDS: Final = 1.0
"""What a task gets to end by itself once it was told that its time is over."""


@dataclass(slots=True)
class Overdue:
    """What a look at the running jobs found; *next_seconds* is when to look again."""

    # Coroutines whose time is over, and to be cancelled now; each comes here once.
    to_cancel: list[Job] = field(default_factory=list)
    # Settled as timed out while their bodies still run.
    given_up: list[Job] = field(default_factory=list)
    # Asked to be cancelled for longer than the grace, and still running.
    stuck: list[Job] = field(default_factory=list)
    next_seconds: float = math.inf


def look(jobs: Iterable[Job], settings: conf.Settings, grace_seconds: float) -> Overdue:
    """Tell tasks whose time is over; give up those that did not end within the margin.

    The retry of a job that was given up waits until its process, and its body, are gone.
    """
    found = Overdue()
    now = clock.monotonic()
    # The process ends by then, which looks at its grace only now and then.
    gone_seconds = grace_seconds + TIMEOUT_MARGIN_SECONDS
    for job in jobs:
        if job.started is None or job.ending:
            continue
        if job.claim.timeout is not None:
            left = job.started + job.claim.timeout - now
            if left <= 0:
                job.timed_out = True
                job.cancelled.set()
                _cancel(job, found)
                left += TIMEOUT_MARGIN_SECONDS
            if left > 0:
                found.next_seconds = min(found.next_seconds, left)
            elif job.finish(timed_out(job, settings, least_delay_seconds=gone_seconds)):
                found.given_up.append(job)
        if job.cancel_noticed is not None:
            left = job.cancel_noticed + grace_seconds - now
            if left <= 0 and job.is_async:
                _cancel(job, found)
                left += TIMEOUT_MARGIN_SECONDS
            if left <= 0:
                found.stuck.append(job)
            else:
                found.next_seconds = min(found.next_seconds, left)
    return found


def _cancel(job: Job, found: Overdue) -> None:
    """Let a coroutine be cancelled, once: again would hit what cleans up after the first."""
    if job.is_async and not job.was_cancelled:
        job.was_cancelled = True
        found.to_cancel.append(job)
