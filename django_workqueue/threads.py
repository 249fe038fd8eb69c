"""Executor threads: they take jobs in the order given, run them, and hand back outcomes."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from django.db import Error, connections

from . import clock, conf
from .announcing import tell_finished
from .atomically import execute_atomically
from .board import Board
from .connecting import clean_connections, drop_unusable_connections
from .executor import execute
from .job import Job, Outcome
from .outcomes import not_run, timed_out
from .store import get_store

logger = logging.getLogger("django_workqueue.threads")

IDLE_SECONDS: Final = 1.0
"""Connections unused for that long are tried before a job meets them: the server may have gone."""


class Executors:
    """*count* daemon threads. *on_outcome* is called, in their threads, after each job."""

    def __init__(
        self,
        count: int,
        settings: conf.Settings,
        lease_seconds: float,
        on_outcome: Callable[[], None],
        board: Board | None = None,
    ) -> None:
        self.count = count
        self._settings = settings
        self._lease_seconds = lease_seconds
        self._on_outcome = on_outcome
        self._board = board
        self._free_slots = [] if board is None else list(range(board.slots))
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._to_tell: deque[Sequence[Job]] = deque()
        self._done: deque[Job] = deque()
        self._running: set[Job] = set()
        self._stopping = False
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        for number in range(self.count):
            thread = threading.Thread(
                target=self._run, name=f"workqueue-executor-{number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    @property
    def room(self) -> int:
        """How many more jobs could start now."""
        with self._changed:
            return self.count - len(self._waiting) - len(self._running)

    def put(self, jobs: Sequence[Job]) -> None:
        with self._changed:
            self._waiting.extend(jobs)
            self._changed.notify(len(jobs))

    def tell(self, jobs: Sequence[Job]) -> None:
        """Send signals for settled jobs, in an executor thread: receivers are user code."""
        with self._changed:
            self._to_tell.append(jobs)
            self._changed.notify()

    def take_done(self) -> list[Job]:
        """Return jobs with an outcome that were not taken before."""
        with self._changed:
            done = list(self._done)
            self._done.clear()
        return done

    def take_unstarted(self) -> list[Job]:
        """Return the jobs that no thread began; none of them will run."""
        with self._changed:
            unstarted = list(self._waiting)
            self._waiting.clear()
        return unstarted

    def running(self) -> list[Job]:
        with self._changed:
            return list(self._running)

    def stop(self, timeout: float) -> bool:
        """Let the threads end once they have nothing to do; return whether they all did in time."""
        ends = clock.monotonic() + timeout
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(max(ends - clock.monotonic(), 0.0))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        used = clock.monotonic()
        try:
            while (work := self._next()) is not None:
                if clock.monotonic() - used >= IDLE_SECONDS:
                    self._in_order(drop_unusable_connections)
                if isinstance(work, Job):
                    self._run_job(work)
                else:
                    tell_finished(work)
                    self._in_order(clean_connections)
                used = clock.monotonic()
        finally:
            connections.close_all()

    @staticmethod
    def _in_order(clean: Callable[[], object]) -> None:
        """Put connections in order; one that cannot even be closed must not end this thread."""
        try:
            clean()
        except Exception:
            logger.exception("connection could not be put in order")

    def _next(self) -> Job | Sequence[Job] | None:
        with self._changed:
            while True:
                if self._to_tell:
                    return self._to_tell.popleft()
                if self._waiting:
                    job = self._waiting.popleft()
                    self._running.add(job)
                    return job
                if self._stopping:
                    return None
                self._changed.wait()

    def forget(self, job: Job) -> None:
        """Clear the slot of a job that was settled; until then it counts as begun."""
        with self._changed:
            if job.slot is not None and self._board is not None:
                self._board.end(job.slot)
                self._free_slots.append(job.slot)
                self._changed.notify_all()

    def _show_begun(self, job: Job) -> None:
        if self._board is None:
            return
        with self._changed:
            while not self._free_slots:
                self._changed.wait()
            job.slot = self._free_slots.pop()
            self._board.begin(job.slot, job.claim.hold)

    def _run_job(self, job: Job) -> None:
        try:
            outcome = self._outcome(job) if self._may_start(job) else None
        except BaseException as error:  # noqa: BLE001  # this thread is the slot, and must live on
            started = clock.monotonic() if job.started is None else job.started
            outcome = not_run(job, started, error, self._settings)
        job.finish(outcome)
        with self._changed:
            self._running.discard(job)
            self._done.append(job)
        self._on_outcome()

    def _outcome(self, job: Job) -> Outcome | None:
        self._show_begun(job)
        job.started = clock.monotonic()
        if job.claim.atomic:
            outcome = execute_atomically(job, self._settings, self._lease_seconds)
        else:
            outcome = execute(job, self._settings)
        if job.timed_out and not job.committed:
            return timed_out(job, self._settings)
        return outcome

    def _may_start(self, job: Job) -> bool:
        """Mark a job of one attempt as started in its row, before its body runs.

        If it lapses unmarked it is refunded: such a job is run at most once, and never dies
        without having run. A job that was not marked is not run; it goes back.
        """
        if job.lease_lost.is_set():
            return False
        if job.claim.max_attempts > 1:
            return True
        try:
            return bool(get_store().mark_started([job.claim]))
        except Error:
            connections.close_all()
            return False
