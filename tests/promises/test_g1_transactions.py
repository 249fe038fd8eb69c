"""G1: a job exists if and only if the transaction that enqueued it commits."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_workqueue import outbox
from django_workqueue.models import LiveJob, Result
from tests.jobs import app, workqueue
from tests.outboxes import relaying
from tests.processes import wait_until
from tests.promises.work import drain, enqueue
from tests.relaying.storms import publisher
from tests.timescale import PATIENCE_SECONDS

pytestmark = pytest.mark.django_db(transaction=True)


class Abandoned(Exception):
    """Ends a transaction of these tests."""


def nothing(context: object) -> None:
    """Do nothing: these jobs do not run."""


def live() -> set[object]:
    return set(LiveJob.objects.values_list("pk", flat=True))


def test_g1_a_job_exists_exactly_when_its_transaction_commits() -> None:
    with transaction.atomic():
        committed = enqueue(nothing)
    with pytest.raises(Abandoned), transaction.atomic():
        enqueue(nothing)
        assert len(live()) == 2
        raise Abandoned
    assert live() == {committed}


def test_g1_a_savepoint_takes_its_jobs_along() -> None:
    """Case D 94."""
    with transaction.atomic():
        outer = enqueue(nothing)
        with pytest.raises(Abandoned), transaction.atomic():
            enqueue(nothing)
            raise Abandoned
        later = enqueue(nothing)
    assert live() == {outer, later}


def test_g1_a_view_that_raises_under_atomic_requests_leaves_no_job() -> None:
    """Case D 91."""

    def view(request: HttpRequest) -> HttpResponse:
        enqueue(nothing)
        raise Abandoned

    atomic_view = transaction.atomic(view)  # What ATOMIC_REQUESTS makes of a view.
    with pytest.raises(Abandoned):
        atomic_view(RequestFactory().get("/"))
    assert live() == set()


def test_g1_control_without_a_transaction_an_error_leaves_the_job() -> None:
    with pytest.raises(Abandoned):
        enqueue(nothing)
        raise Abandoned
    assert len(live()) == 1


# Across databases


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
@pytest.mark.usefixtures("two_databases")
def test_g1_across_databases_a_job_exists_exactly_when_the_data_commits() -> None:
    with workqueue(OUTBOX_DATABASES=["other"]):
        with pytest.raises(Abandoned), transaction.atomic(using="other"):
            outbox.enqueue(app.echo, "rolled back", using="other")
            raise Abandoned
        with transaction.atomic(using="other"):
            outbox.enqueue(app.echo, "committed", using="other")
        drain()
    assert [result.value for result in Result.objects.all()] == ["committed"]


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
@pytest.mark.usefixtures("two_databases")
def test_g1_across_databases_a_process_killed_after_its_commit_has_enqueued() -> None:
    """Case M6, for a job. The control beside it: killed before COMMIT, there is none."""
    settings = {"OUTBOX_DATABASES": ["other"]}
    ends = ("die-after", "die-before")
    more = {"settings": settings, "WORKQUEUE_TEST_TWO": "1"}
    processes = [publisher(when, "", "other", **more) for when in ends]
    assert [each.wait(2 * PATIENCE_SECONDS) for each in processes] == [9, 9]
    with workqueue(**settings), relaying():
        wait_until(LiveJob.objects.exists)
    job: Any = LiveJob.objects.get()
    assert (job.task, job.payload["args"]) == ("tests.relaying.tasks.arrived", ["die-after"])
    assert not LiveJob.objects.using("other").exists()
