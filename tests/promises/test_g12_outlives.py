"""G12: a worker outlives its database, and nothing is recorded as failed because of it."""

from __future__ import annotations

import functools
import time
from typing import Any

import pytest
from django.db import connection

from django_workqueue.models import DeadJob, LiveJob, Result
from tests.crash.fleet import Fleet
from tests.crash.outages import cut_all, locked
from tests.ledger import END, Ledger
from tests.processes import Process, wait_until
from tests.promises.work import nap, starts
from tests.timescale import LEASE_SECONDS, SCALE

pytestmark = pytest.mark.django_db(transaction=True)

PROGRESS_SECONDS = 10.0


def lose_the_database() -> None:
    """Cut every connection, or for a file, let nobody write to it; for half a lease."""
    if connection.vendor == "sqlite":
        with locked():
            time.sleep(LEASE_SECONDS / 2)
        return
    for _ in range(5):
        cut_all()
        time.sleep(LEASE_SECONDS / 10)


def test_g12_the_same_workers_go_on_and_nothing_is_recorded_as_failed(
    fleet: Fleet, ledger: Ledger
) -> None:
    """Cases A 34 and J 155: while jobs run, when they end, and while nothing is to be done."""
    workers = fleet.start("--threads", "2", count=2, WORKQUEUE_TEST_BUSY_SECONDS="0.1")
    ids = [nap(ledger, LEASE_SECONDS / 4) for _ in range(4)]
    wait_until(starts(ledger, 4), "four starts")
    lose_the_database()
    ids += [nap(ledger, 0.0) for _ in range(4)]
    took = wait_until(lambda: not LiveJob.objects.exists(), "the end of every job")
    assert took < PROGRESS_SECONDS * SCALE
    lose_the_database()
    ids.append(nap(ledger, 0.0))
    wait_until(lambda: len(ledger.entries(END)) == 9, "a job after an idle time")
    wait_until(lambda: not LiveJob.objects.exists(), "its end")
    assert not any(worker.ended for worker in workers)
    assert not DeadJob.objects.exists()
    rows: Any = Result.objects.values_list("outcome", "attempts", "errors")
    assert list(rows) == [("succeeded", 1, [])] * 9
    assert ledger.started() == {str(job_id): 1 for job_id in ids}
    # The control: it bit, each worker; and each told once that it did, and once that it is over.
    for worker in workers:
        worker.wait_for("database is back")
        wait_until(functools.partial(told_both, worker), "the end of the last outage")


def told_both(worker: Process) -> bool:
    begun = worker.output.count("database cannot be used")
    return worker.output.count("database is back") == begun
