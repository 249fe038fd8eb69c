"""What a worker takes in: claims for the room there is, and back what finds no executor."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from . import clock
from .claimer import Claimed, Claimer
from .demand import NO_ROOM, Room, room_for
from .flight import Flight
from .job import Job
from .memory import MemoryLimit
from .suspects import Suspects
from .threads import Executors

logger = logging.getLogger("django_workqueue.worker")

WAIT_SECONDS: Final = 1.0
"""How long a job may wait for an executor here: then it goes back, for other workers to take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """How many tasks run at once, of each kind, and how many jobs are claimed in all."""

    threads: int
    async_tasks: int
    max_jobs: int | None
    memory: MemoryLimit


class Intake:
    """Jobs from their claim to their executor. *on_late* is called where leases are short already.

    To be called from the worker's main thread.
    """

    def __init__(
        self,
        claimer: Claimer,
        flight: Flight,
        executors: Executors,
        slots: Slots,
        on_late: Callable[[Sequence[Job]], None],
    ) -> None:
        self._claimer = claimer
        self._flight = flight
        self._executors = executors
        self._slots = slots
        self._on_late = on_late
        self._suspects = Suspects()
        self.claimed_count = 0

    def room(self) -> Room:
        in_flight = self._flight.all()
        if self._suspects or self.full or any(job.claim.suspect for job in in_flight):
            return NO_ROOM
        room = room_for(
            in_flight,
            clock.monotonic(),
            threads=self._slots.threads,
            async_tasks=self._slots.async_tasks,
            job_seconds=self._flight.job_seconds,
            job_bytes=self._flight.job_bytes,
        )
        most = self._slots.max_jobs
        return room if most is None else room.at_most(most - self.claimed_count)

    @property
    def full(self) -> bool:
        """Whether it has claimed as many jobs, or its process takes as much memory, as it may.

        Memory counts after the first claim only: where a limit is below what a fresh process
        takes, each still does some work.
        """
        most = self._slots.max_jobs
        if most is not None and self.claimed_count >= most:
            return True
        return self.claimed_count > 0 and self._slots.memory.exceeded

    def claim(self, room: Room, *, told: bool) -> Claimed:
        """Claim for *room*, and hand what came to the executors. *told*: as for the claimer."""
        if room.total < 1:
            return Claimed(0, full=True, again_at=math.inf)
        return self._claimer.claim(room, self.take, told=told)

    def take(self, jobs: Sequence[Job]) -> None:
        """Hand claimed jobs to the executors."""
        self._flight.add(jobs)
        self.claimed_count += len(jobs)
        if logger.isEnabledFor(logging.DEBUG):
            for job in jobs:
                logger.debug("job claimed", extra=job.claim.log_fields)
        self._suspects.add(job for job in jobs if job.claim.suspect)
        self._executors.put([job for job in jobs if not job.claim.suspect])
        self._on_late(jobs)

    def start_suspect(self) -> None:
        """Start the next suspect once nothing else runs here; nothing else starts beside it."""
        suspect = self._suspects.next(self._flight.all())
        if suspect is not None:
            self._executors.put([suspect])

    def give_back_waiting(self) -> float:
        """Give back jobs that wait too long for an executor; return the seconds to the next look.

        They were claimed ahead, in the belief that those before them are short.
        """
        for job in self._flight.all():
            if job.started is not None or job.ending or job.claim.suspect:
                continue
            # In the order of their claims: none of the others has waited longer.
            left = job.claim.received + WAIT_SECONDS - clock.monotonic()
            if left > 0:
                return left
            unstarted = self._executors.take_unstarted()
            self._flight.end(unstarted)
            # None: an executor has it, and is about to start it.
            return 0.0 if unstarted else WAIT_SECONDS
        return math.inf

    def give_back_unstarted(self) -> bool:
        """Give back all that no executor began; return whether there was any."""
        unstarted = self._executors.take_unstarted() + self._suspects.take()
        self._flight.end(unstarted)
        return bool(unstarted)
