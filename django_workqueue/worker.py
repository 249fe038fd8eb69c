"""One worker process: claim, run, settle, extend.

The main thread claims and settles, executor threads run, one thread extends leases and one
sweeps, each on a connection of its own. No transaction is open while a task runs (I5).
"""

from __future__ import annotations

import logging
import math
import os
import random
import socket
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from django.db import connections

from . import clock, conf, registry
from .executor import Job, Outcome, Verb
from .extender import DATABASE_FAULTS, Extender, fault_pause
from .ids import new_token
from .loop import Loop
from .settler import LOST, Settled, settle
from .states import HeldReason, Lane, Place, ResultOutcome
from .store import BaseStore, Claim, Hold, get_store
from .sweeper import Sweeper
from .threads import Executors
from .wakeup import TRUSTED_POLL_FACTOR, wakeup_for

logger = logging.getLogger("django_workqueue.worker")

UNHOLD_SECONDS = 5.0
UNKNOWN_SECONDS = 60.0
CUT_DELAY_SECONDS = 1.0
# How often, and how long apart, a worker that ends tries to reach the database.
LAST_TRIES = 3
LAST_PAUSE_SECONDS = 0.05
ENDS = (ResultOutcome.SUCCEEDED, ResultOutcome.CANCELLED, Place.DEAD, "dropped")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What one worker does. *queues* None: every queue, in turn; else the order is preference."""

    queues: tuple[str, ...] | None = None
    threads: int = 4
    lease_seconds: float = 30.0
    poll_seconds: float = 1.0
    grace_seconds: float = 30.0
    max_jobs: int | None = None
    drain: bool = False
    sweep: bool = True


class Ended(StrEnum):
    """How a worker ended."""

    DONE = "done"
    GRACE_OVER = "grace over"
    CUT = "cut"


def new_worker_id() -> str:
    """Return an id that is never used again, also where containers share a host name."""
    return f"{socket.gethostname()[:100]}-{os.getpid()}-{uuid.uuid4().hex[:12]}"


class Worker:
    """Runs jobs until it is stopped, drained, or has run ``max_jobs``."""

    def __init__(
        self,
        options: Options,
        *,
        on_settled: Callable[[Settled], None] = lambda settled: None,
    ) -> None:
        self.id = new_worker_id()
        self.options = options
        self.store: BaseStore = get_store()
        self.settings = conf.current()
        self._on_settled = on_settled
        self.wakeup = wakeup_for(self.store)
        self._loop = Loop(
            self._step, errors=DATABASE_FAULTS, on_error=self._on_fault, wakeup=self.wakeup
        )
        self._executors = Executors(
            options.threads, self.settings, options.lease_seconds, self._loop.wake
        )
        self._extender = Extender(self.store, self._in_flight, options.lease_seconds)
        self._extending = self._extender.loop()
        self._helpers = [self._extending]
        if options.sweep:
            sweeper = Sweeper(self.store, self.settings, options.lease_seconds)
            self._helpers.append(sweeper.loop())
        # Jobs in this process by hold, and those whose outcome waits to be written.
        self._jobs: dict[Hold, Job] = {}
        self._jobs_lock = threading.Lock()
        self._unwritten: list[Job] = []
        self._signals = 0
        self._stop_asked: float | None = None
        self._grace_ends = 0.0
        self._claimed_count = 0
        self._unhold_at = 0.0
        self._last_queue = ""
        # Task names nobody declared here, with the monotonic time of the first sight.
        self._unknown: dict[str, float] = {}
        self._fault_count = 0
        # When to look for claims whose answer was lost, and until when more may come up.
        self._strays_at = math.inf
        self._strays_until = 0.0
        self._ended = Ended.DONE
        self._closed = False

    # Life

    def run(self) -> Ended:
        """Work in this thread until the end; return how it came."""
        self._executors.start()
        for helper in self._helpers:
            helper.run_thread("workqueue-helper")
        try:
            self._loop.run()
        finally:
            self._close()
        return self._ended

    def stop(self, count: int = 1) -> None:
        """Stop claiming and end; asked twice, at once. Safe in a signal handler."""
        self._signals = max(self._signals, count)
        # A signal may come when the worker has ended and its handler is still there.
        if not self._closed:
            self._loop.wake()

    def _close(self) -> None:
        for helper in self._helpers:
            helper.stop()
        ended = self._ended is Ended.DONE
        if ended:
            ended = self._executors.stop(timeout=self.options.grace_seconds)
        for helper in self._helpers:
            helper.join(timeout=5.0)
        # A body that still runs would wake through a descriptor that may be another file's by then.
        if ended:
            self._closed = True
            self.wakeup.close()
        connections.close_all()

    # A step: settle, claim, sleep

    def _step(self) -> float:
        for helper in self._helpers:
            if helper.failed:
                # Without its extender a worker would lose every job it runs: better none.
                helper.join()
        self.wakeup.attach()
        self._settle()
        if clock.monotonic() >= self._strays_at:
            self._release_strays()
        if self._signals or self._stop_asked is not None:
            return self._wind_down()
        room = self._room()
        claimed = self._claim(room) if room > 0 else 0
        if claimed:
            return 0.0 if claimed < room else self.options.poll_seconds
        if self._enough():
            self._stop_asked = clock.monotonic()
            return 0.0
        return self._idle_seconds(room)

    def _room(self) -> int:
        room = self._executors.room
        if self.options.max_jobs is not None:
            room = min(room, self.options.max_jobs - self._claimed_count)
        return room

    def _enough(self) -> bool:
        """Tell whether the worker came to its end by itself."""
        if self.options.max_jobs is not None and self._claimed_count >= self.options.max_jobs:
            return True
        # The claim pass before this found nothing: what is ready is not for this worker.
        return self.options.drain and not self._jobs and self.store.seconds_to_due() != 0.0

    def _poll_seconds(self) -> float:
        rarer = TRUSTED_POLL_FACTOR if self.wakeup.trusted else 1
        return self.options.poll_seconds * rarer

    def _idle_seconds(self, room: int) -> float:
        poll = self._poll_seconds() * random.uniform(0.8, 1.0)
        if room <= 0:
            return poll
        due = self.store.seconds_to_due()
        # 0.0: due, but not for this worker; the poll is often enough to look again.
        return poll if not due else min(poll, due)

    # Claiming

    def _claim(self, room: int) -> int:
        """Claim up to *room* jobs, queue by queue; return how many."""
        if clock.monotonic() >= self._unhold_at:
            self._look_after_unknown()
        if self.store.seconds_to_due() == 0.0:
            self.store.promote()
        count = 0
        for name in self._claimable_queues():
            if count >= room:
                break
            claims = self._claim_queue(name, room - count)
            count += len(claims)
            if claims:
                self._last_queue = name
        self._on_answered()
        return count

    def _look_after_unknown(self) -> None:
        """Take up held jobs of tasks known here; hold what nobody took for as long.

        Jobs of a task found unknown are first left for a worker that knows it. Those still ready
        after UNKNOWN_SECONDS are held, out of the way of the claims.
        """
        now = clock.monotonic()
        self._unhold_at = now + UNHOLD_SECONDS
        self.store.unhold(HeldReason.UNKNOWN, registry.paths())
        known = {path for path in self._unknown if registry.get(path) is not None}
        old = {path for path, since in self._unknown.items() if now - since >= UNKNOWN_SECONDS}
        if old - known:
            self.store.hold_ready(HeldReason.UNKNOWN, old - known, UNKNOWN_SECONDS)
        for path in known:
            del self._unknown[path]

    def _claimable_queues(self) -> list[str]:
        ready = self.store.ready_queues(Lane.TASK)
        if self.options.queues is not None:
            return [name for name in self.options.queues if name in ready]
        # All queues, beginning behind the one served last.
        return [name for name in ready if name > self._last_queue] + [
            name for name in ready if name <= self._last_queue
        ]

    def _claim_queue(self, name: str, limit: int) -> Sequence[Claim]:
        asked = clock.monotonic()
        try:
            claims = self.store.claim(
                Lane.TASK,
                name,
                worker_id=self.id,
                token=new_token(),
                limit=limit,
                lease_seconds=self.options.lease_seconds,
                exclude_tasks=list(self._unknown),
            )
        except DATABASE_FAULTS:
            self._strays_at = clock.monotonic()
            self._strays_until = self._strays_at + self.options.lease_seconds
            raise
        jobs = [Job(claim) for claim in claims]
        with self._jobs_lock:
            self._jobs |= {job.claim.hold: job for job in jobs}
        self._claimed_count += len(jobs)
        self._executors.put(jobs)
        if clock.monotonic() - asked > self.options.lease_seconds / 6:
            # The lease counts from when the claim was asked for, and much of it is over.
            self._extending.wake()
        return claims

    def _release_strays(self) -> None:
        """Give back what a claim took whose answer never came.

        Again and again for a lease: a server may finish a statement, and commit it, after the
        connection that sent it is gone and was replaced.
        """
        looked = clock.monotonic()
        with self._jobs_lock:
            known = set(self._jobs)
        count = self.store.release_strays(self.id, known)
        if count:
            logger.warning("stray claims released", extra={"worker_id": self.id, "count": count})
        again = looked + self.options.lease_seconds / 6
        self._strays_at = again if looked < self._strays_until else math.inf

    # Settling

    def _settle(self) -> None:
        """Write the outcomes that have gathered. A job leaves ``_jobs`` only after its settle."""
        self._gather()
        for job in [job for job in self._unwritten if job.lease_lost.is_set()]:
            self._on_answer(Settled(job, LOST))
        if not self._unwritten:
            return
        finished: list[Job] = []

        def answered(settled: Settled) -> None:
            self._on_answer(settled)
            outcome = settled.job.outcome
            if settled.place in ENDS and outcome is not None:
                finished.append(settled.job)

        try:
            settle(self.store, list(self._unwritten), answered)
        except DATABASE_FAULTS:
            for job in self._unwritten:
                job.settle_retried = True
            raise
        finally:
            if finished:
                self._executors.tell(finished)
        self._on_answered()

    def _gather(self) -> None:
        """Take over what the executors have done; not what was cut short, and ended after all."""
        for job in self._executors.take_done():
            if job.claim.hold in self._jobs and job not in self._unwritten:
                self._unwritten.append(job)

    def _on_answer(self, settled: Settled) -> None:
        job = settled.job
        self._unwritten.remove(job)
        with self._jobs_lock:
            self._jobs.pop(job.claim.hold, None)
        held = job.outcome is not None and job.outcome.verb is Verb.HOLD
        if held and registry.get(job.claim.task) is None:
            self._unknown.setdefault(job.claim.task, clock.monotonic())
        # The extender has warned of those whose lease it saw refused.
        if settled.place == LOST and not job.lease_lost.is_set():
            logger.warning("job lost to another claim", extra=self._fields(job))
        try:
            self._on_settled(settled)
        except Exception:
            # It only tells: a closed terminal, say, is no reason to stop working.
            logger.exception("outcome could not be told", extra=self._fields(job))

    def _in_flight(self) -> list[Job]:
        with self._jobs_lock:
            return list(self._jobs.values())

    def _fields(self, job: Job) -> dict[str, object]:
        claim = job.claim
        return {
            "job_id": claim.id,
            "task": claim.task,
            "queue": claim.queue_name,
            "attempt": claim.attempt,
            "worker_id": self.id,
        }

    # Ending

    def _wind_down(self) -> float:
        """Give back what has not started, wait for what runs, at most ``grace_seconds``."""
        if self._stop_asked is None:
            self._stop_asked = clock.monotonic()
            logger.info("worker stops", extra={"worker_id": self.id})
        if self._signals and not self._grace_ends:
            self._grace_ends = clock.monotonic() + self.options.grace_seconds
        unstarted = self._executors.take_unstarted() if self._signals else []
        if unstarted:
            # Without an outcome they are settled by giving them back.
            for job in unstarted:
                job.ending = True
            self._unwritten += unstarted
            return 0.0
        if not self._jobs:
            self._loop.stop()
            return 0.0
        if self._out_of_time():
            self._cut()
            self._settle()
            self._loop.stop()
            return 0.0
        return min(self.options.poll_seconds, 0.1)

    def _out_of_time(self) -> bool:
        """Tell whether what still runs has to be cut short, and note how this worker ended."""
        if self._signals >= 2:
            self._ended = Ended.CUT
        elif self._grace_ends and clock.monotonic() >= self._grace_ends:
            self._ended = Ended.GRACE_OVER
        return self._ended is not Ended.DONE

    def _cut(self) -> None:
        """Let what still runs be given back with its attempt refunded.

        With a delay: a body can no longer be stopped but with the process, which ends at once.
        """
        now = clock.monotonic()
        for job in self._in_flight():
            if not job.ending:
                job.ending = True
                job.outcome = Outcome(
                    verb=Verb.RELEASE,
                    started=job.started or now,
                    ended=now,
                    delay_seconds=CUT_DELAY_SECONDS,
                )
                self._unwritten.append(job)

    # Without the database

    def _on_fault(self, error: Exception) -> float:
        """Go on without the database for a while: at most a sixth of the lease, or 10 s."""
        connections.close_all()
        if not self._fault_count:
            logger.warning("database cannot be used", extra={"worker_id": self.id}, exc_info=error)
        self._fault_count += 1
        ends = self._signals and (not self._jobs or self._out_of_time())
        if not ends:
            return fault_pause(self._fault_count, self.options.lease_seconds)
        if self._fault_count >= LAST_TRIES:
            self._loop.stop()
        return LAST_PAUSE_SECONDS

    def _on_answered(self) -> None:
        """Note that the database did all that was asked of it."""
        if self._fault_count:
            logger.warning("database is back", extra={"worker_id": self.id})
            self._fault_count = 0
