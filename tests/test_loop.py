"""`loop`: no wake-up is lost, stopping is prompt, errors are decided by the caller's policy."""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest

from django_workqueue import clock
from django_workqueue.loop import SIGNAL_LOOK_SECONDS, STOP_SIGNALS, Loop, raised, stop_on_signals

if TYPE_CHECKING:
    from _typeshed import TraceFunction

TIMEOUT = 10.0


class Steps:
    """A step that returns the given sleeps in turn, then stops its loop."""

    def __init__(self, *sleeps: float | Exception) -> None:
        self.sleeps = list(sleeps)
        self.count = 0
        self.loop: Loop

    def __call__(self) -> float:
        self.count += 1
        if not self.sleeps:
            self.loop.stop()
            return 0
        sleep = self.sleeps.pop(0)
        if isinstance(sleep, Exception):
            raise sleep
        return sleep


def looped(steps: Steps, on_error: Callable[[Exception], float] = raised) -> Loop:
    steps.loop = Loop(steps, on_error=on_error)
    return steps.loop


@pytest.fixture
def frozen() -> Iterator[clock.Frozen]:
    with clock.Frozen() as frozen:
        yield frozen


def started(loop: Loop) -> Loop:
    loop.run_thread("tested loop")
    return loop


def test_a_step_that_returns_zero_is_followed_at_once(frozen: clock.Frozen) -> None:
    steps = Steps(0, 0, -1)

    looped(steps).run()

    assert steps.count == 4
    assert frozen.monotonic() == 0


def test_a_loop_sleeps_what_its_step_returns(frozen: clock.Frozen) -> None:
    steps = Steps(5, 7)
    loop = started(looped(steps))

    assert frozen.wait_for_waiters(timeout=TIMEOUT)
    frozen.advance(4)
    assert frozen.wait_for_waiters(timeout=TIMEOUT)
    assert steps.count == 1
    frozen.advance(1)
    assert frozen.wait_for_waiters(timeout=TIMEOUT)
    assert steps.count == 2
    frozen.advance(7)
    assert loop.join(TIMEOUT)
    assert steps.count == 3


def test_wake_ends_a_sleep_without_end(frozen: clock.Frozen) -> None:
    steps = Steps(math.inf)
    loop = started(looped(steps))
    assert frozen.wait_for_waiters(timeout=TIMEOUT)

    loop.wake()

    assert loop.join(TIMEOUT)
    assert steps.count == 2


def test_wake_ends_a_real_sleep_without_end() -> None:
    steps = Steps(math.inf)
    loop = started(looped(steps))
    loop.wake()
    loop.wake()
    assert loop.join(TIMEOUT)


def test_a_wake_up_during_the_step_is_not_lost(frozen: clock.Frozen) -> None:
    in_step, go_on = threading.Event(), threading.Event()
    turns: list[int] = []

    def step() -> float:
        turns.append(1)
        if len(turns) == 1:
            in_step.set()
            assert go_on.wait(TIMEOUT)
            return math.inf
        loop.stop()
        return 0

    loop = Loop(step)
    started(loop)
    assert in_step.wait(TIMEOUT)
    loop.wake()
    go_on.set()

    assert loop.join(TIMEOUT)
    assert len(turns) == 2


def test_wake_ups_during_one_step_cause_one_step_more(frozen: clock.Frozen) -> None:
    turns: list[int] = []

    def step() -> float:
        turns.append(1)
        if len(turns) == 1:
            for _ in range(1000):
                loop.wake()
        return math.inf

    loop = Loop(step)
    started(loop)
    assert frozen.wait_for_waiters(timeout=TIMEOUT)
    loop.stop()

    assert loop.join(TIMEOUT)
    assert len(turns) == 2


def test_stop_during_the_step_skips_the_sleep(frozen: clock.Frozen) -> None:
    def step() -> float:
        loop.stop()
        assert loop.stopping
        return math.inf

    loop = Loop(step)
    loop.run()


