"""One named queue of the pull API."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.db import OperationalError
from django.db.models import Q

from .. import arguments
from ..ids import new_token
from ..payload import storable_text
from ..states import Lane
from ..transactions import refuse_open, reopen
from .claims import Claim, checked_lease
from .jobs import insert, new_job
from .views import JobView, QueueStats, job_view

if TYPE_CHECKING:
    from ..store import BaseStore, Swept

logger = logging.getLogger("django_workqueue")

CLAIM_LIMIT_MAX: Final = 1_000
"""Jobs of one claim: more could not be extended before their leases end."""

PROMOTE_ROUNDS: Final = 10
REASON_MAX_BYTES: Final = 4_096
CLAIM_REASON: Final = (
    "the token would be out before the claim is, and a rollback would leave its holder without it"
)


class Queue:
    """A queue of payloads, by its exact name. Making one writes nothing.

    *using* is a database alias; None: where the queue's tables are. Every call sees only jobs of
    this queue, and none of a task's.
    """

    def __init__(self, name: str, using: str | None = None) -> None:
        self.name = arguments.name("name", name)
        self.using = using

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}>"

    # In

    def enqueue(
        self,
        payload: Any,
        *,
        priority: int = 0,
        delay: float | None = None,
        run_after: datetime | None = None,
        expires: float | None = None,
        max_attempts: int | None = None,
        kind: str = "",
        unique_key: str | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> uuid.UUID:
        """Write a job in the caller's transaction; return its id.

        It is due *delay* seconds from now, which wins over *run_after*; no attempt starts later
        than *expires* seconds after that. While a live job of this queue has *unique_key*,
        nothing is written, and that job's id is returned. Raises ValueError for an argument, and
        PayloadError (which is one) for content, before any SQL.
        """
        job = new_job(
            self.name,
            payload,
            root="payload",
            priority=priority,
            delay=delay,
            run_after=run_after,
            expires=expires,
            max_attempts=max_attempts,
            kind=kind,
            unique_key=unique_key,
            headers=headers,
        )
        return insert(self._store(), [job])[0]

    def enqueue_many(
        self,
        payloads: Iterable[Any],
        *,
        priority: int = 0,
        delay: float | None = None,
        run_after: datetime | None = None,
        expires: float | None = None,
        max_attempts: int | None = None,
        kind: str = "",
        unique_key: Callable[[Any], str | None] | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> list[uuid.UUID]:
        """Write a job for each payload, all or none, 500 a statement; return their ids in order.

        *unique_key* is called with each payload. Everything is checked before the first is
        written.
        """
        from ..store.core import transition

        key_of = _checked_key_function(unique_key)
        jobs = [
            new_job(
                self.name,
                each,
                root=f"payloads[{index}]",
                priority=priority,
                delay=delay,
                run_after=run_after,
                expires=expires,
                max_attempts=max_attempts,
                kind=kind,
                unique_key=key_of(each),
                headers=headers,
            )
            for index, each in enumerate(payloads)
        ]
        return transition(insert)(self._store(), jobs)

    # Out

    def claim(
        self, worker: str, *, limit: int = 1, lease_seconds: float = 60, kind: str | None = None
    ) -> list[Claim]:
        """Take up to *limit* jobs that are due, under a lease; [] when there is none.

        In claim order: by priority, then by when they were due. Each is charged an attempt. First
        takes back what others of this queue let lapse, so that no other process need do it.
        Commits; raises InTransaction inside a caller's ``atomic()``.
        """
        worker = arguments.name("worker", worker)
        limit = arguments.whole(
            "limit", limit, least=1, most=CLAIM_LIMIT_MAX, hint="Claim what you can work on now."
        )
        lease_seconds = checked_lease(lease_seconds)
        if kind is not None:
            kind = arguments.name("kind", kind, may_be_empty=True)
        store = self._store()
        refuse_open(store.alias, "Queue.claim()", CLAIM_REASON)
        reopen(store.alias)
        if not self._tended(store):
            return []
        taken = store.claim(
            Lane.PAYLOAD,
            self.name,
            worker_id=worker,
            token=new_token(),
            limit=limit,
            lease_seconds=lease_seconds,
            kind=kind,
        )
        # The claim is the start. Without this mark, a job of one attempt whose holder died would
        # be taken for one that never ran, and be handed out again.
        single = [each for each in taken if each.max_attempts == 1]
        started = store.mark_started(single) if single else set()
        return [
            Claim(each, store.alias, lease_seconds)
            for each in taken
            if each.max_attempts > 1 or each.hold in started
        ]

    def _tended(self, store: BaseStore) -> bool:
        """Bury what expired, take back what lapsed, promote what is due; say if to claim.

        A fault here must not stop claiming: what is ready is ready without it.
        """
        from ..store import finding

        found = finding.waiting(store, Lane.PAYLOAD, self.name)
        try:
            # Expired first: a job that is both expired and lapsed is dead for being expired.
            if found.expired:
                self._log(store.expire(where=self._own))
            if found.lapsed:
                self._log(store.reclaim(where=self._own))
            if found.scheduled:
                _promote(store)
        except OperationalError:
            logger.warning("queue not swept", exc_info=True, extra={"queue": self.name})
        return not found.paused and (found.ready or found.lapsed or found.scheduled)

    def _log(self, rows: Iterable[Swept]) -> None:
        for row in rows:
            fields = {
                "job_id": str(row.id),
                "queue": self.name,
                "worker_id": row.worker_id,
                "attempt": row.attempt,
                "outcome": row.outcome,
            }
            logger.info("job swept by a claim", extra=fields)

    # Looking, and deciding

    def cancel(self, job_id: uuid.UUID | str) -> bool:
        """Cancel a job that waits; ask the holder of one that runs, whose next extend raises.

        False where there is nothing to cancel: no such live job here, or already asked.
        """
        from ..store import CancelAnswer

        answer = self._store().cancel(_checked_id(job_id), where=self._own)
        return answer is not CancelAnswer.NOTHING

    def get(self, job_id: uuid.UUID | str) -> JobView | None:
        """Return the job, live, dead or finished; None: not of this queue, or purged."""
        from .. import results

        found = results.find(self._store().alias, _checked_id(job_id))
        if found is None or found.lane != Lane.PAYLOAD or found.queue_name != self.name:
            return None
        return job_view(found)

    def next_due(self) -> datetime | None:
        """Return when a claim can next take a job, by the database's clock; past if it can now.

        Counts the end of a lease that nobody extends, and of a pause. None: nothing to wait for.
        """
        from ..store import finding

        return finding.next_due(self._store(), Lane.PAYLOAD, self.name)

    def stats(self) -> QueueStats:
        """Count this queue's jobs by state, in one statement; see QueueStats for how exactly."""
        from ..store import finding

        return QueueStats(**finding.counts(self._store(), Lane.PAYLOAD, self.name))

    def pause(self, until: datetime | None = None, reason: str = "") -> None:
        """Let no claim take a job until *until* (None: until resume). What is held goes on.

        A pause is by name: a queue of tasks that has this name pauses too.
        """
        if until is not None:
            until = arguments.moment("until", until, hint="Use None to pause without end.")
        self._store().pause(self.name, until, storable_text(reason, max_bytes=REASON_MAX_BYTES))

    def resume(self) -> bool:
        """Open the queue again; False if it was not paused."""
        return self._store().resume(self.name)

    @property
    def _own(self) -> Q:
        return Q(lane=Lane.PAYLOAD, queue_name=self.name)

    def _store(self) -> BaseStore:
        from ..store import get_store

        return get_store(self.using)


def _promote(store: BaseStore) -> None:
    """Make what is due ready, in batches, of every queue: the earliest first, ours among them."""
    from ..store.looking import BATCH

    for _ in range(PROMOTE_ROUNDS):
        if store.promote() < BATCH:
            return


def _checked_key_function(value: Any) -> Callable[[Any], str | None]:
    if value is None:
        return lambda payload: None
    if not callable(value):
        hint = "A string would make all of them one job."
        raise arguments.refusal("unique_key", "a function of the payload", value, hint)
    return value  # type: ignore[no-any-return]  # what it returns is checked for each payload


def _checked_id(value: object) -> uuid.UUID:
    """Return a job's id, given as one or as its text. Raises ValueError for anything else."""
    if isinstance(value, uuid.UUID):
        return value
    try:
        return uuid.UUID(value if isinstance(value, str) else "")
    except ValueError:
        hint = "Give what enqueue() returned."
        raise arguments.refusal("job_id", "a UUID, or its text", value, hint) from None
