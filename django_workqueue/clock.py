"""Monotonic time and waiting: the one place that tests freeze.

Nothing here says what time it is. Moments come from the database or from a ``now=`` parameter;
this module only measures how long this process has waited.
"""

from __future__ import annotations

import math
import threading
import time
from types import TracebackType
from typing import Final, Protocol, Self

# Real seconds between two looks of a frozen wait at the hand-moved time.
FROZEN_LOOK_SECONDS: Final = 0.002


class Waitable(Protocol):
    """What `wait` waits for: a ``threading.Event``, or anything that waits like one."""

    def wait(self, timeout: float | None = None) -> bool: ...


class Clock(Protocol):
    """Where this module takes time from: the system, or a test."""

    def monotonic(self) -> float: ...

    def wait(self, event: Waitable, timeout: float | None) -> bool: ...


class System:
    """The machine's own monotonic clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wait(self, event: Waitable, timeout: float | None) -> bool:
        # Beyond TIMEOUT_MAX (infinity included) the lock underneath raises OverflowError.
        return event.wait(None if timeout is None else min(timeout, threading.TIMEOUT_MAX))


class Frozen:
    """A clock that stands still until `advance`. As a context manager it replaces the module's.

    Waits in other threads end when their event is set, when the time was advanced to their end,
    or when the block ends. Advance only after `wait_for_waiters` has returned True: a thread that
    has not begun to wait yet would count its timeout from the advanced time.
    """

    def __init__(self, at: float = 0.0) -> None:
        self._seconds = at
        self._ends: list[float] = []
        self._thawed = False
        self._changed = threading.Condition()

    def __enter__(self) -> Self:
        global _clock
        self._replaced, _clock = _clock, self
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        global _clock
        _clock = self._replaced
        self._thawed = True

    def advance(self, seconds: float) -> None:
        """Move the clock forward. Raises ValueError for a step backwards."""
        if not seconds >= 0:
            raise ValueError(f"seconds must be 0 or more, got {seconds!r}. Monotonic time rises.")
        with self._changed:
            self._seconds += seconds

    def wait_for_waiters(self, count: int = 1, *, timeout: float = 5.0) -> bool:
        """Return whether *count* threads came to wait within *timeout* real seconds.

        A thread whose time has come is not counted, although it may not have noticed yet.
        """

        def waiting() -> bool:
            return sum(ends > self._seconds for ends in self._ends) >= count

        with self._changed:
            return self._changed.wait_for(waiting, timeout)

    def monotonic(self) -> float:
        with self._changed:
            return self._seconds

    def wait(self, event: Waitable, timeout: float | None) -> bool:
        if event.wait(0):
            return True
        with self._changed:
            ends = math.inf if timeout is None else self._seconds + timeout
            self._ends.append(ends)
            self._changed.notify_all()
        try:
            return self._wait_until(event, ends)
        finally:
            with self._changed:
                self._ends.remove(ends)

    def _wait_until(self, event: Waitable, ends: float) -> bool:
        # A thread cannot sleep on the event and on the clock at once, so it looks at both in turn.
        while not self._thawed and self.monotonic() < ends:
            if event.wait(FROZEN_LOOK_SECONDS):
                return True
        return event.wait(0)


_clock: Clock = System()


def monotonic() -> float:
    """Return seconds since an unnamed start: only differences mean something."""
    return _clock.monotonic()


def wait(event: Waitable, timeout: float | None) -> bool:
    """Wait until *event* is set, at most *timeout* seconds (None: without end).

    Returns whether it was set.
    """
    return _clock.wait(event, timeout)


def sleep(seconds: float) -> None:
    """Wait *seconds*. Cannot be woken early: a thread that may be stopped uses `wait`."""
    _clock.wait(threading.Event(), seconds)