def test_stop_during_the_sleep_ends_it_without_another_step(frozen: clock.Frozen) -> None:
    steps = Steps(math.inf)
    loop = started(looped(steps))
    assert frozen.wait_for_waiters(timeout=TIMEOUT)

    loop.stop()

    assert loop.join(TIMEOUT)
    assert steps.count == 1


def test_a_loop_stopped_before_it_ran_calls_no_step() -> None:
    steps = Steps()
    loop = looped(steps)
    loop.stop()

    loop.run()

    assert steps.count == 0


def test_join_answers_false_while_the_loop_runs(frozen: clock.Frozen) -> None:
    loop = started(looped(Steps(math.inf)))
    assert frozen.wait_for_waiters(timeout=TIMEOUT)

    assert loop.join(0) is False
    loop.stop()
    assert loop.join(TIMEOUT) is True


def test_join_of_a_loop_that_was_never_started_returns_at_once() -> None:
    assert looped(Steps()).join(0) is True


def test_the_error_policy_says_how_long_to_wait(frozen: clock.Frozen) -> None:
    seen: list[Exception] = []

    def on_error(error: Exception) -> float:
        seen.append(error)
        return 30

    error = OSError("the database is away")
    loop = started(looped(Steps(error), on_error))
    assert frozen.wait_for_waiters(timeout=TIMEOUT)
    frozen.advance(30)

    assert loop.join(TIMEOUT)
    assert seen == [error]


def test_without_a_policy_an_error_ends_the_loop() -> None:
    steps = Steps(OSError("away"), 0)

    with pytest.raises(OSError, match=r"^away$"):
        looped(steps).run()
    assert steps.count == 1


def test_an_error_of_another_class_than_the_policys_ends_the_loop() -> None:
    steps = Steps(ValueError("a fault of the program"))
    loop = Loop(steps, on_error=lambda error: 0, errors=(OSError,))

    with pytest.raises(ValueError, match=r"^a fault of the program$"):
        loop.run()


def test_a_policy_may_end_the_loop_by_raising() -> None:
    def give_up(error: Exception) -> float:
        raise RuntimeError("given up") from error

    with pytest.raises(RuntimeError, match=r"^given up$"):
        looped(Steps(OSError()), give_up).run()


def test_no_policy_sees_what_is_not_an_exception() -> None:
    def step() -> float:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        Loop(step, on_error=lambda error: 0).run()


