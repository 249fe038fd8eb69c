"""Many workers and many writers: nothing is done twice, and no lost race reaches anybody."""

from __future__ import annotations

import threading
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection, transaction

from django_workqueue.models import DeadJob, LiveJob, Lock, Result
from tests.crash import tasks
from tests.crash.fleet import Fleet
from tests.ledger import Ledger
from tests.processes import wait_until
from tests.threads import in_thread

pytestmark = pytest.mark.django_db(transaction=True)

NEVER = datetime(9000, 1, 1, tzinfo=UTC)


def test_each_of_many_jobs_runs_once_beside_other_writers(fleet: Fleet, ledger: Ledger) -> None:
    """Cases A 10, A 11, A 32 and F 118."""
    assert_each_runs_once(fleet, ledger, worker_count=3, job_count=300)


@pytest.mark.soak
def test_each_of_five_thousand_jobs_runs_once(fleet: Fleet, ledger: Ledger) -> None:
    assert_each_runs_once(fleet, ledger, worker_count=6, job_count=5000)


def assert_each_runs_once(
    fleet: Fleet, ledger: Ledger, *, worker_count: int, job_count: int
) -> None:
    # With some time to lose races in: the statements of all of them wait for each other.
    fleet.start(count=worker_count)
    over = threading.Event()

    def write() -> int:
        """Write as a web process does, in short transactions, until the jobs are done."""
        name, count = uuid.uuid4().hex, 0
        Lock.objects.create(name=name, owner="web", token=0, expires_at=NEVER)
        while not over.wait(0.005):
            with transaction.atomic():
                token = Lock.objects.values_list("token", flat=True).get(name=name)
                Lock.objects.filter(name=name).update(token=token + 1)
                tasks.nap.enqueue(str(ledger), 0.0)
            count += 1
            if count == job_count // 10:
                break
        return count

    writers = [in_thread(write) for _ in range(2)]
    calls: Any = [((str(ledger), 0.0), {})] * job_count
    tasks.nap.enqueue_many(calls)
    written = sum(writer() for writer in writers)
    wait_until(lambda: not LiveJob.objects.exists(), "the end of every job")
    over.set()
    assert written > 0
    assert Result.objects.filter(attempts=1).count() == job_count + written
    assert not DeadJob.objects.exists()
    started = ledger.started()
    assert len(started) == job_count + written
    assert set(started.values()) == {1}
    assert len({entry.pid for entry in ledger.entries()}) > 1, "one worker did it all"
    output = fleet.output()
    for trouble in ("database cannot be used", "locked", "IntegrityError", "lost", "Traceback"):
        assert trouble not in output, f"{trouble} on {connection.vendor}"
