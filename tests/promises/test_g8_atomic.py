"""G8: with atomic=True the task's writes and its completion commit together, exactly once."""

from __future__ import annotations

import functools
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection

from django_workqueue.models import DeadJob, LiveJob, Lock
from django_workqueue.store import BaseStore
from tests.crash import tasks
from tests.crash.fleet import Fleet, go_on, kill_group, stop
from tests.crash.outages import cut_all
from tests.ledger import START, Ledger
from tests.processes import Process, wait_until
from tests.promises.work import starts
from tests.timescale import LEASE_SECONDS

pytestmark = pytest.mark.django_db(transaction=True)

COUNTER = "a counter"
NEVER = datetime(9000, 1, 1, tzinfo=UTC)


@pytest.fixture
def counter(store: BaseStore) -> None:
    Lock.objects.create(name=COUNTER, owner="test", token=0, expires_at=NEVER)


def counted() -> int:
    token: int = Lock.objects.values_list("token", flat=True).get(name=COUNTER)
    return token


def add(task: Any, ledger: Ledger, count: int, length: float) -> None:
    task.enqueue_many([((str(ledger), COUNTER, length), {})] * count)


def all_ended() -> bool:
    return not LiveJob.objects.exists()


def kill_within_the_first(task: Any, fleet: Fleet, ledger: Ledger) -> None:
    """Let a worker be killed between its task's write and its settle; let another do the job."""
    length = LEASE_SECONDS / 3
    doomed = fleet.start_one("--threads", "1")
    add(task, ledger, 1, length)
    wait_until(starts(ledger, 1), "the write")
    time.sleep(length / 3)
    kill_group(doomed)
    assert len(ledger.cut_short()) == 1
    fleet.start_one("--threads", "1")
    wait_until(all_ended, "the end of the job")
    assert len(ledger.entries(START)) == 2


def test_g8_a_run_that_is_killed_takes_its_writes_along(
    counter: None, fleet: Fleet, ledger: Ledger
) -> None:
    kill_within_the_first(tasks.add_one, fleet, ledger)
    assert counted() == 1


def test_g8_control_without_atomic_the_write_is_there_twice(
    counter: None, fleet: Fleet, ledger: Ledger
) -> None:
    kill_within_the_first(tasks.add_one_plainly, fleet, ledger)
    assert counted() == 2


def test_g8_every_job_counts_once_through_kills_and_cuts(
    counter: None, fleet: Fleet, ledger: Ledger
) -> None:
    assert_counts_once(fleet, ledger, job_count=60, kill_count=2, length=0.05)


@pytest.mark.soak
def test_g8_five_hundred_jobs_count_to_five_hundred(
    counter: None, fleet: Fleet, ledger: Ledger
) -> None:
    assert_counts_once(fleet, ledger, job_count=500, kill_count=5, length=0.02)


def assert_counts_once(
    fleet: Fleet, ledger: Ledger, *, job_count: int, kill_count: int, length: float
) -> None:
    threads = ("--threads", "2")
    _, *doomed = fleet.start(*threads, count=1 + kill_count)
    add(tasks.add_one, ledger, job_count, length)
    for worker in doomed:
        kill_in_a_run(worker, ledger)
        if connection.vendor != "sqlite":
            cut_all()
    wait_until(all_ended, "the end of every job")
    assert not DeadJob.objects.exists()
    assert counted() == job_count
    # Runs that were superseded or cut have rolled back; that there were some is what is tested.
    assert len(ledger.entries(START)) > job_count


def kill_in_a_run(worker: Process, ledger: Ledger) -> None:
    """Kill it between a start and its end. It is stopped first, to look without haste."""
    runs = functools.partial(runs_one, worker.pid, ledger)
    while not all_ended():
        wait_until(runs, "a run in it")
        stop(worker)
        if runs():
            kill_group(worker)
            return
        go_on(worker)


def runs_one(pid: int, ledger: Ledger) -> bool:
    """Tell whether the process runs a job now, or there is none left for it."""
    mine = [entry for entry in ledger.entries() if entry.pid == pid]
    return bool(mine and mine[-1].event == START) or all_ended()
