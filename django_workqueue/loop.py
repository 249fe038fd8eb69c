"""Call ``step()``, sleep what it returns, wake early, stop on a signal.

A step returns how many seconds to sleep before the next; 0 is "at once", infinity "until woken".
`Loop.wake` and `Loop.stop` may be called from any thread and from a signal handler.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Final

from . import clock
from .wakeup.base import Wakeup

logger = logging.getLogger("django_workqueue")

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

# A signal that arrives after the interpreter last looked and before the lock underneath blocks does
# not end the wait (seen: a hang), and its handler runs only once the wait is over. So the main
# thread, where handlers run, waits in slices of this length.
SIGNAL_LOOK_SECONDS: Final = 0.5


def raised(error: Exception) -> float:
    """End the loop: the policy of a loop that has none."""
    raise error


class Loop:
    """Calls *step* until stopped.

    An error of *step* that is one of *errors* is given to *on_error*, which returns the seconds to
    wait before the next step, or raises to end the loop. Every other error ends the loop.
    *at_end* is called in the thread that ran the loop, however it ended: to close what belongs to
    that thread, such as its database connections. *wakeup* may know of more reasons to wake.
    """

    def __init__(
        self,
        step: Callable[[], float],
        *,
        on_error: Callable[[Exception], float] = raised,
        errors: tuple[type[Exception], ...] = (Exception,),
        at_end: Callable[[], None] | None = None,
        wakeup: Wakeup | None = None,
    ) -> None:
        self._step = step
        self._on_error = on_error
        self._errors = errors
        self._at_end = at_end
        self._woken: Wakeup | _Wake = wakeup or _Wake()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called: a long step looks here between two pieces of its work."""
        return self._stopping

    def wake(self) -> None:
        """End the present sleep, or skip the next one if a step is running now."""
        self._woken.set()

    def stop(self) -> None:
        """Make `run` return after the step that is running now, without another sleep."""
        self._stopping = True
        self._woken.set()

    def run(self) -> None:
        """Call steps until `stop`; return at once if it was called before."""
        try:
            while not self._stopping:
                # Before the step, never after it: a wake-up that comes while the step runs may be
                # about work that the step has already looked past.
                self._woken.clear()
                seconds = self._turn()
                if not self._stopping:
                    self._sleep(seconds)
        finally:
            if self._at_end:
                self._at_end()

    def run_thread(self, name: str) -> None:
        """Start `run` in a daemon thread. What ends it early is logged, and raised by `join`."""
        if self._thread:
            raise RuntimeError(f"a loop runs once, and {self._thread.name!r} ran. Make another.")
        self._thread = threading.Thread(target=self._run_caught, name=name, daemon=True)
        self._thread.start()

    def join(self, timeout: float | None = None) -> bool:
        """Wait at most *timeout* seconds for the thread; return whether it ended.

        Raises the error that ended it, if one did. True if it was never started.
        """
        if self._thread:
            self._thread.join(timeout)
            if self._thread.is_alive():
                return False
        if self._failure:
            raise self._failure
        return True

    def join_until(self, ends: float) -> bool:
        """The same until the monotonic moment *ends*, which several may share."""
        return self.join(max(ends - clock.monotonic(), 0.0))

    @property
    def failed(self) -> bool:
        """Whether the thread was ended by an error: nothing it was there for happens any more."""
        return self._failure is not None

    def _turn(self) -> float:
        try:
            return self._step()
        except self._errors as error:
            return self._on_error(error)

    def _sleep(self, seconds: float) -> None:
        in_main = threading.current_thread() is threading.main_thread()
        longest = SIGNAL_LOOK_SECONDS if in_main else math.inf
        ends = clock.monotonic() + seconds
        while (left := ends - clock.monotonic()) > 0:
            if clock.wait(self._woken, min(left, longest)):
                return

    def _run_caught(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self._failure = error
            name = threading.current_thread().name
            logger.exception("loop ended by an error", extra={"loop": name})


@contextmanager
def stop_on_signals(callback: Callable[[int], None]) -> Iterator[None]:
    """Call *callback* with the number of SIGTERM and SIGINT so far, instead of dying of them.

    Restores the former handlers at the end. Only for the main thread: ValueError elsewhere.
    *callback* runs between two instructions of the main thread and must take no lock.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ValueError(
            f"signals must be handled in the main thread, got {threading.current_thread().name!r}. "
            "Run the loop without signals and call its stop()."
        )
    counts = itertools.count(1)
    installer = os.getpid()
    formers = {number: signal.getsignal(number) for number in STOP_SIGNALS}

    def handler(number: int, frame: FrameType | None) -> None:
        if os.getpid() == installer:
            callback(next(counts))
            return
        # In a process that a task forked, which has to end when multiprocessing terminates it.
        signal.signal(number, formers[signal.Signals(number)] or signal.SIG_DFL)
        signal.raise_signal(number)

    with ExitStack() as restored:
        for number in STOP_SIGNALS:
            signal.signal(number, handler)
            # None: installed by other code than Python's, which only it can put back.
            restored.callback(signal.signal, number, formers[number] or signal.SIG_DFL)
        yield


class _Wake:
    """An event that a signal handler may set.

    threading.Event may not: its lock is not re-entrant, so a handler that interrupts `wait` or
    `set` in the same thread blocks for ever. SimpleQueue.put is made to be interrupted by itself.
    """

    def __init__(self) -> None:
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        # One token says it all; many would only pile up while a step is long.
        if self._tokens.empty():
            self._tokens.put(None)

    def clear(self) -> None:
        for _ in range(self._tokens.qsize()):
            self.wait(0)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a token and take it."""
        try:
            self._tokens.get(timeout=timeout)
        except queue.Empty:
            return False
        return True
