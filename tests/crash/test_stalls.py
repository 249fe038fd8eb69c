"""A database that stood still is not the death of its workers (G5, O3).

Time is this process's monotonic clock, moved by hand; the database's own clock is left alone, and
the jobs in these tests lapsed an hour ago by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

import pytest
from django.db import OperationalError

from django_workqueue import clock, conf
from django_workqueue.extender import Extender
from django_workqueue.job import Job
from django_workqueue.store import BaseStore, Claim
from django_workqueue.sweeper import Sweeper, SweepReport
from tests import factories
from tests.sound import place

pytestmark = pytest.mark.django_db

LEASE = 30.0
SWEEP = 10.0


@pytest.fixture
def frozen() -> Iterator[clock.Frozen]:
    with clock.Frozen(at=1000.0) as frozen:
        yield frozen


class Turns:
    """A sweeper, and the time that passes between its turns."""

    def __init__(self, store: BaseStore, frozen: clock.Frozen, sweep_seconds: float) -> None:
        settings = replace(conf.current(), sweep_seconds=sweep_seconds)
        self._reports: list[SweepReport] = []
        self._frozen = frozen
        self.sweeper = Sweeper(store, settings, LEASE, on_swept=self._reports.append)
        self.asked = 0.0

    def take(self) -> int:
        """Let the sweeper take its next turn, when it asked for; return how much it reclaimed."""
        self._frozen.advance(self.asked)
        self._reports.clear()
        self.asked = self.sweeper.step()
        return sum(len(report.reclaimed) for report in self._reports)

    def fail(self) -> None:
        """Let the sweeper take a turn in which the database is gone."""
        self._frozen.advance(self.asked)
        gone = mock.patch.object(BaseStore, "glance", side_effect=OperationalError("gone"))
        with gone, pytest.raises(OperationalError):
            self.sweeper.step()
        self.asked = LEASE / 6

    def settle_in(self) -> None:
        """Take turns until the sweeper, with nothing to do, holds off no more."""
        began = clock.monotonic()
        self.take()
        while clock.monotonic() - began <= LEASE / 3:
            self.take()

    def seconds_to_reclaim(self) -> float:
        """Take turns until one job is reclaimed; return the seconds that passed since the last."""
        began = clock.monotonic()
        for _ in range(5):
            if self.take():
                return clock.monotonic() - began
        pytest.fail("nothing was reclaimed")


@pytest.fixture
def turns(store: BaseStore, frozen: clock.Frozen) -> Iterator[Turns]:
    with mock.patch.object(Sweeper, "_clocks_parted", return_value=False):
        yield Turns(store, frozen, SWEEP)


def lapsed(store: BaseStore) -> Claim:
    """Return the claim of a job whose lease ended an hour ago."""
    return factories.running(store, now=datetime.now(UTC) - timedelta(hours=1))


@contextmanager
def first(name: str, stall: Callable[[], object]) -> Iterator[None]:
    """Do *stall* within the next call of the store's method *name*."""
    method = getattr(BaseStore, name)
    stalls = [stall]

    def stalled(self: BaseStore, *args: Any, **kwargs: Any) -> Any:
        if stalls:
            stalls.pop()()
        return method(self, *args, **kwargs)

    with mock.patch.object(BaseStore, name, stalled):
        yield


def test_a_sweeper_that_just_started_reclaims_nothing_for_a_third_of_a_lease(
    store: BaseStore, turns: Turns
) -> None:
    lapsed(store)
    assert turns.take() == 0
    assert turns.seconds_to_reclaim() == pytest.approx(LEASE / 3)


def test_a_hold_off_counts_from_when_the_database_answered_again(
    store: BaseStore, turns: Turns
) -> None:
    turns.settle_in()
    lapsed(store)
    turns.fail()
    turns.fail()
    # A sixth of a lease after the last fault: an extender may come that late too.
    assert turns.take() == 0
    assert turns.seconds_to_reclaim() == pytest.approx(LEASE / 3)


def test_without_a_stall_a_lapsed_job_is_reclaimed_at_once(store: BaseStore, turns: Turns) -> None:
    turns.settle_in()
    lapsed(store)
    assert turns.take() == 1


