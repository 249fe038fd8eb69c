"""The relay of one database's outbox: claims what is there, delivers or moves it, settles it.

Part of every worker process. Each of its threads claims a batch under a lease, which the extender
renews while the batch lasts, delivers one message after the other and settles each at once. No
transaction is open meanwhile (I5). Two threads or processes never meet: a claim has its token.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Collection, Iterable

from . import conf
from .delivery import served
from .extender import Extender
from .job import Job
from .loop import Loop
from .outbox import Destination
from .relay_thread import RelayThread
from .settler import LOST, Settled
from .states import Lane
from .store import BaseStore, Hold, get_store, outbox_aliases, queue_alias
from .sweeper import Sweeper

logger = logging.getLogger("django_workqueue.relay")

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

    def close(self, ends: float) -> None:
        """Wait for the threads until the moment *ends* (monotonic); leases are extended so long."""
        self.stop()
        for thread in self._threads:
            thread.loop.join_until(ends)
        for helper in self.helpers:
            helper.stop()
        for helper in self.helpers:
            helper.join_until(ends)

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

    def begin(self, jobs: Iterable[Job]) -> None:
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

    def close(self, ends: float) -> None:
        for relay in self._relays:
            relay.close(ends)

    def in_flight(self) -> list[Job]:
        return [job for relay in self._relays for job in relay.in_flight()]

    def are_drained(self) -> bool:
        """Tell whether no relay has anything to do. Asked before the claim that finds nothing."""
        return all(relay.is_drained() for relay in self._relays)
