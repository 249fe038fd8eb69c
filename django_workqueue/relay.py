"""The relay of one database's outbox: claims what is there, delivers or moves it, settles it.

Part of every worker process. Each of its threads claims a batch under a lease, which the extender
renews while the batch lasts, delivers one message after the other and settles each at once. No
transaction is open meanwhile (I5). Two threads or processes never meet: a claim has its token.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Final

from django.db import connections

from . import clock, conf
from .delivery import MOVE, deliver, move, served
from .extender import DATABASE_FAULTS, Extender, fault_pause
from .ids import new_token
from .job import Job, Outcome, Verb
from .loop import Loop
from .outbox import Destination
from .settler import LOST, UNKNOWN, Settled, settle
from .states import Lane, OutboxKind, Place, ResultOutcome, State
from .store import BaseStore, Hold, get_store, outbox_aliases, queue_alias
from .sweeper import Sweeper
from .wakeup import TRUSTED_POLL_FACTOR, wakeup_for

logger = logging.getLogger("django_workqueue.relay")

BATCH: Final = 10
HAND_BACK_SECONDS: Final = 1.0
"""After that long, what is left of a batch goes back for others: its destination is slow."""

OnSettled = Callable[[Settled], None]


class Relay:
    """Threads that relay the outbox of one database, and what they share."""

    def __init__(
        self,
        alias: str,
        worker_id: str,
        *,
        lease_seconds: float,
        poll_seconds: float,
        threads: int,
        on_settled: OnSettled,
    ) -> None:
        self.store: BaseStore = get_store(alias)
        self.settings = conf.current()
        self.lease_seconds = lease_seconds
        self.poll_seconds = poll_seconds
        self._is_home = alias == queue_alias()
        self._on_settled = on_settled
        self._lock = threading.Lock()
        self._jobs: dict[Hold, Job] = {}
        # What each thread is at, and the names that were warned of.
        self._busy: dict[RelayThread, str] = {}
        self._unknown: set[str] = set()
        names = [f"{worker_id[:150]}/{alias[:80]}/{number}" for number in range(threads)]
        self._threads = [RelayThread(self, name) for name in names]
        self.helpers = [Extender(self.store, self.in_flight, lease_seconds).loop()]
        if not self._is_home:
            # The queue's own database is swept by those who run its jobs.
            self.helpers.append(Sweeper(self.store, self.settings, lease_seconds).loop())

    def start(self) -> None:
        for helper in self.helpers:
            helper.run_thread("workqueue-relay-helper")
        for thread in self._threads:
            thread.loop.run_thread("workqueue-relay")

    def stop(self) -> None:
        """Begin to end: what is being delivered ends, the rest goes back."""
        for thread in self._threads:
            thread.loop.stop()

    def close(self, timeout: float) -> None:
        """Wait at most *timeout* seconds for each thread; leases are extended until then."""
        self.stop()
        for thread in self._threads:
            thread.loop.join(timeout)
        for helper in self.helpers:
            helper.stop()
        for helper in self.helpers:
            helper.join(timeout)

    def in_flight(self) -> list[Job]:
        with self._lock:
            return list(self._jobs.values())

    def is_drained(self) -> bool:
        """Tell whether nothing is due, or on its way, that this process could take."""
        if self._is_busy() or self.store.seconds_to_due() == 0.0:
            return False
        ready = self.served().keys() & set(self.store.ready_queues(Lane.OUTBOX))
        # Once more: what a thread took between the two looks was neither here nor there.
        return not ready and not self._is_busy()

    def _is_busy(self) -> bool:
        with self._lock:
            return bool(self._busy) or any(thread.to_advance for thread in self._threads)

    def served(self) -> dict[str, Destination]:
        return served(moves=not self._is_home)

    # For its threads

    def begin(self, jobs: Sequence[Job]) -> None:
        with self._lock:
            self._jobs |= {job.claim.hold: job for job in jobs}

    def holds(self) -> set[Hold]:
        with self._lock:
            return set(self._jobs)

    def end(self, settled: Settled) -> None:
        """Let go of a job whose settle was answered. A lease is extended until then."""
        job = settled.job
        with self._lock:
            self._jobs.pop(job.claim.hold, None)
        if settled.place == LOST and not job.lease_lost.is_set():
            logger.warning("message lost to another claim", extra=job.claim.log_fields)
        if logger.isEnabledFor(logging.INFO):
            logger.info("message settled", extra=settled.log_fields)
        try:
            self._on_settled(settled)
        except Exception:
            # It only tells: a closed terminal, say, is no reason to stop relaying.
            logger.exception("outcome could not be told", extra=job.claim.log_fields)

    def take_turn(self, thread: RelayThread, ready: Collection[str]) -> str | None:
        """Return the queue that *thread* is to claim from, None: none.

        One that no other thread is at, if there is. All threads but one may be at the same: the
        last is kept for the others, so that a destination that hangs holds up no other.
        """
        known = self.served()
        self._warn_of_unknown(set(ready) - known.keys())
        with self._lock:
            self._busy.pop(thread, None)
            names = [name for name in ready if name in known]
            random.shuffle(names)
            free = [name for name in names if name not in self._busy.values()]
            may_share = len(self._busy) < len(self._threads) - 1 or len(known) == 1
            chosen = free or (names if may_share else [])
            if not chosen:
                return None
            self._busy[thread] = chosen[0]
            return chosen[0]

    def _warn_of_unknown(self, names: set[str]) -> None:
        for name in names - self._unknown:
            logger.warning(
                "messages wait for a destination that is not declared here", extra={"queue": name}
            )
        # Warned of again if its messages were gone meanwhile.
        self._unknown = names


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
        self._deliver_batch()
        return bool(claims)

    def _deliver_batch(self) -> None:
        """Deliver in the order of the claim; one that fails sends the rest of the batch back."""
        began = clock.monotonic()
        while self._batch:
            slow = clock.monotonic() - began > HAND_BACK_SECONDS
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
            return move(job, self._relay.settings)
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
                self._release_untried()
                settle(self._store, list(self._unsettled), self._answered)
            except DATABASE_FAULTS:
                for job in self._unsettled:
                    job.settle_retried = True
                raise
        for queue_name, key in list(self.to_advance):
            # One that a publisher has locked is asked for again.
            if self._store.advance(queue_name, key):
                self.to_advance.discard((queue_name, key))

    def _release_untried(self) -> None:
        """Give back the rest of a batch in one statement: where one fails often, many go back."""
        untried = [job for job in self._unsettled if job.outcome is None]
        if len({job.claim.token for job in untried}) != 1:
            return
        given = self._store.release_together([job.claim for job in untried])
        for job in untried:
            if job.claim.hold in given:
                self._answered(Settled(job, State.READY))

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


def relayed_aliases() -> list[str]:
    """Return the databases whose outbox this process relays."""
    home = queue_alias()
    # Without a destination there is nothing to deliver, and nothing to move at home.
    at_home = home in conf.current().outbox_databases and served(moves=False)
    return ([home] if at_home else []) + outbox_aliases()


class Relays:
    """The relays of a worker process: one for each database that has an outbox for it."""

    def __init__(
        self,
        worker_id: str,
        *,
        lease_seconds: float,
        poll_seconds: float,
        threads: int,
        on_settled: OnSettled,
    ) -> None:
        self._relays = [
            Relay(
                alias,
                worker_id,
                lease_seconds=lease_seconds,
                poll_seconds=poll_seconds,
                threads=threads,
                on_settled=on_settled,
            )
            for alias in relayed_aliases()
            if threads
        ]

    @property
    def helpers(self) -> list[Loop]:
        """What extends leases and sweeps: a relay without them loses what it has."""
        return [helper for relay in self._relays for helper in relay.helpers]

    def start(self) -> None:
        for relay in self._relays:
            relay.start()

    def stop(self) -> None:
        for relay in self._relays:
            relay.stop()

    def close(self, timeout: float) -> None:
        for relay in self._relays:
            relay.close(timeout)

    def in_flight(self) -> list[Job]:
        return [job for relay in self._relays for job in relay.in_flight()]

    def are_drained(self) -> bool:
        """Tell whether no relay has anything to do. Asked before the claim that finds nothing."""
        return all(relay.is_drained() for relay in self._relays)
