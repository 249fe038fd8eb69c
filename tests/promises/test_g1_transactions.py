"""G1: a job exists if and only if the transaction that enqueued it commits."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import DatabaseError, connection, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import path

from django_workqueue import outbox
from django_workqueue.models import LiveJob, Result
from django_workqueue.store import BaseStore
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


def buy(request: HttpRequest) -> HttpResponse:
    app.echo.enqueue(request.GET["name"])
    if request.GET["name"] == "bad":
        raise Abandoned
    return HttpResponse("ok")


urlpatterns = [path("buy", buy)]


def test_g1_a_view_that_raises_under_atomic_requests_leaves_no_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Case D 91: no row and no run. The view's other request is the control."""
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    with override_settings(ROOT_URLCONF=__name__):
        client = Client(raise_request_exception=False)
        assert client.get("/buy", {"name": "bad"}).status_code == 500
        assert live() == set()
        assert client.get("/buy", {"name": "good"}).status_code == 200
    drain()
    assert [result.value for result in Result.objects.all()] == ["good"]


@pytest.mark.parametrize("alias", ["default", "other"])
@pytest.mark.django_db(transaction=True, databases=["default", "other"])
@pytest.mark.usefixtures("two_databases")
def test_g1_a_job_that_cannot_be_written_takes_the_business_row_along(
    alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case D 92: there is no moment at which the order is saved and nobody will work on it."""

    def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise DatabaseError("the disk is full")

    monkeypatch.setattr(BaseStore, "insert", refuse)
    orders = Group.objects.using(alias)
    with (
        workqueue(OUTBOX_DATABASES=["other"]),
        pytest.raises(DatabaseError),
        transaction.atomic(using=alias),
    ):
        orders.create(name="order")
        outbox.enqueue(app.echo, "order", using=alias)
    assert not orders.exists()


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
