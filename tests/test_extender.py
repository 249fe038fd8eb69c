"""`extender`: leases are extended at a third of their time, and what was asked is learnt (N16)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import InterfaceError, OperationalError

from django_workqueue import clock
from django_workqueue.extender import Extender
from django_workqueue.faults import MAX_PAUSE_SECONDS, fault_pause
from django_workqueue.job import Job
from django_workqueue.models import LiveJob
from django_workqueue.store import get_store
from tests import jobs
from tests.jobs import app
from tests.store_faults import Fault, with_faults
from tests.timescale import PATIENCE_SECONDS

pytestmark = pytest.mark.usefixtures("transactional_db")

LEASE = 30.0


def claimed(count: int = 1, lease_seconds: float = 5) -> list[Job]:
    app.echo.enqueue_many([((number,), {}) for number in range(count)])
    return [Job(claim) for claim in jobs.claim(limit=count, lease_seconds=lease_seconds)]


def extender(held: list[Job], *faults: Fault) -> Extender:
    return Extender(with_faults(get_store(), *faults), lambda: held, LEASE)


def row(job: Job) -> Any:
    return LiveJob.objects.get(pk=job.claim.id)


def taken_over(job: Job) -> None:
    get_store().reclaim(now=row(job).lease_expires_at + timedelta(seconds=1))
    assert jobs.claim()


def test_a_step_moves_the_end_of_every_lease_and_comes_again_at_a_third() -> None:
    held = claimed(3)

    # Counted from the beginning of the step.
    assert extender(held).step() == pytest.approx(LEASE / 3, abs=1)

    for job in held:
        left = row(job).lease_expires_at - get_store().now()
        assert timedelta(seconds=LEASE - 5) < left <= timedelta(seconds=LEASE)
        assert not job.lease_lost.is_set()


def test_without_jobs_a_step_asks_the_database_nothing(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        assert extender([]).step() == pytest.approx(LEASE / 3, abs=1)


def test_a_cancel_that_was_asked_reaches_the_job() -> None:
    asked, other = held = claimed(2)
    get_store().cancel(asked.claim.id)

    extender(held).step()

    assert asked.cancelled.is_set()
    assert not other.cancelled.is_set()


def test_a_lease_that_is_refused_while_the_job_runs_is_lost_and_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lost, kept = held = claimed(2)
    get_store().release(lost.claim)
    late = extender(held)

    late.step()
    late.step()

    assert lost.lease_lost.is_set()
    assert not kept.lease_lost.is_set()
    assert jobs.logged(caplog) == ["lease lost"]


def test_a_lease_that_is_refused_after_the_job_has_ended_is_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (job,) = held = claimed()
    job.ending = True
    get_store().release(job.claim)

    extender(held).step()

    assert not job.lease_lost.is_set()
    assert jobs.logged(caplog) == []


def test_a_late_holder_whose_job_nobody_took_holds_it_still() -> None:
    (job,) = held = claimed()
    LiveJob.objects.update(lease_expires_at=get_store().now() - timedelta(hours=1))

    extender(held).step()

    assert not job.lease_lost.is_set()
    assert row(job).lease_expires_at > get_store().now()


def test_a_job_that_another_claim_took_is_not_extended() -> None:
    (job,) = held = claimed()
    taken_over(job)
    before = row(job).lease_expires_at

    extender(held).step()

    assert job.lease_lost.is_set()
    assert row(job).lease_expires_at == before


def test_progress_is_written_with_the_next_extension() -> None:
    (job,) = held = claimed()
    job.note_progress({"done": 1})

    extender(held).step()

    assert row(job).progress == {"done": 1}
    assert job.progress is None


@pytest.mark.parametrize("error", [OperationalError("cut"), InterfaceError("closed")])
def test_an_extension_that_raises_leaves_the_job_running_and_is_tried_again(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Case N16."""
    (job,) = held = claimed()
    before = row(job).lease_expires_at
    fault = Fault("extend", error, times=2)
    with clock.Frozen() as frozen:
        loop = extender(held, fault).loop()
        loop.run_thread("extender of the tests")
        for bitten in (1, 2):
            assert frozen.wait_for_waiters(timeout=PATIENCE_SECONDS)
            assert fault.bitten == bitten
            frozen.advance(LEASE / 6)
        assert frozen.wait_for_waiters(timeout=PATIENCE_SECONDS)
        loop.stop()
        assert loop.join(PATIENCE_SECONDS)

    assert not job.lease_lost.is_set()
    assert row(job).lease_expires_at > before
    assert jobs.logged(caplog) == ["leases cannot be extended"]


@pytest.mark.parametrize("lease_seconds", [0.5, 6, 30, 600])
def test_a_pause_after_faults_is_never_longer_than_a_sixth_of_the_lease(
    lease_seconds: float,
) -> None:
    for count in (1, 2, 5, 50, 5_000):
        assert 0 < fault_pause(count, lease_seconds) <= min(lease_seconds / 6, MAX_PAUSE_SECONDS)
