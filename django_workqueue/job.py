"""A job in this process, and what came of its run."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from . import payload
from .compat import BaseTaskBackend, TaskResult
from .states import DeathReason
from .store.records import Claim, ErrorRecord

PROGRESS_MAX_BYTES = 4_096


class Verb(StrEnum):
    """What is to be done with a job that was run: the names of the store's transitions."""

    ACK = "ack"
    RETRY = "retry"
    BURY = "bury"
    RELEASE = "release"
    HOLD = "hold"


class Outcome(NamedTuple):
    """What came of a run. *value* is JSON text; moments are this process's monotonic seconds.

    A tuple, as a claim is, and given by name.
    """

    verb: Verb
    started: float
    ended: float
    value: str = "null"
    delay_seconds: float = 0.0
    reason: DeathReason | None = None
    error: ErrorRecord | None = None


_finishing = threading.Lock()


class Told:
    """Something that a running task may be told, once: an event that is made when it is needed.

    Most tasks are told nothing and never look, and two events are a fifth of what a short job costs
    in Python.
    """

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event: threading.Event | None = None

    def is_set(self) -> bool:
        return self._event is not None and self._event.is_set()

    def set(self) -> None:
        self.event.set()

    @property
    def event(self) -> threading.Event:
        with _finishing:
            if self._event is None:
                self._event = threading.Event()
            return self._event


@dataclass(slots=True, eq=False)
class Job:
    """A claim in this process, from its claim to its settle."""

    claim: Claim
    # It runs on the event loop, not in a thread.
    is_async: bool = False
    cancelled: Told = field(default_factory=Told)
    lease_lost: Told = field(default_factory=Told)
    # JSON text of the newest call of context.progress() that was not written yet.
    progress: str | None = None
    started: float | None = None
    outcome: Outcome | None = None
    result: TaskResult[..., Any] | None = None
    # The class of the task's backend, which Django's signals name as their sender.
    sender: type[BaseTaskBackend] | None = None
    # It has ended here, or is given back: an extension that is refused tells nothing.
    ending: bool = False
    # Its time limit passed while it ran: whatever it returns is refused.
    timed_out: bool = False
    # The monotonic time at which an extension said that a cancel was asked.
    cancel_noticed: float | None = None
    # A settle was sent whose answer never came.
    settle_retried: bool = False
    # The run's own transaction (atomic=True) committed, its completion with it.
    committed: bool = False
    # Its coroutine was cancelled, since its time was over or a cancel was asked.
    was_cancelled: bool = False
    # Its coroutine was cancelled because the worker stops: it is given back, not charged.
    interrupted: bool = False
    # Its slot on the board that the parent reads.
    slot: int | None = None
    # Told of each error that becomes a record, before only its text is left (testing).
    on_error: Callable[[BaseException], None] | None = None

    def finish(self, outcome: Outcome | None) -> bool:
        """Set what is to be settled, once: False if that was decided before, by another thread."""
        with _finishing:
            if self.ending:
                return False
            self.ending = True
            self.outcome = outcome
            return True

    def note_progress(self, progress: dict[str, Any]) -> None:
        """Keep *progress* for the next extension. Raises PayloadError for what JSON lacks."""
        self.progress = payload.encode(progress, max_bytes=PROGRESS_MAX_BYTES, root="progress")


def take_all(jobs: deque[Job]) -> list[Job]:
    """Take all of *jobs*, which other threads may take from or add to meanwhile."""
    taken: list[Job] = []
    while True:
        try:
            taken.append(jobs.popleft())
        except IndexError:
            return taken
