"""Ticks to jobs: any number of schedulers may run, and each tick fires once (G9).

One leads by a lock, so that the others rest; what makes it once is not the lock but the schedule's
row, which moves in the transaction that inserts the job (I7).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from django.db import connections

from .. import clock, conf, wakeup
from ..faults import DATABASE_FAULTS, fault_pause
from ..locks import lock
from ..loop import Loop
from ..store import BaseStore, get_store
from . import writing
from .ticking import TickReport, replan, tick

logger = logging.getLogger("django_workqueue.scheduler")

LOCK_NAME: Final = "django_workqueue.scheduler"
REPLAN_SECONDS: Final = 3_600.0
LOOK_AGAIN_SECONDS: Final = 0.1
"""After a tick that somebody else had taken: it is due until that one has written."""


class Scheduler:
    """Leads or stands by, and fires what is due while it leads."""

    def __init__(
        self,
        store: BaseStore,
        settings: conf.Settings,
        *,
        on_tick: Callable[[TickReport], None] = lambda report: None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._on_tick = on_tick
        # Half a lease, and looked at often: another leads within one (case 54).
        self._ttl = settings.lease_seconds / 2
        self._lock = lock(LOCK_NAME, ttl=self._ttl, using=store.alias)
        self._wakeup = wakeup.schedule_wakeup_for(store)
        self._leading = False
        self._ask_at = clock.monotonic()
        self._replan_at = clock.monotonic()
        self._written = False
        self._fault_count = 0
        self._loop = Loop(
            self.step, on_error=self._on_fault, at_end=self._close, wakeup=self._wakeup
        )

    def run(self) -> None:
        """Schedule in this thread until `stop`."""
        self._loop.run()

    def run_thread(self) -> None:
        self._loop.run_thread("scheduler")

    def stop(self, count: int = 1) -> None:
        """End after the schedule that is being fired. Safe in a signal handler."""
        self._loop.stop()

    def join(self, timeout: float | None = None) -> bool:
        return self._loop.join(timeout)

    @property
    def leading(self) -> bool:
        return self._leading

    def step(self) -> float:
        """Fire what is due, if this one leads; return the seconds to the next step."""
        self._wakeup.attach()
        now = clock.monotonic()
        if now >= self._replan_at:
            self._look_around()
            self._replan_at = now + REPLAN_SECONDS
        if not self._leads():
            return self._ttl / 4
        report = tick(self._store, self._settings, go_on=lambda: not self._loop.stopping)
        self._on_tick(report)
        self._fault_count = 0
        if report.has_more:
            return 0.0
        return max(self._rest(), LOOK_AGAIN_SECONDS if report.passed_over else 0.0)

    def _look_around(self) -> None:
        """Write what is declared, once; then only say that it still is. Plan afresh."""
        if self._written:
            writing.keep_alive(self._store)
        else:
            writing.write(self._store)
            self._written = True
        replan(self._store)

    def _leads(self) -> bool:
        if clock.monotonic() >= self._ask_at:
            # Acquired again by the same owner, it lasts a whole ttl more.
            leading = self._lock.acquire()
            self._ask_at = clock.monotonic() + self._ttl / 4
            if leading != self._leading:
                logger.info("scheduler leads" if leading else "scheduler stands by")
            self._leading = leading
        return self._leading

    def _rest(self) -> float:
        poll = self._settings.poll_seconds
        most = poll * wakeup.TRUSTED_POLL_FACTOR if self._wakeup.trusted else poll
        until_tick = self._store.seconds_to_tick()
        until_ask = max(self._ask_at - clock.monotonic(), 0.0)
        return min(most, until_ask, most if until_tick is None else until_tick)

    def _on_fault(self, error: Exception) -> float:
        connections.close_all()
        if not self._fault_count:
            known = isinstance(error, DATABASE_FAULTS)
            logger.warning(
                "scheduling failed",
                extra={"error": type(error).__name__},
                exc_info=None if known else error,
            )
        self._fault_count += 1
        return fault_pause(self._fault_count, self._settings.lease_seconds)

    def _close(self) -> None:
        try:
            if self._leading:
                self._lock.release()
        except DATABASE_FAULTS:
            logger.warning("lock not released", extra={"lock": LOCK_NAME})
        finally:
            self._wakeup.close()
            connections.close_all()


@contextmanager
def in_thread(settings: conf.Settings, *, wanted: bool = True) -> Iterator[None]:
    """Run a scheduler beside the block, on a connection of its own, if it is *wanted*."""
    if not wanted:
        yield
        return
    scheduler = Scheduler(get_store(), settings)
    scheduler.run_thread()
    try:
        yield
    finally:
        scheduler.stop()
        scheduler.join(settings.grace_seconds)
