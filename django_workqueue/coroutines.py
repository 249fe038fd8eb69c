"""Run tasks that are coroutines, many at a time, on one event loop in a thread of its own.

Each has its own context variables. What it calls through ``sync_to_async``, the ORM included, runs
in one other thread, one call at a time. Both are started by the first such job.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

from asgiref.sync import SyncToAsync, ThreadSensitiveContext

from . import clock, conf
from .announcing import tell_finished
from .blocking import Blocking, Caller, caller
from .executor import aexecute
from .job import Job, Outcome, Verb, take_all
from .outcomes import not_run, timed_out
from .starting import Begun, may_start, needs_mark

logger = logging.getLogger("django_workqueue.coroutines")

TO_THREAD_MAX: Final = 32
"""Threads of ``asyncio.to_thread``, as many as asyncio itself would have at most."""


class Coroutines:
    """Runs the coroutines of jobs, *count* at a time, in the order given.

    *on_ended* is called in the loop's thread with each job and its outcome; None: it did not run.
    """

    def __init__(
        self,
        count: int,
        settings: conf.Settings,
        begun: Begun,
        on_ended: Callable[[Job, Outcome | None], None],
    ) -> None:
        self.count = count
        self._settings = settings
        self._begun = begun
        self._on_ended = on_ended
        self._waiting: deque[Job] = deque()
        self._running: dict[Job, asyncio.Task[Outcome | None]] = {}
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="workqueue-coroutines", daemon=True)
        self._orm = Blocking(1, "workqueue-orm", keep_connections=True)
        self._to_thread = Blocking(TO_THREAD_MAX, "workqueue-to-thread", keep_connections=False)
        # The key under which asgiref finds our thread; it holds it weakly.
        self._sensitive = ThreadSensitiveContext()

    # From the worker's main thread

    def put(self, jobs: Sequence[Job]) -> None:
        self._waiting.extend(jobs)
        self._call(self._fill)

    def tell(self, jobs: Sequence[Job]) -> None:
        """Send signals for settled jobs, in the thread of the ORM: receivers are user code."""
        self._call(self._orm.submit, tell_finished, jobs)

    def take_unstarted(self) -> list[Job]:
        """Return the jobs that were not begun; none of them will run."""
        return take_all(self._waiting)

    def running(self) -> list[Job]:
        return list(self._running)

    def cancel(self, jobs: Iterable[Job]) -> None:
        """Raise CancelledError in the coroutines of *jobs*, where they await something."""
        for job in jobs:
            self._call(self._cancel, job)

    def stop(self, timeout: float) -> bool:
        """Let the loop end once it has nothing to do; return whether it did in time."""
        if self._loop is None:
            return True
        ends = clock.monotonic() + timeout
        self._stopping = True
        self._call(self._stop_if_idle)
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        return self._orm.join(max(ends - clock.monotonic(), 0.0))

    def _call(self, function: Callable[..., object], *args: Any) -> None:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread.start()
        self._loop.call_soon_threadsafe(function, *args)

    # In the loop's thread

    def _run(self) -> None:
        loop = self._loop
        assert loop is not None
        loop.set_task_factory(_new_task)
        loop.set_default_executor(self._to_thread)
        SyncToAsync.context_to_thread_executor[self._sensitive] = self._orm
        try:
            # What a task starts by itself, and does not await, may raise SystemExit through here.
            while not (self._stopping and not self._running and not self._waiting):
                try:
                    loop.run_forever()
                except BaseException:
                    logger.exception("event loop was left, and goes on")
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            self._orm.end()
            self._to_thread.end()
            loop.close()

    def _fill(self) -> None:
        assert self._loop is not None
        while len(self._running) < self.count:
            try:
                job = self._waiting.popleft()
            except IndexError:
                break
            asked_by = Caller()
            task = self._loop.create_task(
                self._run_job(job, asked_by), context=self._context(asked_by)
            )
            self._running[job] = task
            task.add_done_callback(partial(self._end, job))
        self._stop_if_idle()

    def _context(self, asked_by: Caller) -> contextvars.Context:
        context = contextvars.Context()
        context.run(caller.set, asked_by)
        context.run(SyncToAsync.thread_sensitive_context.set, self._sensitive)
        return context

    def _stop_if_idle(self) -> None:
        if self._stopping and not self._running and not self._waiting and self._loop is not None:
            self._loop.stop()

    def _cancel(self, job: Job) -> None:
        if job in self._running:
            self._running[job].cancel()

    async def _run_job(self, job: Job, asked_by: Caller) -> Outcome | None:
        if needs_mark(job):
            loop = asyncio.get_running_loop()
            if not await loop.run_in_executor(self._orm, may_start, job):
                return None
        elif job.lease_lost.is_set():
            return None
        self._begun.show(job)
        job.started = clock.monotonic()
        outcome = await aexecute(job, self._settings, partial(_ended, asked_by))
        if job.timed_out:
            return timed_out(job, self._settings)
        if job.interrupted and outcome.verb in {Verb.RETRY, Verb.BURY}:
            # A stop charges nothing, and the coroutine has ended: it may run elsewhere at once.
            return Outcome(verb=Verb.RELEASE, started=outcome.started, ended=outcome.ended)
        return outcome

    def _end(self, job: Job, task: asyncio.Task[Outcome | None]) -> None:
        del self._running[job]
        try:
            outcome = task.result()
        except BaseException as error:  # noqa: BLE001  # cancelled outside of its body
            outcome = None
            if job.started is not None:
                outcome = not_run(job, job.started, error, self._settings)
        self._on_ended(job, outcome)
        self._fill()


async def _ended(asked_by: Caller) -> list[str]:
    """Cancel the tasks that a coroutine began and left, and wait for its blocking calls.

    Nothing of a job may run once its end is written. A call cannot be ended from outside.
    """
    for task in asked_by.tasks:
        task.cancel()
    while asked_by.tasks or asked_by.pending:
        calls = [asyncio.wrap_future(call) for call in tuple(asked_by.pending)]
        try:
            await asyncio.wait({*asked_by.tasks, *calls})
        except asyncio.CancelledError:
            continue
    return asked_by.left_open


def _new_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    task = asyncio.Task(coroutine, loop=loop, **options)
    asked_by = caller.get()
    if asked_by is not None:
        asked_by.tasks.add(task)
        task.add_done_callback(asked_by.tasks.discard)
    return task
