"""django-tasks-db: its DatabaseBackend, and its command db_worker in this process, results kept.

It has settings of its own, on the database that is measured, where it makes its table. Its worker
looks at ``CONN_MAX_AGE`` before and after each job, and on Django's default connects for each:
here it keeps its connection, which its documentation does not ask for.
"""

from __future__ import annotations

from typing import Final

import django
from django.conf import settings

from tests.benchmarks import settings as measured

BACKEND: Final = "django_tasks_db.DatabaseBackend"

settings.configure(
    DATABASES={"default": {**measured.DATABASES["default"], "CONN_MAX_AGE": None}},
    INSTALLED_APPS=["django_tasks_db"],
    TASKS={"default": {"BACKEND": BACKEND}},
    TIME_ZONE=measured.TIME_ZONE,
    USE_TZ=measured.USE_TZ,
)
django.setup()

from django.core.management import call_command  # noqa: E402  # settings come first
from django.tasks import task  # noqa: E402
from django_tasks_db.models import DBTaskResult  # noqa: E402

from tests.benchmarks.spaced import Latencies, served, stamp  # noqa: E402
from tests.benchmarks.trials import Figure, timed  # noqa: E402


@task()
def nothing() -> None:
    """Do nothing."""


def empty() -> None:
    """Make its table where it is not there yet, and leave nothing in it."""
    call_command("migrate", verbosity=0)
    DBTaskResult.objects.all().delete()


@task()
def stamped(path: str, sent: float) -> None:
    stamp(path, sent)


def enqueue(count: int) -> Figure:
    """Call ``enqueue`` in autocommit, one job after another."""
    empty()
    nothing.enqueue()
    return timed(count, lambda: [nothing.enqueue() for _ in range(count)])


def drain(count: int) -> Figure:
    """Run all jobs."""
    empty()
    for _ in range(count):
        nothing.enqueue()
    options = ("--batch", "--no-startup-delay", "--verbosity", "0")
    figure = timed(count, lambda: call_command("db_worker", *options))
    assert DBTaskResult.objects.successful().count() == count
    return figure


def latency(count: int, spacing: float) -> Latencies:
    """Call ``enqueue`` for spaced jobs; its worker looks for one each second."""
    empty()
    return served(count, spacing, stamped.enqueue, serve)


def serve() -> None:
    call_command("db_worker", "--no-startup-delay", "--verbosity", "0")
