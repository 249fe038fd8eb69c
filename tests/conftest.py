"""What holds for every test: which database it runs on, and what happens where there is none."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django
import pytest
from django.apps import apps
from django.conf import settings
from django.db import connection, connections, transaction

from tests import services

pytest_plugins = ["django_workqueue.pytest_plugin"]

KEPT = ("contenttypes.ContentType", "auth.Permission")
"""What migrations make, and tests need."""

TESTS = Path(__file__).parent


SLOW = (
    "bridge/",
    "browser/",
    "crash/",
    "cron/test_changes.py",
    "promises/",
    "queues/test_processes.py",
    "races/",
    "relaying/",
    "test_commands.py",
    "test_deadlines.py",
    "test_demo.py",
    "test_lifecycle.py",
    "test_logs.py",
    "test_readme.py",
    "test_shop_import.py",
    "test_shop_orders.py",
    "test_supervisor.py",
    "test_tutorial.py",
)
"""Tests that start processes, or try thousands of cases: `python3 runtests.py` leaves them out."""

WITHOUT_DATABASE = (
    "cron/",
    "test_backoff.py",
    "test_conf.py",
    "test_docpages.py",
    "test_docs.py",
    "test_docs_samples.py",
    "test_layers.py",
    "test_payload.py",
)
"""Tests that ask no database anything: one run of several has them, that on SQLite."""


def pytest_report_header() -> str:
    """Name what this run is about, for whoever reads the log of several."""
    version = ".".join(map(str, django.VERSION[:3]))
    if settings.MISSING_SERVICE:
        return f"Django {version}, no database: all is skipped"
    started = settings.DATABASES["default"].get("HOST", "").startswith("/")
    server = f" of {services.postgresql_binaries()}" if started else ""
    return f"Django {version}, {connection.vendor}{server}, USE_TZ={settings.USE_TZ}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of other databases; skip all by name, or end, without a server."""
    for item in items:
        if str(item.path.relative_to(TESTS)).startswith(SLOW):
            item.add_marker(pytest.mark.slow)
    if settings.MISSING_SERVICE:
        if services.services_are_required():
            pytest.exit(f"A required service is missing. {settings.MISSING_SERVICE}", returncode=1)
        for item in items:
            item.add_marker(pytest.mark.skip(reason=settings.MISSING_SERVICE))
        return
    other = [item for item in items if not _is_for(connection.vendor, item)]
    if other:
        config.hook.pytest_deselected(items=other)
        items[:] = [item for item in items if _is_for(connection.vendor, item)]


@pytest.fixture
def transactional_db(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """The database itself: other threads and processes see what a test commits.

    In the place of pytest-django's: deleting the few rows of a test takes milliseconds, emptying
    every table and making content types and permissions again half a second.
    """
    with django_db_blocker.unblock():
        yield
        # What the test left open in this thread; a task may have left anything.
        connection.close()
        with connection.constraint_checks_disabled(), transaction.atomic():
            for model in apps.get_models(include_auto_created=True):
                if model._meta.managed and model._meta.label not in KEPT:
                    model._base_manager.all()._raw_delete("default")
        connections.close_all()


@pytest.fixture
def two_databases(transactional_db: None) -> Iterator[None]:
    """Both databases themselves; a test that asks for them is marked with their aliases."""
    yield
    connections["other"].close()
    with transaction.atomic(using="other"):
        for model in apps.get_app_config("workqueue").get_models():
            model._base_manager.using("other").all()._raw_delete("other")
    connections.close_all()


@pytest.fixture
def own_destinations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Destinations that a test declares are the only ones, and gone after it."""
    monkeypatch.setattr("django_workqueue.outbox.destinations._declared", {})


def _is_for(vendor: str, item: pytest.Item) -> bool:
    """Tell whether *item* runs on *vendor*: every test does, unless a mark names others."""
    if vendor != "sqlite" and str(item.path.relative_to(TESTS)).startswith(WITHOUT_DATABASE):
        return False
    return all(vendor in mark.args for mark in item.iter_markers("vendor"))
