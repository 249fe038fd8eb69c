"""Extend the leases of the jobs a worker has, from a thread and a connection of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from django.db import connections

from . import clock
from .faults import DATABASE_FAULTS, fault_pause
from .job import Job
from .loop import Loop
from .store import BaseStore

logger = logging.getLogger("django_workqueue.extender")


class Extender:
    """Moves the ends of leases every third of a lease, and learns what was asked of the jobs."""

    def __init__(
        self, store: BaseStore, jobs: Callable[[], Sequence[Job]], lease_seconds: float
    ) -> None:
        self._store = store
        self._jobs = jobs
        self._lease_seconds = lease_seconds
        self._fault_count = 0

    def loop(self) -> Loop:
        """Return the loop of a thread that extends until it is stopped."""
        return Loop(
            self.step, errors=DATABASE_FAULTS, on_error=self._on_fault, at_end=connections.close_all
        )

    def step(self) -> float:
        """Extend all leases; return the seconds to the next time.

        A job whose task ended is extended until its settle was written: a settle that has to wait
        for the database must not lose the job.
        """
        began = clock.monotonic()
        jobs = self._jobs()
        answers = self._store.extend([job.claim for job in jobs], self._lease_seconds)
        self._fault_count = 0
        for job in jobs:
            cancel_asked = answers.get(job.claim.hold)
            if cancel_asked is None:
                self._on_refused(job)
            elif cancel_asked:
                job.cancelled.set()
                if job.cancel_noticed is None:
                    job.cancel_noticed = clock.monotonic()
        self._write_progress(jobs)
        # From its beginning: a statement that waited for long counted the lease from there too.
        return max(self._lease_seconds / 3 - (clock.monotonic() - began), 0.0)

    def _on_refused(self, job: Job) -> None:
        # A job that ended may have been settled since the list was made; its settle tells.
        if job.ending or job.lease_lost.is_set():
            return
        job.lease_lost.set()
        logger.warning("lease lost", extra=job.claim.log_fields)

    def _write_progress(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            progress, job.progress = job.progress, None
            if progress is not None:
                self._store.note_progress(job.claim, progress)

    def _on_fault(self, error: Exception) -> float:
        connections.close_all()
        if not self._fault_count:
            logger.warning("leases cannot be extended", extra={"error": type(error).__name__})
        self._fault_count += 1
        return fault_pause(self._fault_count, self._lease_seconds)
