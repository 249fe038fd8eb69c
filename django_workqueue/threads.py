"""Executors: threads that run tasks in the order given, and an event loop for coroutines."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from django.db import connections

from . import clock, conf
from .announcing import tell_finished
from .atomically import execute_atomically
from .board import Board
from .connecting import IDLE_SECONDS, clean_connections, drop_unusable_connections, in_order
from .coroutines import Coroutines
from .executor import execute
from .job import Job, Outcome, take_all
from .outcomes import not_run, timed_out
from .starting import Begun, may_start


class Executors:
    """*count* daemon threads, and *async_tasks* coroutines at a time.

    *on_outcome* is called, in any thread, when there are outcomes to be taken.
    """

    def __init__(
        self,
        count: int,
        settings: conf.Settings,
        lease_seconds: float,
        on_outcome: Callable[[], None],
        *,
        board: Board | None = None,
        async_tasks: int = 1,
    ) -> None:
        self.count = count
        self._settings = settings
        self._lease_seconds = lease_seconds
        self._on_outcome = on_outcome
        self._begun = Begun(board)
        self._coroutines = Coroutines(async_tasks, settings, self._begun, self._end)
        # Threads wait here for something to do. The queues are taken from without its lock:
        # each end of a deque is taken and given in one step.
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._to_tell: deque[Sequence[Job]] = deque()
        self._done: deque[Job] = deque()
        # Whether on_outcome was called, and what it told of not taken yet.
        self._told = False
        self._running: set[Job] = set()
        self._stopping = False
        self._threads: list[threading.Thread] = []

    # From the worker's main thread

    def start(self) -> None:
        for number in range(self.count):
            thread = threading.Thread(
                target=self._run, name=f"workqueue-executor-{number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def put(self, jobs: Sequence[Job]) -> None:
        coroutines = [job for job in jobs if job.is_async]
        if coroutines:
            self._coroutines.put(coroutines)
            jobs = [job for job in jobs if not job.is_async]
        self._waiting.extend(jobs)
        with self._changed:
            self._changed.notify(len(jobs))

    def tell(self, jobs: Sequence[Job]) -> None:
        """Send signals for settled jobs, in an executor thread: receivers are user code."""
        coroutines = [job for job in jobs if job.is_async]
        if coroutines:
            self._coroutines.tell(coroutines)
            jobs = [job for job in jobs if not job.is_async]
        if jobs:
            self._to_tell.append(jobs)
            with self._changed:
                self._changed.notify()

    def take_done(self) -> list[Job]:
        """Return jobs with an outcome that were not taken before."""
        # First: what is added from now on is told of once more.
        self._told = False
        return take_all(self._done)

    def take_unstarted(self) -> list[Job]:
        """Return the jobs that nothing began; none of them will run."""
        return take_all(self._waiting) + self._coroutines.take_unstarted()

    def running(self) -> list[Job]:
        return [*self._running, *self._coroutines.running()]

    def cancel(self, jobs: Iterable[Job]) -> bool:
        """Cancel those of *jobs* that are coroutines; return whether there were any."""
        coroutines = [job for job in jobs if job.is_async]
        self._coroutines.cancel(coroutines)
        return bool(coroutines)

    def forget(self, job: Job) -> None:
        """Clear the slot of a job that was settled; until then it counts as begun."""
        self._begun.forget(job)

    def stop(self, timeout: float) -> bool:
        """Let the threads end once they have nothing to do; return whether they all did in time."""
        ends = clock.monotonic() + timeout
        self._stopping = True
        with self._changed:
            self._changed.notify_all()
        ended = self._coroutines.stop(timeout)
        for thread in self._threads:
            thread.join(max(ends - clock.monotonic(), 0.0))
        return ended and not any(thread.is_alive() for thread in self._threads)

    # In the threads

    def _run(self) -> None:
        used = clock.monotonic()
        try:
            while (work := self._next()) is not None:
                if clock.monotonic() - used >= IDLE_SECONDS:
                    in_order(drop_unusable_connections)
                if isinstance(work, Job):
                    self._run_job(work)
                else:
                    tell_finished(work)
                    in_order(clean_connections)
                used = clock.monotonic()
        finally:
            connections.close_all()

    def _next(self) -> Job | Sequence[Job] | None:
        while True:
            try:
                return self._to_tell.popleft() if self._to_tell else self._waiting.popleft()
            except IndexError:
                pass
            with self._changed:
                # Whoever adds notifies afterwards: looked at under the lock, nothing is missed.
                if not self._to_tell and not self._waiting:
                    if self._stopping:
                        return None
                    self._changed.wait()

    def _run_job(self, job: Job) -> None:
        self._running.add(job)
        try:
            outcome = self._outcome(job) if may_start(job) else None
        except BaseException as error:  # noqa: BLE001  # this thread is the slot, and must live on
            started = clock.monotonic() if job.started is None else job.started
            outcome = not_run(job, started, error, self._settings)
        self._running.discard(job)
        self._end(job, outcome)

    def _outcome(self, job: Job) -> Outcome | None:
        self._begun.show(job)
        job.started = clock.monotonic()
        if job.claim.atomic:
            outcome = execute_atomically(job, self._settings, self._lease_seconds)
        else:
            outcome = execute(job, self._settings)
        if job.timed_out and not job.committed:
            return timed_out(job, self._settings)
        return outcome

    def _end(self, job: Job, outcome: Outcome | None) -> None:
        job.finish(outcome)
        self._done.append(job)
        if not self._told:
            self._told = True
            self._on_outcome()
