"""G5: a job longer than its lease is not run twice while its worker lives."""

from __future__ import annotations

from typing import Any

import pytest

from django_workqueue.models import LiveJob, Result
from tests.crash import tasks
from tests.crash.fleet import Fleet
from tests.ledger import Ledger
from tests.processes import wait_until
from tests.promises.work import nap, starts
from tests.timescale import LEASE_SECONDS

pytestmark = pytest.mark.django_db(transaction=True)


def test_g5_a_job_of_three_leases_beside_idle_workers_runs_once(
    fleet: Fleet, ledger: Ledger
) -> None:
    """Case A 6: the end of the lease was moved again and again."""
    assert_runs_once(fleet, ledger, leases=3, idle_count=1)


@pytest.mark.soak
def test_g5_a_job_of_five_leases_beside_four_idle_workers_runs_once(
    fleet: Fleet, ledger: Ledger
) -> None:
    assert_runs_once(fleet, ledger, leases=5, idle_count=4)


def assert_runs_once(fleet: Fleet, ledger: Ledger, *, leases: int, idle_count: int) -> None:
    fleet.start(count=1 + idle_count)
    job_id = nap(ledger, leases * LEASE_SECONDS)
    wait_until(starts(ledger, 1), "the start")
    ends: set[object] = set()

    def finished() -> bool:
        ends.update(LiveJob.objects.values_list("lease_expires_at", flat=True))
        return Result.objects.filter(pk=job_id).exists()

    wait_until(finished, "the end")
    assert ledger.started() == {str(job_id): 1}
    assert Result.objects.get(pk=job_id).attempts == 1
    # Three a lease, less the last; and the claim's own.
    assert len(ends) >= 2 * leases


@pytest.mark.soak
def test_g5_bodies_that_give_up_no_processor_do_not_starve_the_renewal(
    fleet: Fleet, ledger: Ledger
) -> None:
    """The trap of a renewal on a thread that starves: eight bodies that only reckon."""
    calls: Any = [((str(ledger), 3 * LEASE_SECONDS), {})] * 8
    ids = [str(each.id) for each in tasks.reckon.enqueue_many(calls)]
    fleet.start_one("--threads", "8", "--no-sweep")
    wait_until(starts(ledger, 8), "eight starts")
    fleet.start_one()
    wait_until(lambda: Result.objects.count() == 8, "the ends")
    assert ledger.started() == dict.fromkeys(ids, 1)


def test_g5_control_without_extending_it_runs_twice(fleet: Fleet, ledger: Ledger) -> None:
    fleet.start(count=2, WORKQUEUE_TEST_WITHOUT="extending")
    nap(ledger, 3 * LEASE_SECONDS)
    wait_until(starts(ledger, 2), "a second start")
