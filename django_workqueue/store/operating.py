"""cancel, requeue, discard, pause, resume: what people ask for."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from django.db import IntegrityError
from django.db.models import Q

from ..exceptions import UniqueKeyTaken
from ..models import DeadJob, LiveJob, Queue
from ..models.fields import EncodedJSON
from ..states import NOT_RUNNING, HeldReason, OutboxKind, State, UniqueWhile
from .core import delete_rows, statement, transition
from .inserting import Inserting
from .newrows import unique_hash
from .sweeping import Sweeping

FOREVER: Final = datetime(9999, 12, 31, tzinfo=UTC)
"""The end of a pause that has none."""

CANCEL_ROUNDS: Final = 5


class CancelAnswer(StrEnum):
    """What a cancel did: ended the job, asked the one who runs it, or found nothing to cancel."""

    CANCELLED = "cancelled"
    ASKED = "asked"
    NOTHING = "nothing"


class Operating(Inserting, Sweeping):
    """The operator's transitions."""

    def cancel(
        self, job_id: uuid.UUID, *, where: Q | None = None, now: datetime | None = None
    ) -> CancelAnswer:
        """Cancel a job that does not run; ask the holder of one that does.

        *where* narrows which live row is meant (a queue's own). A second cancel answers NOTHING.
        """
        rows = self.live().filter(where or Q(), pk=job_id)
        for _ in range(CANCEL_ROUNDS):
            job = self.current(rows).first()
            if job is None or job.cancel_asked_at is not None:
                return CancelAnswer.NOTHING
            answer = self._cancel(job, now)
            if answer is not None:
                return answer
        # It changed hands at each look: whoever holds it now is asked.
        asked = self.live().filter(pk=job_id, state=State.RUNNING, cancel_asked_at__isnull=True)
        count = asked.update(cancel_asked_at=self.moment(now))
        return CancelAnswer.ASKED if count else CancelAnswer.NOTHING

    @transition
    def _cancel(self, job: LiveJob, now: datetime | None) -> CancelAnswer | None:
        self.lock(LiveJob, [job.pk])
        rows = self.live().filter(pk=job.pk, fence=job.fence, cancel_asked_at__isnull=True)
        if job.state == State.RUNNING:
            asked = rows.filter(state=State.RUNNING, token=job.token)
            count = asked.update(cancel_asked_at=self.moment(now))
            return CancelAnswer.ASKED if count else None
        waiting = rows.filter(state__in=NOT_RUNNING)
        done = self._move_cancelled(waiting, job, {}, now)
        return None if done is None else CancelAnswer.CANCELLED

    def requeue(
        self, job_id: uuid.UUID, *, payload: str | None = None, now: datetime | None = None
    ) -> bool:
        """Make a dead job ready again under its id, with a new budget; False if it is not dead.

        ``expires_at`` is cleared and the fence goes on from where it was (I4). *payload*, JSON
        text already checked, takes the place of the old one. A key that constrains while queued
        was given up at the first claim and is not taken again.
        Raises UniqueKeyTaken, with the holder's id, where a live job has its unique key; the job
        stays dead.
        """
        job = self.current(self.dead().filter(pk=job_id)).first()
        if job is None:
            return False
        row = self._requeued(job, payload, now)
        try:
            return self._requeue(job, row)
        except IntegrityError:
            # Somebody took the key after the look at it, and the index decided.
            self._refuse_taken_key(row)
            raise

    @transition
    def _requeue(self, job: DeadJob, row: LiveJob) -> bool:
        # A savepoint where the caller has a transaction: a refusal leaves the job dead there too.
        with self.own():
            self.lock(DeadJob, [job.pk])
            if not delete_rows(self.dead().filter(pk=job.pk, died_at=job.died_at)):
                return False
            self._refuse_taken_key(row)
            self.live().bulk_create([row])
        return True

    def _requeued(self, job: DeadJob, payload: str | None, now: datetime | None) -> LiveJob:
        changes: dict[str, Any] = {
            "attempt": 0,
            "expires_at": None,
            "run_after": self.moment(now),
            "claimed_at": None,
            "started_at": None,
            "suspect": False,
            "deaths": 0,
        }
        if payload is not None:
            changes["payload"] = EncodedJSON(payload)
        unclaimed = job.unique_while == UniqueWhile.QUEUED and job.fence == 0
        constrains = unclaimed or job.unique_while == UniqueWhile.LIVE
        skippable = job.kind == OutboxKind.SKIPPABLE
        waits = job.seq is not None and not skippable and not self.is_first(job)
        if job.seq is not None and skippable:
            # Later messages of its key did not wait for it: it has no turn any more.
            changes["seq"] = None
        key_hash = unique_hash(job.queue_name, job.task, job.unique_key)
        return LiveJob(
            **self.facts(job, **changes),
            state=State.HELD if waits else State.READY,
            held_reason=HeldReason.KEY if waits else "",
            unique_hash=key_hash if constrains else None,
        )

    def _refuse_taken_key(self, row: LiveJob) -> None:
        if row.unique_hash is None:
            return
        holder = self.current(self.live().filter(unique_hash=row.unique_hash))
        holder_id = holder.values_list("pk", flat=True).first()
        if holder_id is not None:
            raise UniqueKeyTaken(
                f"The unique key of a requeued job must be free, and live job {holder_id} holds "
                f"{row.unique_key!r:.80}. Wait for it, cancel it, or discard this one.",
                holder_id=holder_id,
            )

    @statement
    def discard(self, job_id: uuid.UUID) -> bool:
        """Delete a dead job; False if it is not dead. Later messages of its key go on."""
        job = self.dead().filter(pk=job_id).only("queue_name", "order_key", "seq").first()
        if job is None or not delete_rows(self.dead().filter(pk=job_id)):
            return False
        self.left(job)
        return True

    @statement
    def pause(self, queue_name: str, until: datetime | None = None, reason: str = "") -> None:
        """Let no claim take from the queue until *until* (None: until it is resumed)."""
        targeted = self.connection.features.supports_update_conflicts_with_target
        Queue._base_manager.using(self.alias).bulk_create(
            [Queue(name=queue_name, paused_until=until or FOREVER, reason=reason)],
            update_conflicts=True,
            update_fields=["paused_until", "reason"],
            unique_fields=["name"] if targeted else None,
        )

    @statement
    def resume(self, queue_name: str) -> bool:
        """Open the queue again; False if it was not paused."""
        rows = Queue._base_manager.using(self.alias).filter(
            name=queue_name, paused_until__isnull=False
        )
        return bool(rows.update(paused_until=None, reason=""))
