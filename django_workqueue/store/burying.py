"""The moves of a job that nobody holds: to the dead, to the finished as cancelled.

Whoever moves reads candidates first, outside of a transaction, and then moves row by row: the write
restates all that made the row a candidate, so a row that changed in between is left alone (I9).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final, Literal

from django.db import DatabaseError
from django.db.models import QuerySet

from ..models import DeadJob, LiveJob
from ..states import DeathReason
from .core import delete_rows
from .ordering import Ordering
from .records import ErrorRecord, Swept, listed, with_error
from .settling import Settling

logger = logging.getLogger("django_workqueue.store")

SWEEP_BATCH: Final = 500

NIL: Final = uuid.UUID(int=0)
"""An id that no job has."""


class Burying(Ordering, Settling):
    """What is shared by all that take a job from its row."""

    def _unlocked(self, jobs: Iterable[LiveJob]) -> list[LiveJob]:
        """Return the *jobs* whose rows nobody has locked.

        A host that vanished in the middle of a settle may keep its locks for hours, until the
        server notices. What it had is taken back then, and the others must not wait for it.
        """
        jobs = list(jobs)
        free = self.unlocked([job.pk for job in jobs])
        return [job for job in jobs if job.pk in free]

    def prove_writable(self) -> None:
        """Change no live row, in a statement that waits for, and fails by, all that a change does.

        A stall of the database's writes lasts at least as long as this takes.
        """
        self.live().filter(pk=NIL).update(suspect=False)

    def _sweep(
        self, jobs: Iterable[LiveJob], move: Callable[[LiveJob], Swept | None]
    ) -> list[Swept]:
        """Move *jobs*, each in a transaction of its own; return what was done.

        One that the database refuses, because a rule of the project's forbids its row say, keeps
        no other from being moved: it would be the first again the next time.
        """
        done = []
        for job in list(jobs):
            try:
                moved = move(job)
            except DatabaseError as error:
                if self.connection.in_atomic_block or self.is_outage(error):
                    raise
                # It may be the database that refuses, as SQLite does where another holds its lock:
                # then this fails too, and no row is tried after it.
                self.prove_writable()
                logger.exception("job cannot be swept", extra={"job_id": job.pk, "task": job.task})
                continue
            if moved is not None:
                done.append(moved)
        return done

    def _move_dead(
        self,
        rows: QuerySet[LiveJob],
        job: LiveJob,
        reason: DeathReason,
        changes: dict[str, Any],
        now: datetime | None,
    ) -> Swept | None:
        if not delete_rows(rows.filter(cancel_asked_at__isnull=True)):
            return None
        if job.dead_letter:
            facts = self.facts(job, **changes)
            self.dead().bulk_create([DeadJob(**facts, died_at=self.moment(now), reason=reason)])
        return planned(job, reason)

    def _move_cancelled(
        self,
        rows: QuerySet[LiveJob],
        job: LiveJob,
        changes: dict[str, Any],
        now: datetime | None,
    ) -> Swept | None:
        if not delete_rows(rows):
            return None
        self.keep_cancelled(self.facts(job, **changes), now)
        self.left(job)
        return swept(job, "cancelled")

    def _lost_facts(self, job: LiveJob, told: str = "", outcome: str = "lost") -> dict[str, Any]:
        record = ErrorRecord(
            attempt=job.attempt,
            worker=job.worker_id or "",
            started=job.started_at or job.claimed_at,
            ended=job.lease_expires_at,
            outcome=outcome,
            message=told
            or (
                f"worker lost: {job.worker_id} stopped extending its lease, which ended "
                f"at {job.lease_expires_at}"
            ),
        )
        errors = with_error(job.errors, record)
        return {"errors": errors, "worker_ids": [*listed(job.worker_ids), job.worker_id]}


def swept(
    job: LiveJob,
    outcome: Literal["ready", "scheduled", "dead", "cancelled", "dropped"],
    reason: DeathReason | None = None,
) -> Swept:
    """Return what the log says of a row that a sweep moved."""
    return Swept(
        job.pk, job.task, job.queue_name, job.worker_id or "", job.attempt, outcome, reason
    )


def planned(job: LiveJob, reason: DeathReason | None) -> Swept:
    """Return how a job ends that a sweep buries for *reason* (None: makes ready)."""
    if job.cancel_asked_at is not None:
        return swept(job, "cancelled")
    if reason is None:
        return swept(job, "ready")
    return swept(job, "dead" if job.dead_letter else "dropped", reason)
