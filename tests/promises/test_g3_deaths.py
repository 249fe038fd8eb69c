"""G3: when a worker dies, its jobs run again within one lease plus one sweep, by themselves."""

from __future__ import annotations

import time
import uuid

import pytest

from django_workqueue.models import LiveJob
from tests.crash.fleet import Fleet
from tests.ledger import START, Ledger, seconds
from tests.processes import Process, wait_until
from tests.promises.work import nap, starts
from tests.timescale import RECLAIM_SECONDS, SCALE

pytestmark = pytest.mark.django_db(transaction=True)

SLACK_SECONDS = 2.0 * SCALE
LONG = 60.0


def kill_the_holder(fleet: Fleet, ledger: Ledger) -> tuple[uuid.UUID, float]:
    """Kill the worker that runs the only job; return the job and the moment of the kill."""
    job_id = nap(ledger, LONG)
    wait_until(starts(ledger, 1), "the start")
    (entry,) = ledger.entries(START)
    (holder,) = [worker for worker in fleet.workers if worker.pid == entry.pid]
    killed_at = seconds()
    holder.kill()
    return job_id, killed_at


def test_g3_a_dead_workers_job_runs_again_within_a_lease_and_a_sweep(
    fleet: Fleet, ledger: Ledger
) -> None:
    """Only `runworker` runs: no other command, no line of cron."""
    fleet.start(count=2)
    job_id, killed_at = kill_the_holder(fleet, ledger)
    wait_until(starts(ledger, 2), "the second start")
    again = ledger.entries(START)[1]
    assert again.job_id == str(job_id)
    assert again.at - killed_at <= RECLAIM_SECONDS + SLACK_SECONDS


def test_g3_control_without_a_sweep_it_stays_with_the_dead(fleet: Fleet, ledger: Ledger) -> None:
    workers: list[Process] = fleet.start("--no-sweep", count=2)
    job_id, _ = kill_the_holder(fleet, ledger)
    time.sleep(RECLAIM_SECONDS + SLACK_SECONDS)
    assert len(ledger.entries(START)) == 1
    assert LiveJob.objects.get(pk=job_id).state == "running"
    assert sum(not worker.ended for worker in workers) == 1
