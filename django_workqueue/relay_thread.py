"""One thread of a relay: claims a batch, delivers message after message, settles each at once.

No transaction is open while a handler runs (I5).
"""

from __future__ import annotations

import logging
import random
from collections import deque
from typing import TYPE_CHECKING, Final

from django.db import connections

from . import clock
from .delivery import MOVE, deliver, move
from .faults import DATABASE_FAULTS, fault_pause
from .ids import new_token
from .job import Job, Outcome, Verb
from .loop import Loop
from .settler import UNKNOWN, Settled, settle
from .states import Lane, OutboxKind, Place, ResultOutcome
from .wakeup import TRUSTED_POLL_FACTOR, wakeup_for

if TYPE_CHECKING:
    from .relay import Relay

logger = logging.getLogger("django_workqueue.relay")

BATCH: Final = 10
HAND_BACK_SECONDS: Final = 1.0
"""After that long, what is left of a batch goes back for others: its destination is slow."""


class RelayThread:
    """One thread of a relay. Its batch is what it has claimed and not delivered."""

    def __init__(self, relay: Relay, worker_id: str) -> None:
        self._relay = relay
        self._store = relay.store
        self._worker_id = worker_id
        self._wakeup = wakeup_for(relay.store)
        self.loop = Loop(self._step, on_error=self._on_fault, at_end=self._end, wakeup=self._wakeup)
        self._batch: deque[Job] = deque()
        self._unsettled: list[Job] = []
        # The last batch was handed back because it took too long.
        self._was_slow = False
        # Keys whose first message has left.
        self.to_advance: set[tuple[str, str]] = set()
        self._strays_until = 0.0
        self._fault_count = 0

    def _step(self) -> float:
        self._wakeup.attach()
        # What a fault of the database left.
        self._settle()
        self._deliver_batch()
        if clock.monotonic() < self._strays_until:
            # A claim whose answer was lost: all that carries this thread's name and it has not.
            self._store.release_strays(self._worker_id, self._relay.holds())
        seconds = 0.0 if self._claim() else self._idle_seconds()
        if self._fault_count:
            logger.warning("outbox is relayed again", extra={"alias": self._store.alias})
            self._fault_count = 0
        return seconds

    def _idle_seconds(self) -> float:
        rarer = TRUSTED_POLL_FACTOR if self._wakeup.trusted else 1
        poll = self._relay.poll_seconds * rarer * random.uniform(0.8, 1.0)
        due = self._store.seconds_to_due()
        # 0.0: due, but not for this process; the poll is often enough to look again.
        return poll if not due else min(poll, due)

    # Claim, deliver, settle

    def _claim(self) -> bool:
        if self._store.seconds_to_due() == 0.0:
            self._store.promote()
        queue_name = self._relay.take_turn(self, self._store.ready_queues(Lane.OUTBOX))
        if queue_name is None:
            return False
        try:
            claims = self._store.claim(
                Lane.OUTBOX,
                queue_name,
                worker_id=self._worker_id,
                token=new_token(),
                limit=BATCH,
                lease_seconds=self._relay.lease_seconds,
            )
        except DATABASE_FAULTS:
            self._strays_until = clock.monotonic() + self._relay.lease_seconds
            raise
        self._batch.extend(Job(claim) for claim in claims)
        self._relay.begin(self._batch)
        if not self._was_slow:
            self._put_failed_last()
        self._deliver_batch()
        return bool(claims)

    def _put_failed_last(self) -> None:
        """Let messages that failed before go after all others of the batch.

        They may well fail again, and then nobody is left to be sent back, claimed again and found
        behind them again, at each of their attempts. The order of a key is kept: no batch has two
        messages of one. After a slow batch they go in their turn, or it would never come.
        """
        self._batch = deque(sorted(self._batch, key=lambda job: job.claim.attempt > 1))

    def _deliver_batch(self) -> None:
        """Deliver in the order of the claim; one that fails sends the rest of the batch back."""
        began = clock.monotonic()
        while self._batch:
            slow = self._was_slow = clock.monotonic() - began > HAND_BACK_SECONDS
            if slow or self.loop.stopping:
                self._hand_back()
                return
            # It stays in the batch until it has an outcome: a fault meets it again.
            outcome = self._outcome(self._batch[0])
            job = self._batch.popleft()
            job.finish(outcome)
            self._unsettled.append(job)
            self._settle()
            if outcome is not None and outcome.verb is not Verb.ACK:
                self._hand_back()

    def _outcome(self, job: Job) -> Outcome | None:
        if job.lease_lost.is_set():
            return None
        destination = self._relay.served().get(job.claim.queue_name)
        # Marked before its handler runs, as a task of one attempt is: it is not tried again.
        once = job.claim.max_attempts == 1
        if destination is None or (once and not self._store.mark_started([job.claim])):
            return None
        if destination is MOVE:
            return move(job, self._relay.settings, self._store.alias)
        return deliver(job, destination, self._relay.settings)

    def _hand_back(self) -> None:
        """Give back what has not been tried, uncharged, for any relay to take at once."""
        while self._batch:
            job = self._batch.popleft()
            job.finish(None)
            self._unsettled.append(job)
        self._settle()

    def _settle(self) -> None:
        """Write the outcomes, and let the next message of a key go where the first has left."""
        if self._unsettled:
            try:
                settle(self._store, list(self._unsettled), self._answered)
            except DATABASE_FAULTS:
                for job in self._unsettled:
                    job.settle_retried = True
                raise
        for queue_name, key in list(self.to_advance):
            # One that a publisher has locked is asked for again.
            if self._store.advance(queue_name, key):
                self.to_advance.discard((queue_name, key))

    def _answered(self, settled: Settled) -> None:
        claim = settled.job.claim
        self._unsettled.remove(settled.job)
        if claim.seq is not None and _has_left(settled):
            self.to_advance.add((claim.queue_name, claim.order_key))
        self._relay.end(settled)

    # Ends and faults

    def _on_fault(self, error: Exception) -> float:
        """Go on without the database, the outbox's or the queue's, for a while."""
        connections.close_all()
        if not self._fault_count:
            known = isinstance(error, DATABASE_FAULTS)
            logger.warning(
                "outbox cannot be relayed",
                extra={"alias": self._store.alias, "error": type(error).__name__},
                exc_info=error if not known else None,
            )
        self._fault_count += 1
        return fault_pause(self._fault_count, self._relay.lease_seconds)

    def _end(self) -> None:
        try:
            self._hand_back()
        except Exception:
            # Their leases end.
            logger.warning("claims could not be given back", exc_info=True)
        finally:
            self._wakeup.close()
            connections.close_all()


def _has_left(settled: Settled) -> bool:
    """Tell whether later messages of the job's key need not wait for it any more."""
    if settled.place == Place.DEAD:
        return settled.job.claim.kind == OutboxKind.SKIPPABLE
    return settled.place in {ResultOutcome.SUCCEEDED, ResultOutcome.CANCELLED, UNKNOWN}
