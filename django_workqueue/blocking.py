"""Threads for the blocking calls of coroutines: Django's ORM, and `asyncio.to_thread`.

Database connections belong to the thread that made them, so they are looked after here, between
two calls, where it is still known whose call left a transaction open.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from django.db import connections

from . import clock
from .connecting import IDLE_SECONDS, clean_connections, drop_unusable_connections, in_order

Call = Callable[[], None]


class Caller:
    """What the coroutine of a job began that has not ended, and what its calls left behind."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[Any]] = set()
        self.pending: set[Future[Any]] = set()
        self.left_open: list[str] = []


caller: contextvars.ContextVar[Caller | None] = contextvars.ContextVar("caller", default=None)
"""Whose coroutine runs."""


class Blocking(ThreadPoolExecutor):
    """At most *count* daemon threads: a call that never returns must not keep a process alive.

    A ThreadPoolExecutor because asyncio takes no other; of its methods, only `submit` is used.
    With *keep_connections*, they stay open from call to call.
    """

    def __init__(self, count: int, name: str, *, keep_connections: bool) -> None:
        super().__init__(count, name)
        self._count = count
        self._name = name
        self._keep_connections = keep_connections
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._daemons: list[threading.Thread] = []

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call *function* in one of the threads. Only for the thread of the event loop."""
        future: Future[Any] = Future()
        asked_by = caller.get()
        if asked_by is not None:
            asked_by.pending.add(future)
            future.add_done_callback(asked_by.pending.discard)

        def call() -> None:
            if future.set_running_or_notify_cancel():
                self._call(future, asked_by, lambda: function(*args, **kwargs))

        self._calls.put(call)
        if not self._idle.acquire(blocking=False) and len(self._daemons) < self._count:
            name = f"{self._name}-{len(self._daemons)}"
            self._daemons.append(threading.Thread(target=self._run, name=name, daemon=True))
            self._daemons[-1].start()
        return future

    def end(self) -> None:
        """Let the threads end after the calls they have."""
        for _ in self._daemons:
            self._calls.put(None)

    def join(self, timeout: float) -> bool:
        """Wait at most *timeout* seconds for each thread; return whether all have ended."""
        for thread in self._daemons:
            thread.join(timeout)
        return not any(thread.is_alive() for thread in self._daemons)

    def _run(self) -> None:
        used = clock.monotonic()
        try:
            while (call := self._next()) is not None:
                if self._keep_connections and clock.monotonic() - used >= IDLE_SECONDS:
                    in_order(drop_unusable_connections)
                call()
                used = clock.monotonic()
        finally:
            connections.close_all()

    def _next(self) -> Call | None:
        try:
            return self._calls.get_nowait()
        except queue.Empty:
            self._idle.release()
            return self._calls.get()

    def _call(
        self, future: Future[Any], asked_by: Caller | None, function: Callable[[], Any]
    ) -> None:
        try:
            value = function()
        except BaseException as error:  # noqa: BLE001  # it is the caller's, sys.exit() too
            self._put_in_order(asked_by)
            future.set_exception(error)
        else:
            # Before the value is out: what comes next may use the connection.
            self._put_in_order(asked_by)
            future.set_result(value)

    def _put_in_order(self, asked_by: Caller | None) -> None:
        left_open = in_order(clean_connections)
        if not self._keep_connections:
            in_order(connections.close_all)
        if left_open and asked_by is not None:
            asked_by.left_open += left_open
