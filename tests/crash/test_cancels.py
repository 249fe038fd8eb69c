"""A cancel that was asked of a running job, and then the end of its process or its lease (O6).

There is exactly one end state and never a second start, and `cancelled` is not said while the body
still works: it tells a file that it does, and the file has to stand still.
"""

from __future__ import annotations

import signal
import time
import uuid
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from django_workqueue.demand import Room
from django_workqueue.models import DeadJob, LiveJob, Result
from django_workqueue.store import BaseStore, CancelAnswer
from django_workqueue.threads import Executors
from django_workqueue.worker import Options, Worker
from tests import factories
from tests.crash import tasks
from tests.crash.fleet import Fleet, go_on, stop
from tests.ledger import Ledger
from tests.processes import wait_until
from tests.sound import place

pytestmark = pytest.mark.django_db(transaction=True)


def size(marker: Path) -> int:
    return marker.stat().st_size if marker.exists() else 0


def begin(ledger: Ledger, marker: Path) -> uuid.UUID:
    """Enqueue a job that tells the file *marker* that it works, until it is told to end."""
    return uuid.UUID(tasks.work_on.enqueue(str(ledger), str(marker)).id)


def asked(store: BaseStore, job_id: uuid.UUID, marker: Path) -> None:
    """Ask the running job to cancel, while its body works."""
    wait_until(lambda: size(marker) > 0, "the body's first word")
    assert store.cancel(job_id) == CancelAnswer.ASKED
    before = size(marker)
    wait_until(lambda: size(marker) > before, "another word after the cancel was asked")
    assert place(job_id) == "running"


def assert_cancelled_once(ledger: Ledger, job_id: uuid.UUID, marker: Path) -> None:
    """Assert one end state, said when the body had ended, and no start but the first."""
    wait_until(lambda: place(job_id) == "finished", "the end state")
    seen = size(marker)
    time.sleep(0.3)
    assert size(marker) == seen
    assert ledger.started() == {str(job_id): 1}
    assert not LiveJob.objects.exists()
    assert not DeadJob.objects.exists()
    assert [each.outcome for each in Result.objects.all()] == ["cancelled"]


def test_o6_a_cancel_that_was_asked_and_then_a_kill(
    fleet: Fleet, ledger: Ledger, store: BaseStore, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    job_id = begin(ledger, marker)
    worker = fleet.start_one()
    asked(store, job_id, marker)
    worker.kill()
    fleet.start_one()
    assert_cancelled_once(ledger, job_id, marker)


def test_o6_a_cancel_that_was_asked_and_then_a_stop(
    fleet: Fleet, ledger: Ledger, store: BaseStore, tmp_path: Path
) -> None:
    """The parent says it, once the process with the body is gone."""
    marker = tmp_path / "marker"
    job_id = begin(ledger, marker)
    parent = fleet.start_one("--processes", "1", "--grace", "0.2")
    asked(store, job_id, marker)
    parent.send(signal.SIGTERM)
    assert_cancelled_once(ledger, job_id, marker)
    assert parent.end() == 0


def test_o6_a_cancel_that_was_asked_and_then_a_lapse(
    fleet: Fleet, ledger: Ledger, store: BaseStore, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    job_id = begin(ledger, marker)
    worker = fleet.start_one()
    asked(store, job_id, marker)
    stop(worker)
    fleet.start_one()
    assert_cancelled_once(ledger, job_id, marker)
    Path(f"{marker}.end").touch()
    go_on(worker)
    worker.wait_for(" lost")
    assert_cancelled_once(ledger, job_id, marker)


def test_o6_a_cancel_that_was_asked_and_then_an_unknown_task(store: BaseStore) -> None:
    """Case O6: the worker that took it does not know the task."""
    job_id = factories.insert(store, now=None, task="shop.tasks.not_here")
    worker = Worker(Options(threads=1, sweep=False, drain=True))
    with mock.patch.object(Executors, "start"):
        worker._claim(Room(1, 0, 1))
    assert store.cancel(job_id) == CancelAnswer.ASKED
    worker.run()
    result: Any = Result.objects.get(pk=job_id)
    assert (result.outcome, result.attempts, result.worker_ids) == ("cancelled", 0, [])
    assert place(job_id) == "finished"
    assert not DeadJob.objects.exists()
