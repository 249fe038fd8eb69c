"""G1: a job exists if and only if the transaction that enqueued it commits."""

from __future__ import annotations

import pytest
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from django_workqueue.models import LiveJob
from tests.promises.work import enqueue

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