def test_an_error_that_ends_a_thread_is_logged_and_raised_by_join(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = started(looped(Steps(OSError("away"))))

    with caplog.at_level(logging.ERROR), pytest.raises(OSError, match=r"^away$"):
        loop.join(TIMEOUT)

    assert loop.failed
    (record,) = caplog.records
    assert record.getMessage() == "loop ended by an error"
    assert record.__dict__["loop"] == "tested loop"


def test_a_loop_runs_in_one_thread_only() -> None:
    loop = looped(Steps())
    loop.run_thread("first")
    with pytest.raises(RuntimeError, match=r"^a loop runs once, and 'first' ran\. Make another\.$"):
        loop.run_thread("second")
    assert loop.join(TIMEOUT)


@pytest.mark.parametrize("error", [None, OSError("away")])
def test_the_end_is_called_in_the_loops_own_thread(error: Exception | None) -> None:
    threads: list[str] = []
    steps = Steps(*[error] if error else [])
    loop = Loop(steps, at_end=lambda: threads.append(threading.current_thread().name))
    steps.loop = loop
    loop.run_thread("own")
    if error:
        with pytest.raises(OSError, match="away"):
            loop.join(TIMEOUT)
    assert loop.failed or loop.join(TIMEOUT)
    assert threads == ["own"]


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_stops_a_loop_that_sleeps_in_the_main_thread(number: signal.Signals) -> None:
    asleep = threading.Event()

    def step() -> float:
        asleep.set()
        return math.inf

    def send() -> None:
        assert asleep.wait(TIMEOUT)
        os.kill(os.getpid(), number)

    loop = Loop(step)
    sender = threading.Thread(target=send)
    with stop_on_signals(lambda count: loop.stop()):
        sender.start()
        loop.run()
    sender.join(TIMEOUT)
    assert loop.stopping


class MissedSignal(clock.Frozen):
    """A clock whose waits pass at once; *handler* runs when one is over, as after a late signal."""

    def __init__(self, handler: Callable[[], None]) -> None:
        super().__init__()
        self.handler = handler

    def wait(self, event: clock.Waitable, timeout: float | None) -> bool:
        if event.wait(0):
            return True
        self.advance(timeout or 0)
        self.handler()
        return False


def test_a_signal_that_just_missed_the_sleep_is_seen_one_look_later() -> None:
    loop = Loop(lambda: 3600)

    with MissedSignal(loop.stop) as passed:
        loop.run()

    assert passed.monotonic() == SIGNAL_LOOK_SECONDS


def test_wake_may_interrupt_a_loop_at_any_line_in_its_own_thread() -> None:
    """A signal handler runs between two lines of its thread; a tracer calls wake at all of them."""
    steps = Steps(0, 60, 60)
    loop = looped(steps)
    interrupted: set[str] = set()

    def interrupt(frame: FrameType, event: str, arg: object) -> TraceFunction:
        interrupted.add(frame.f_code.co_name)
        loop.wake()
        return interrupt

    def run() -> None:
        sys.settrace(interrupt)
        try:
            loop.wake()
            loop.run()
        finally:
            sys.settrace(None)

    runner = threading.Thread(target=run, daemon=True)
    runner.start()
    runner.join(TIMEOUT)

    assert not runner.is_alive()
    assert steps.count == 4
    assert interrupted >= {"wake", "set", "clear", "wait", "run"}


def test_the_callback_is_told_how_many_signals_came() -> None:
    counts: list[int] = []
    with stop_on_signals(counts.append):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert counts == [1, 2, 3]


def begin_and_wait(begun: Any) -> None:
    """Say that this process runs, and wait for ever; in slices, to notice a signal that came."""
    begun.set()
    while True:
        clock.sleep(0.01)


def test_a_forked_process_dies_of_a_signal_and_its_parent_is_not_told() -> None:
    counts: list[int] = []
    with stop_on_signals(counts.append):
        context = multiprocessing.get_context("fork")
        begun = context.Event()
        forked = context.Process(target=begin_and_wait, args=(begun,))
        with warnings.catch_warnings():
            # Python warns of forks beside other threads; tasks do it all the same.
            warnings.simplefilter("ignore")
            forked.start()
        # Python forgets a signal that meets a process before its first instruction.
        assert begun.wait(TIMEOUT)
        forked.terminate()
        forked.join(TIMEOUT)
        try:
            assert forked.exitcode == -signal.SIGTERM
        finally:
            forked.kill()
            forked.join(TIMEOUT)
            forked.close()
    assert counts == []


def test_the_former_handlers_return_however_the_block_ends() -> None:
    def mine(number: int, frame: object) -> None: ...

    former = signal.signal(signal.SIGTERM, mine)
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(OSError, match=r"^cut$"), stop_on_signals(lambda count: None):
            assert signal.getsignal(signal.SIGTERM) is not mine
            raise OSError("cut")
        assert signal.getsignal(signal.SIGTERM) is mine
        assert signal.getsignal(signal.SIGINT) is interrupt
    finally:
        signal.signal(signal.SIGTERM, former)


def test_signals_are_refused_outside_the_main_thread() -> None:
    errors: list[str] = []

    def handle() -> None:
        try:
            with stop_on_signals(lambda count: None):
                pass
        except ValueError as error:
            errors.append(str(error))

    thread = threading.Thread(target=handle, name="other")
    thread.start()
    thread.join(TIMEOUT)
    message = (
        "signals must be handled in the main thread, got 'other'. "
        "Run the loop without signals and call its stop()."
    )
    assert errors == [message]
