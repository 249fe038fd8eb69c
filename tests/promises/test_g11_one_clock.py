"""G11: a worker whose clock is wrong steals nothing and starts nothing early."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from django_workqueue.models import LiveJob
from tests.crash.fleet import Fleet
from tests.ledger import START, Ledger, seconds
from tests.processes import wait_until
from tests.promises.work import nap, starts
from tests.sound import place
from tests.timescale import LEASE_SECONDS, SCALE

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = 3600.0


def start_skewed(fleet: Fleet, skew_seconds: float, *options: str) -> None:
    """Start a worker with a wrong clock; its start block shows how wrong: the fault is there."""
    worker = fleet.start_one(*options, WORKQUEUE_TEST_SKEW_SECONDS=str(skew_seconds))
    found = re.search(r"clock +([+-][\d.]+) s", worker.output)
    assert found is not None
    assert abs(float(found[1]) + skew_seconds) < 60


@pytest.mark.parametrize("skew_seconds", [HOUR, -HOUR])
def test_g11_a_worker_with_a_wrong_clock_steals_nothing(
    skew_seconds: float, fleet: Fleet, ledger: Ledger
) -> None:
    """Case J 161."""
    fleet.start_one("--no-sweep")
    job_id = nap(ledger, 3 * LEASE_SECONDS)
    wait_until(starts(ledger, 1), "the start")
    start_skewed(fleet, skew_seconds)
    wait_until(lambda: place(job_id) == "finished", "the end")
    assert ledger.started() == {str(job_id): 1}


@pytest.mark.parametrize("skew_seconds", [HOUR, -HOUR])
def test_g11_a_worker_with_a_wrong_clock_starts_nothing_early_and_nothing_late(
    skew_seconds: float, fleet: Fleet, ledger: Ledger
) -> None:
    start_skewed(fleet, skew_seconds)
    now = datetime.now(UTC)
    far = nap(ledger, 0.0, run_after=now + timedelta(seconds=HOUR / 2))
    due_at = seconds() + 2 * SCALE
    near = nap(ledger, 0.0, run_after=datetime.now(UTC) + timedelta(seconds=2 * SCALE))
    wait_until(starts(ledger, 1), "the job that came due")
    (entry,) = ledger.entries(START)
    assert entry.job_id == str(near)
    assert -0.1 <= entry.at - due_at <= 2.0 * SCALE
    assert LiveJob.objects.get(pk=far).state == "scheduled"


@pytest.mark.parametrize("skew_seconds", [HOUR, -HOUR])
def test_g11_a_lease_given_by_a_wrong_clock_is_as_long_as_any(
    skew_seconds: float, fleet: Fleet, ledger: Ledger
) -> None:
    start_skewed(fleet, skew_seconds, "--no-sweep")
    job_id = nap(ledger, 3 * LEASE_SECONDS)
    wait_until(starts(ledger, 1), "the start")
    job = LiveJob.objects.get(pk=job_id)
    assert job.lease_expires_at is not None
    assert abs((job.lease_expires_at - datetime.now(UTC)).total_seconds()) <= LEASE_SECONDS + 1
    fleet.start_one()
    wait_until(lambda: place(job_id) == "finished", "the end")
    assert ledger.started() == {str(job_id): 1}