def test_a_write_that_had_to_wait_is_a_stall(
    store: BaseStore, turns: Turns, frozen: clock.Frozen
) -> None:
    turns.settle_in()
    taken = lapsed(store)
    with first("prove_writable", lambda: frozen.advance(1.5 * LEASE)):
        assert turns.take() == 0
    assert place(taken.id) == "running"
    assert turns.seconds_to_reclaim() == pytest.approx(LEASE / 3)


def test_a_batch_that_had_to_wait_is_a_stall_for_the_next(
    store: BaseStore, turns: Turns, frozen: clock.Frozen
) -> None:
    turns.settle_in()
    lapsed(store)
    with first("expire", lambda: frozen.advance(1.5 * LEASE)):
        assert turns.take() == 0
    assert turns.seconds_to_reclaim() == pytest.approx(LEASE / 3)


def test_what_had_to_wait_after_the_last_batch_is_a_stall_for_the_next_sweep(
    store: BaseStore, turns: Turns, frozen: clock.Frozen
) -> None:
    turns.settle_in()

    def stall() -> None:
        lapsed(store)
        frozen.advance(1.5 * LEASE)

    with first("bury_unknown", stall):
        assert turns.take() == 0
    assert turns.take() == 0
    assert turns.seconds_to_reclaim() == pytest.approx(LEASE / 3)


def test_a_process_that_was_stopped_takes_nothing_back_when_it_goes_on(
    store: BaseStore, turns: Turns, frozen: clock.Frozen
) -> None:
    turns.settle_in()
    turns.take()
    lapsed(store)
    frozen.advance(2 * LEASE)
    assert turns.take() == 0
    assert turns.seconds_to_reclaim() == pytest.approx(LEASE / 3)


def test_stalls_are_looked_for_between_sweeps_too(
    store: BaseStore, frozen: clock.Frozen, turns: Turns
) -> None:
    rare = Turns(store, frozen, sweep_seconds=10 * LEASE)
    lapsed(store)
    rare.take()
    rare.take()
    assert rare.asked == LEASE / 3
    with first("prove_writable", lambda: frozen.advance(LEASE)):
        rare.take()
    assert rare.asked == LEASE / 3


def test_an_idle_database_is_not_written_to(store: BaseStore, turns: Turns) -> None:
    factories.insert(store)
    with mock.patch.object(BaseStore, "prove_writable", side_effect=AssertionError):
        turns.settle_in()
        assert turns.take() == 0


def test_proving_that_rows_can_be_written_changes_none(store: BaseStore) -> None:
    taken = lapsed(store)
    before = store.live().values().get()
    store.prove_writable()
    assert store.live().values().get() == before
    assert place(taken.id) == "running"


def test_a_sweep_that_fails_for_any_reason_is_tried_again(store: BaseStore) -> None:
    sweeper = Sweeper(store, conf.current(), LEASE)
    loop = sweeper.loop()
    errors = [KeyError("a row nobody can read"), OperationalError("gone")]

    def step() -> None:
        loop.wake()
        if errors:
            raise errors.pop()
        loop.stop()

    with (
        mock.patch.object(sweeper, "_sweep", step),
        mock.patch("django_workqueue.sweeper.connections"),
    ):
        loop.run()
    assert not errors


def extender(store: BaseStore, *jobs: Job) -> Extender:
    return Extender(store, lambda: jobs, LEASE)


def test_an_extension_that_waited_counts_from_when_it_was_asked_for(
    store: BaseStore, frozen: clock.Frozen
) -> None:
    job = Job(factories.running(store, now=None))
    assert extender(store, job).step() == LEASE / 3
    with first("extend", lambda: frozen.advance(4)):
        assert extender(store, job).step() == LEASE / 3 - 4
    # The lease it wrote may be over already: the next extension is not waited for.
    with first("extend", lambda: frozen.advance(1.5 * LEASE)):
        assert extender(store, job).step() == 0


def test_a_job_given_back_while_it_is_extended_was_not_lost(store: BaseStore) -> None:
    given_back, stolen = (Job(factories.running(store, now=None)) for _ in range(2))
    given_back.ending = True
    for job in (given_back, stolen):
        store.release(job.claim)
    extender(store, given_back, stolen).step()
    assert not given_back.lease_lost.is_set()
    assert stolen.lease_lost.is_set()
