"""`clock`: real time by default, and a frozen clock that threads wait on."""

from __future__ import annotations

import math
import threading

import pytest

from django_workqueue import clock

TIMEOUT = 10.0


def test_monotonic_time_never_falls() -> None:
    readings = [clock.monotonic() for _ in range(100)]

    assert readings == sorted(readings)


def test_a_wait_ends_at_its_timeout_with_false() -> None:
    started = clock.monotonic()

    assert clock.wait(threading.Event(), 0.01) is False
    assert clock.monotonic() - started >= 0.01


def test_a_wait_for_a_set_event_returns_true_whatever_the_timeout() -> None:
    event = threading.Event()
    event.set()

    assert [clock.wait(event, timeout) for timeout in (0, 5, math.inf, None)] == [True] * 4


def test_frozen_time_moves_only_by_hand() -> None:
    with clock.Frozen(at=100.0) as frozen:
        assert clock.monotonic() == clock.monotonic() == 100.0
        frozen.advance(2.5)
        assert clock.monotonic() == 102.5


def test_frozen_time_does_not_go_back() -> None:
    frozen = clock.Frozen()
    with pytest.raises(ValueError, match=r"^seconds must be 0 or more, got -1\."):
        frozen.advance(-1)
    with pytest.raises(ValueError, match=r"got nan\."):
        frozen.advance(math.nan)


def test_the_former_clock_returns_when_the_block_ends() -> None:
    with clock.Frozen(at=1.0):
        with clock.Frozen(at=2.0):
            assert clock.monotonic() == 2.0
        assert clock.monotonic() == 1.0
    assert clock.monotonic() != 1.0


def test_a_frozen_wait_ends_when_time_is_advanced_to_its_end_and_not_before() -> None:
    event, answers = threading.Event(), []
    with clock.Frozen() as frozen:
        waiter = threading.Thread(target=lambda: answers.append(clock.wait(event, 60)))
        waiter.start()
        assert frozen.wait_for_waiters(timeout=TIMEOUT)
        frozen.advance(59)
        assert frozen.wait_for_waiters(timeout=0)
        assert not answers
        frozen.advance(1)
        waiter.join(TIMEOUT)
    assert answers == [False]


def test_a_frozen_wait_ends_when_its_event_is_set() -> None:
    event, answers = threading.Event(), []
    with clock.Frozen() as frozen:
        waiter = threading.Thread(target=lambda: answers.append(clock.wait(event, None)))
        waiter.start()
        assert frozen.wait_for_waiters(timeout=TIMEOUT)
        event.set()
        waiter.join(TIMEOUT)
    assert answers == [True]


def test_a_frozen_sleep_lasts_until_time_is_advanced() -> None:
    with clock.Frozen() as frozen:
        sleepers = [threading.Thread(target=clock.sleep, args=(5,)) for _ in range(3)]
        for sleeper in sleepers:
            sleeper.start()
        assert frozen.wait_for_waiters(3, timeout=TIMEOUT)
        frozen.advance(5)
        for sleeper in sleepers:
            sleeper.join(TIMEOUT)
        assert not any(sleeper.is_alive() for sleeper in sleepers)


def test_threads_still_waiting_when_the_block_ends_are_let_go() -> None:
    with clock.Frozen() as frozen:
        sleeper = threading.Thread(target=clock.sleep, args=(3600,))
        sleeper.start()
        assert frozen.wait_for_waiters(timeout=TIMEOUT)
    sleeper.join(TIMEOUT)
    assert not sleeper.is_alive()


def test_an_event_that_is_set_already_counts_no_waiter() -> None:
    event = threading.Event()
    event.set()
    with clock.Frozen() as frozen:
        assert clock.wait(event, 5) is True
        assert not frozen.wait_for_waiters(timeout=0)
