"""One worker process: claim, run, settle, extend.

The main thread claims and settles, executor threads run, one thread extends leases and one
sweeps, each on a connection of its own. No transaction is open while a task runs (I5).
"""

from __future__ import annotations

import logging
import math
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from django.db import connections

from . import clock, conf
from .claimer import Claimed, Claimer
from .deadlines import look
from .demand import Room
from .ending import Ended, Ending
from .extender import Extender
from .faults import DATABASE_FAULTS, fault_pause
from .flight import Flight
from .ids import new_worker_id
from .intake import Intake, Slots
from .job import Job
from .loop import Loop
from .memory import MemoryLimit
from .parent import Parent
from .relay import Relays
from .settler import Settled
from .store import BaseStore, get_store
from .sweeper import Sweeper
from .threads import Executors
from .wakeup import TRUSTED_POLL_FACTOR, wakeup_for

logger = logging.getLogger("django_workqueue.worker")

ASYNC_TASKS = 100
"""Coroutines at a time, unless told otherwise: each costs little, and none is there until asked."""
CUT_DELAY_SECONDS = 1.0
# What coroutines get to end once they were cancelled, because the grace of a stop is over.
INTERRUPT_SECONDS = 0.5
# How long a worker that ends waits for the threads that extend, sweep and relay.
HELPER_SECONDS = 5.0
# How long a worker that claimed all it found lets executors start before it looks again: two
# threads of Python do not compute at once.
PAUSE_SECONDS = 0.001
# How often, and how long apart, a worker that ends tries to reach the database.
LAST_TRIES = 3
LAST_PAUSE_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What one worker does. *queues* None: every queue, in turn; else the order is preference."""

    queues: tuple[str, ...] | None = None
    threads: int = 4
    async_tasks: int = ASYNC_TASKS
    lease_seconds: float = 30.0
    poll_seconds: float = 1.0
    grace_seconds: float = 30.0
    max_jobs: int | None = None
    max_memory_bytes: int | None = None
    drain: bool = False
    sweep: bool = True
    # Of each outbox; 0 relays none.
    relay_threads: int = 2


class Worker:
    """Runs jobs until it is stopped, drained, or has run ``max_jobs``."""

    def __init__(
        self,
        options: Options,
        *,
        on_settled: Callable[[Settled], None] = lambda settled: None,
        parent: Parent | None = None,
    ) -> None:
        self.id = new_worker_id() if parent is None else parent.worker_id
        self._parent = parent
        self.options = options
        self.store: BaseStore = get_store()
        self.settings = conf.current()
        self.wakeup = wakeup_for(self.store)
        self._loop = Loop(
            self._step, errors=DATABASE_FAULTS, on_error=self._on_fault, wakeup=self.wakeup
        )
        self._executors = Executors(
            options.threads,
            self.settings,
            options.lease_seconds,
            self._loop.wake,
            board=None if parent is None else parent.board,
            async_tasks=options.async_tasks,
        )
        self._claimer = Claimer(self.store, self.id, options.queues, options.lease_seconds)
        self._flight = Flight(self.store, self._executors, self._claimer, on_settled)
        self._extender = Extender(self.store, self._flight.all, options.lease_seconds)
        self._extending = self._extender.loop()
        slots = Slots(
            threads=options.threads,
            async_tasks=options.async_tasks,
            max_jobs=options.max_jobs,
            memory=MemoryLimit(options.max_memory_bytes),
        )
        self._intake = Intake(
            self._claimer, self._flight, self._executors, slots, self._extend_if_late
        )
        self._helpers = [self._extending]
        if options.sweep:
            sweeper = Sweeper(self.store, self.settings, options.lease_seconds)
            self._helpers.append(sweeper.loop())
        self._relays = Relays(
            self.id,
            lease_seconds=options.lease_seconds,
            poll_seconds=options.poll_seconds,
            threads=options.relay_threads,
            on_settled=on_settled,
        )
        self._relays_drained = False
        self._fault_count = 0
        self._ending = Ending(self.id, options.grace_seconds)
        self._interrupt_ends: float | None = None
        self._closed = False

    # Life

    def run(self) -> Ended:
        """Work in this thread until the end; return how it came."""
        logger.info("worker started", extra={"worker_id": self.id})
        self._executors.start()
        for helper in self._helpers:
            helper.run_thread("workqueue-helper")
        self._relays.start()
        if self._parent is not None:
            threading.Thread(target=self._watch, args=(self._parent,), daemon=True).start()
            self._parent.board.show_ready()
        try:
            self._loop.run()
        finally:
            self._close()
        return self._ending.how

    def stop(self, count: int = 1) -> None:
        """Stop claiming and end; asked twice, at once. Safe in a signal handler."""
        parent = self._parent
        if parent is not None:
            # A service manager may send its one stop to every process: the parent counts them.
            count = max(parent.board.asked, 1)
        self._ending.signal(count)
        # A signal may come when the worker has ended and its handler is still there.
        if not self._closed:
            self._loop.wake()

    @property
    def drained(self) -> bool:
        """Whether it ended because nothing was due any more."""
        return self._ending.drained

    def _watch(self, parent: Parent) -> None:
        """Stop when the parent is gone: then nobody gives back what this process has to cut."""
        parent.show_alive_until_gone()
        logger.warning("parent is gone", extra={"worker_id": self.id})
        self._parent = None
        self.stop()

    def _close(self) -> None:
        for helper in self._helpers:
            helper.stop()
        ended = not self._ending.bodies_run
        # Bodies that still run end with the process, which must be before their jobs are due again.
        seconds = HELPER_SECONDS if ended else CUT_DELAY_SECONDS / 2
        executors_ended = self._executors.stop(self.options.grace_seconds if ended else 0.0)
        ends = clock.monotonic() + seconds
        self._relays.close(ends)
        for helper in self._helpers:
            helper.join_until(ends)
        # A body that still runs would wake through a descriptor that may be another file's by then.
        if ended and executors_ended:
            self._closed = True
            self.wakeup.close()
        else:
            self.wakeup.detach()
        connections.close_all()

    # A step: settle, claim, sleep

    def _step(self) -> float:
        for helper in (*self._helpers, *self._relays.helpers):
            if helper.failed:
                # Without its extender a worker would lose every job it runs: better none.
                helper.join()
        self.wakeup.attach()
        look_again = math.inf
        if self._flight:
            self._settle()
            look_again = self._look_for_overdue()
        self._claimer.release_strays(self._flight.holds)
        if self._ending.begun:
            return min(self._wind_down(), look_again)
        self._intake.start_suspect()
        # Before the claim, which then sees the jobs that were moved here.
        self._relays_drained = self.options.drain and self._relays.are_drained()
        look_again = min(look_again, self._intake.give_back_waiting())
        room = self._intake.room()
        told = self.wakeup.told
        self.wakeup.catch_up()
        claimed = self._claim(room, told=told)
        look_again = min(look_again, max(claimed.again_at - clock.monotonic(), 0.0))
        if claimed.count:
            # The executors of one kind may be busy now, and the others wait for what is due.
            due = self._claimer.due_seconds or math.inf
            pause = self.options.poll_seconds if claimed.full else PAUSE_SECONDS
            return min(pause, look_again, due)
        if self._enough(claimed):
            return 0.0
        return min(self._idle_seconds(room), look_again)

    def _look_for_overdue(self) -> float:
        """Give up tasks whose time is over; return the seconds to the next look."""
        overdue = look(self._flight.all(), self.settings, self.options.grace_seconds)
        self._executors.cancel(overdue.to_cancel)
        if overdue.given_up or overdue.stuck:
            self._ending.must(overdue.stuck)
        if overdue.given_up:
            self._flight.end(overdue.given_up)
            self._settle()
        return overdue.next_seconds

    def _enough(self, claimed: Claimed) -> bool:
        """Tell whether the worker came to its end by itself."""
        if self._intake.full:
            self._ending.enough(recycle=True)
        # The claim pass before this found nothing: what is ready is not for this worker.
        elif self._relays_drained and not self._flight and math.isinf(claimed.again_at):
            if self.store.seconds_to_due() == 0.0:
                return False
            logger.info("worker drained", extra={"worker_id": self.id})
            self._ending.enough(recycle=False)
        return self._ending.begun

    def _poll_seconds(self) -> float:
        rarer = TRUSTED_POLL_FACTOR if self.wakeup.trusted else 1
        return self.options.poll_seconds * rarer

    def _idle_seconds(self, room: Room) -> float:
        poll = self._poll_seconds() * random.uniform(0.8, 1.0)
        if room.total <= 0:
            return poll
        due = self._claimer.due_seconds
        # 0.0: due, but not for this worker; the poll is often enough to look again.
        return poll if not due else min(poll, due)

    def _claim(self, room: Room, *, told: bool = False) -> Claimed:
        claimed = self._intake.claim(room, told=told)
        if room.total > 0:
            self._on_answered()
        return claimed

    def _extend_if_late(self, jobs: Sequence[Job]) -> None:
        """Extend at once where the lease, which counts from the asking, is over in good part."""
        if clock.monotonic() - jobs[0].claim.received > self.options.lease_seconds / 6:
            self._extending.wake()

    def _settle(self) -> None:
        if self._flight.settle():
            self._on_answered()

    # Ending

    def _wind_down(self) -> float:
        """Give back what has not started, wait for what runs, at most ``grace_seconds``."""
        self._ending.begin()
        self._relays.stop()
        if self._ending.in_haste:
            gave_back = self._intake.give_back_unstarted()
        else:
            self._intake.start_suspect()
            gave_back = self._intake.give_back_waiting() == 0.0
        if gave_back:
            return 0.0
        in_flight = self._flight.all() + self._relays.in_flight()
        if in_flight and not self._ending.over(in_flight):
            return min(self.options.poll_seconds, 0.1)
        if self._interrupts():
            return 0.05
        self._settle()
        # A parent gives back what runs, once this process and its bodies are gone.
        if self._flight and self._parent is None:
            self._flight.cut(CUT_DELAY_SECONDS)
            self._settle()
        self._loop.stop()
        return 0.0

    def _interrupts(self) -> bool:
        """Cancel coroutines, which can be ended; tell whether some still run and may end soon."""
        running = [job for job in self._flight.all() if job.is_async and not job.ending]
        if self._interrupt_ends is None:
            self._interrupt_ends = clock.monotonic() + INTERRUPT_SECONDS
            for job in running:
                job.interrupted = True
            self._executors.cancel(running)
        return bool(running) and clock.monotonic() < self._interrupt_ends

    # Without the database

    def _on_fault(self, error: Exception) -> float:
        """Go on without the database for a while: at most a sixth of the lease, or 10 s."""
        connections.close_all()
        if not self._fault_count:
            logger.warning("database cannot be used", extra={"worker_id": self.id}, exc_info=error)
        self._fault_count += 1
        ends = self._ending.in_haste and (not self._flight or self._ending.over(self._flight.all()))
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
