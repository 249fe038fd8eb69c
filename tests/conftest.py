"""What holds for every test: which database it runs on, and what happens where there is none."""

import django
import pytest
from django.conf import settings
from django.db import connection

from tests import services


def pytest_report_header() -> str:
    """Name what this run is about, for whoever reads the log of several."""
    version = ".".join(map(str, django.VERSION[:3]))
    if settings.MISSING_SERVICE:
        return f"Django {version}, no database: all is skipped"
    started = settings.DATABASES["default"].get("HOST", "").startswith("/")
    server = f" of {services.postgresql_binaries()}" if started else ""
    return f"Django {version}, {connection.vendor}{server}, USE_TZ={settings.USE_TZ}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of other databases; skip all by name, or end, without a server."""
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


def _is_for(vendor: str, item: pytest.Item) -> bool:
    """Tell whether *item* runs on *vendor*: every test does, unless a mark names others."""
    return all(vendor in mark.args for mark in item.iter_markers("vendor"))
