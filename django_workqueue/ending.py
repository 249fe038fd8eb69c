"""How a worker ends: asked by signals, by itself, or because a task will not end."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from enum import StrEnum

from . import clock
from .job import Job

logger = logging.getLogger("django_workqueue.worker")

EXIT_RECYCLE = 75
"""A child's exit code that asks its parent for another in its place."""
EXIT_GAVE_UP = 76
"""A child's exit code when running jobs were cut short: the parent gives them back."""


class Ended(StrEnum):
    """How a worker ended."""

    DONE = "done"
    GRACE_OVER = "grace over"
    CUT = "cut"
    RECYCLE = "recycle"
    # A task did not end when its time was over: it ends with the process.
    STUCK = "stuck"


class Ending:
    """Whether a worker ends, and how long what it runs may still go on."""

    def __init__(self, worker_id: str, grace_seconds: float) -> None:
        self._worker_id = worker_id
        self._grace_seconds = grace_seconds
        self._signals = 0
        # By itself: drained, or as many jobs as it was told to run.
        self._enough = False
        self._recycles = False
        # A task outlived its time, and ends only with this process; those asked to be cancelled.
        self._has_to_end = False
        self._stuck: set[Job] = set()
        self._began: float | None = None
        self._grace_began: float | None = None
        self._ended = Ended.DONE

    # What makes it end

    def signal(self, count: int) -> None:
        self._signals = max(self._signals, count)

    def enough(self, *, recycle: bool) -> None:
        """End once what was claimed has ended; with *recycle*, for another to take the place."""
        self._enough = True
        self._recycles = recycle

    def must(self, stuck: Iterable[Job]) -> None:
        """End after the grace, because of a task that was given up, or of the *stuck* ones."""
        self._has_to_end = True
        self._stuck |= set(stuck)

    # What follows

    @property
    def begun(self) -> bool:
        """Whether the worker claims no more."""
        return bool(self._signals) or self._has_to_end or self._enough

    @property
    def in_haste(self) -> bool:
        """Whether what has not started goes back, and what runs has the grace to end."""
        return bool(self._signals) or self._has_to_end

    def begin(self) -> None:
        """Note the beginning, from which the grace counts."""
        if self._began is None:
            self._began = clock.monotonic()
            logger.info("worker stops", extra={"worker_id": self._worker_id})
        if self.in_haste and self._grace_began is None:
            self._grace_began = clock.monotonic()

    def over(self, in_flight: Collection[Job]) -> bool:
        """Tell whether what still runs has to be cut short."""
        if self._signals >= 2:
            self._ended = Ended.CUT
        elif self._grace_began is not None and self._left() <= 0:
            self._ended = Ended.STUCK if self._has_to_end else Ended.GRACE_OVER
        elif self._has_to_end and not set(in_flight) - self._stuck:
            self._ended = Ended.STUCK
        return self._ended is not Ended.DONE

    def _left(self) -> float:
        began = clock.monotonic() if self._grace_began is None else self._grace_began
        return began + self._grace_seconds - clock.monotonic()

    @property
    def how(self) -> Ended:
        if self._ended is Ended.DONE and self._has_to_end:
            return Ended.STUCK
        if self._ended is Ended.DONE and self._recycles and not self._signals:
            return Ended.RECYCLE
        return self._ended

    @property
    def drained(self) -> bool:
        """Whether it ended by itself, and no other is to take the place."""
        return self._enough and not self._recycles and not self.in_haste

    @property
    def bodies_run(self) -> bool:
        """Whether tasks still run in threads, so that only the process's end is theirs."""
        return self.how not in (Ended.DONE, Ended.RECYCLE)
