"""Case D 90: a job starts after the commit it belongs to, and finds what was committed.

The worker is a process of its own, which looks for work ten times a second while the transaction
stays open for two seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import path

from django_workqueue import outbox
from django_workqueue.models import LiveJob
from tests.jobs import workqueue
from tests.processes import SETTINGS, UP, Process, lines, wait_until
from tests.relaying import storms
from tests.relaying.looking import look_for

OPEN_SECONDS = 2.0
ROUTER = "tests.relaying.routers.DataInOther"
TWO = {"settings": {**SETTINGS, "OUTBOX_DATABASES": ["other"]}, "WORKQUEUE_TEST_TWO": "1"}

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "other"]),
    pytest.mark.usefixtures("two_databases"),
]


@pytest.fixture(autouse=True)
def _no_rows(two_databases: None) -> Iterator[None]:
    yield
    Group.objects.using("other").all().delete()


Seen = Callable[[], dict[str, tuple[str, float]]]


@contextmanager
def worker(tmp_path: Path, **more: Any) -> Iterator[Seen]:
    """Run a worker; yield a function that returns, by name, what its jobs saw and when."""
    seen = tmp_path / "seen"
    options = ("--processes", "0", "--verbosity", "1")
    environment = {**storms.SETTINGS, "WORKQUEUE_TEST_DELIVERIES": str(seen), **more}
    process = Process("runworker", *options, **environment)

    def read() -> dict[str, tuple[str, float]]:
        entries = (line.split() for line in lines(seen))
        return {name: (what, float(at)) for name, what, at in entries}

    try:
        process.wait_for(UP)
        yield read
    finally:
        process.kill()


def assert_found(seen: Seen, name: str, committing: float) -> None:
    wait_until(lambda: name in seen(), f"the run of {name}")
    what, at = seen()[name]
    assert what == "found"
    assert at > committing


def test_a_job_starts_after_the_commit_of_its_own_database(tmp_path: Path) -> None:
    with worker(tmp_path) as seen:
        with transaction.atomic():
            Group.objects.create(name="row")
            look_for.enqueue("row", "default")
            time.sleep(OPEN_SECONDS)
            assert seen() == {}
            committing = time.monotonic()
        assert_found(seen, "row", committing)


def test_a_job_starts_after_the_commit_of_another_database(tmp_path: Path) -> None:
    """Its control, in the same transaction: a plain enqueue is run before the commit."""
    with workqueue(OUTBOX_DATABASES=["other"]), worker(tmp_path, **TWO) as seen:
        with transaction.atomic(using="other"):
            Group.objects.using("other").bulk_create([Group(name="row"), Group(name="control")])
            outbox.enqueue(look_for, "row", "other", using="other")
            look_for.enqueue("control", "other")
            time.sleep(OPEN_SECONDS)
            assert {name: what for name, (what, _) in seen().items()} == {"control": "missing"}
            committing = time.monotonic()
        assert_found(seen, "row", committing)
        wait_until(lambda: not LiveJob.objects.using("other").exists(), "the end of the outbox")


def buy(request: HttpRequest) -> HttpResponse:
    Group.objects.create(name="row")
    outbox.enqueue(look_for, "row", None)
    time.sleep(OPEN_SECONDS)
    return HttpResponse(str(time.monotonic()))


urlpatterns = [path("buy", buy)]


def test_a_job_starts_after_the_commit_of_a_request_whose_rows_a_router_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view knows of no database: ATOMIC_REQUESTS, a router and OUTBOX_DATABASES do."""
    monkeypatch.setitem(connections["other"].settings_dict, "ATOMIC_REQUESTS", True)
    with (
        override_settings(ROOT_URLCONF=__name__, DATABASE_ROUTERS=[ROUTER]),
        workqueue(OUTBOX_DATABASES=["other"]),
        worker(tmp_path, **TWO, WORKQUEUE_TEST_ROUTER=ROUTER) as seen,
    ):
        response = Client().get("/buy")
        assert_found(seen, "row", float(response.content))
        assert Group.objects.using("other").count() == 1
        assert not Group.objects.using("default").exists()
