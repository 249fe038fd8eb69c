"""The parent of worker processes: it starts them, replaces those that end, and runs no user code.

It owns one connection, for the sweep, the rows that show workers to people, and the jobs of a
child that died: what the child had not started goes back uncharged, what it ran goes back charged
and suspect, without waiting for the lease.
"""

from __future__ import annotations

import logging
import os
import random
import signal
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from django.db import connections

from . import clock, conf, presence
from .board import Board
from .child import Child, Spawn
from .ending import EXIT_GAVE_UP, EXIT_RECYCLE
from .faults import DATABASE_FAULTS, fault_pause
from .ids import new_worker_id
from .loop import Loop
from .settler import REFUSED
from .store import BaseStore, get_store
from .sweeper import Sweeper

logger = logging.getLogger("django_workqueue.supervisor")

LOOK_SECONDS: Final = 0.25
KILL_MARGIN_SECONDS: Final = 2.0
MAX_FAILED_STARTS: Final = 5
MAX_START_PAUSE_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a supervisor keeps running: *slots* is how many tasks a child runs at once."""

    processes: int
    slots: int
    queues: tuple[str, ...] | None = None
    lease_seconds: float = 30.0
    grace_seconds: float = 30.0
    drain: bool = False
    sweep: bool = True


class Supervisor:
    """Keeps ``plan.processes`` children running until it is stopped or they drained."""

    def __init__(self, plan: Plan, spawn: Spawn) -> None:
        self.plan = plan
        self.failure = ""
        self._spawn = spawn
        self._store: BaseStore = get_store()
        self._settings = conf.current()
        self._loop = Loop(self._step, errors=DATABASE_FAULTS, on_error=self._on_fault)
        self._sweeper = Sweeper(self._store, self._settings, plan.lease_seconds)
        self._sweep_at = clock.monotonic()
        self._show_at = clock.monotonic()
        self._children: list[Child] = []
        # Ended, and their jobs not yet given back.
        self._ended: list[Child] = []
        self._wanted = plan.processes
        self._start_at = 0.0
        self._failed_starts = 0
        self._signals = 0
        self._forwarded = 0
        self._stop_asked: float | None = None
        self._cut = False
        self._fault_count = 0

    def run(self) -> int:
        """Supervise in this thread until the end; return the exit code."""
        former = signal.signal(signal.SIGCHLD, lambda number, frame: self._loop.wake())
        try:
            self._loop.run()
        finally:
            signal.signal(signal.SIGCHLD, former)
            for child in self._children:
                # After a fault of this process only: they end as they do without a parent.
                child.process.terminate()
            connections.close_all()
        return 1 if self.failure or self._signals >= 2 else 0

    def stop(self, count: int = 1) -> None:
        """Stop the children and end; asked twice, at once. Safe in a signal handler."""
        self._signals = max(self._signals, count)
        # Not in the next step, since this one may wait for the database for long.
        self._forward()
        self._loop.wake()

    # A step

    def _step(self) -> float:
        self._reap()
        for child in self._children:
            child.look()
        if self._signals:
            self._stop_children()
        else:
            self._start_missing()
        # What follows needs the database; children are looked after without it.
        self._extend_for_silent()
        while self._ended:
            self._try_to_give_back(self._ended[0])
            presence.forget(self._store, [self._ended[0].worker_id])
            self._ended.pop(0).close()
        self._sweep_and_show()
        self._fault_count = 0
        if not self._children and (self._signals or self._wanted == 0 or self.failure):
            self._loop.stop()
        return LOOK_SECONDS

    def _start_missing(self) -> None:
        if self.failure:
            self._signals = max(self._signals, 1)
            return
        while len(self._children) < self._wanted and clock.monotonic() >= self._start_at:
            self._start()

    def _start(self) -> None:
        worker_id = new_worker_id()
        with ExitStack() as opened:
            try:
                board = Board.create(self.plan.slots, self.plan.lease_seconds)
                opened.callback(board.close)
                reader, writer = os.pipe()
                opened.callback(os.close, writer)
                try:
                    process = self._spawn(worker_id, board, reader)
                finally:
                    os.close(reader)
            except OSError as error:
                # No memory, process or descriptor is left: the children there are work on.
                logger.warning("child could not be started", exc_info=error)
                self._note_failed_start(str(error))
                return
            opened.pop_all()
        child = Child(worker_id, board, process, writer)
        self._children.append(child)
        if self._forwarded:
            # The signal came while this one was being started.
            child.stop(self._forwarded)
        logger.info("child started", extra={"worker_id": worker_id, "child_pid": process.pid})

    def _reap(self) -> None:
        for child in list(self._children):
            if child.process.poll() is None:
                continue
            self._children.remove(child)
            self._ended.append(child)
            code = child.board.end_code
            if child.proven:
                self._failed_starts = 0
            if code == 0 and self.plan.drain:
                self._wanted -= 1
            elif code not in (0, EXIT_RECYCLE) and not self._signals:
                self._note_death(child)

    def _note_death(self, child: Child) -> None:
        logger.warning("child ended", extra={"worker_id": child.worker_id, "how": child.told})
        # Where it was not for a job, starting it again may end the same way.
        if not child.proven:
            self._note_failed_start(child.told)

    def _note_failed_start(self, told: str) -> None:
        self._failed_starts += 1
        pause = min(0.2 * 2.0**self._failed_starts, MAX_START_PAUSE_SECONDS)
        self._start_at = clock.monotonic() + pause * random.uniform(0.8, 1.0)
        # Those that work go on, whatever keeps another from it: broken code on disk, say.
        if self._failed_starts >= MAX_FAILED_STARTS and not any(
            child.proven for child in self._children
        ):
            self.failure = f"{MAX_FAILED_STARTS} children in a row died at once: {told}"

    # Ending

    def _stop_children(self) -> None:
        now = clock.monotonic()
        if self._stop_asked is None:
            self._stop_asked = now
        self._forward()
        grace = 0.0 if self._signals >= 2 else self.plan.grace_seconds
        if now - self._stop_asked >= grace + KILL_MARGIN_SECONDS:
            for child in self._children:
                child.kill()

    def _forward(self) -> None:
        """Pass on stops that the children were not told of. Safe in a signal handler."""
        while self._forwarded < min(self._signals, 2):
            self._forwarded += 1
            for child in self._children:
                child.stop(self._forwarded)

    # What needs the database

    def _extend_for_silent(self) -> None:
        """Extend all leases of children that cannot; a stopped process does not get that.

        After a third of a lease, when its own extension is late: the newest is up to as old.
        """
        now, third = clock.monotonic(), self.plan.lease_seconds / 3
        for child in self._children:
            if now >= child.extend_at and child.silent and child.board.silent_seconds >= third:
                child.extend_at = now + third
                jobs = self._store.extend_all(child.worker_id, self.plan.lease_seconds)
                if jobs:
                    logger.warning(
                        "leases extended for a silent child",
                        extra={"worker_id": child.worker_id, "count": len(jobs)},
                    )
                asked = {hold for hold, cancel_asked in jobs.items() if cancel_asked}
                child.heed_cancels(asked, self.plan.grace_seconds)

    def _try_to_give_back(self, child: Child) -> None:
        try:
            self._give_back(child)
        except REFUSED:
            # Asking again cannot help, and the others must not wait for it.
            logger.exception("jobs left to their leases", extra={"worker_id": child.worker_id})

    def _give_back(self, child: Child) -> None:
        """Give back the jobs of a child that ended, by what it had started and how it ended."""
        begun = child.board.running()
        # By the board, since a task may end its process with the same exit code.
        on_purpose = child.killed or child.board.end_code in (EXIT_RECYCLE, EXIT_GAVE_UP)
        if child.overdue:
            delay_seconds = self._settings.backoff.delay_seconds
            self._store.time_out(child.overdue, child.told, delay_seconds)
        count = self._store.release_strays(child.worker_id, () if on_purpose else set(begun))
        lost = self._store.lose(child.worker_id, child.told)
        presence.forget(self._store, [child.worker_id])
        if count or lost:
            logger.warning(
                "jobs of an ended child given back",
                extra={
                    "worker_id": child.worker_id,
                    "released": count,
                    "lost": [str(swept.id) for swept in lost],
                },
            )

    def _sweep_and_show(self) -> None:
        now = clock.monotonic()
        if now >= self._show_at:
            self._show_at = now + self._settings.sweep_seconds
            presence.show(
                self._store,
                {
                    child.worker_id: (child.process.pid, len(child.board.running()))
                    for child in self._children
                },
                self.plan.queues,
            )
        if self.plan.sweep and now >= self._sweep_at:
            self._sweep_at = now + self._sweep()

    def _sweep(self) -> float:
        """Sweep; return the seconds to the next time."""
        try:
            return self._sweeper.step()
        except DATABASE_FAULTS:
            raise
        except Exception:
            # One row that cannot be swept must not end the children.
            logger.exception("sweep failed")
            return self._settings.sweep_seconds

    def _on_fault(self, error: Exception) -> float:
        connections.close_all()
        if not self._fault_count:
            logger.warning("database cannot be used", exc_info=error)
        self._fault_count += 1
        if self._signals and not self._children:
            # Their leases give the jobs back.
            self._loop.stop()
        return min(fault_pause(self._fault_count, self.plan.lease_seconds), LOOK_SECONDS * 4)
