"""What every test shares: the word about a service that is not there."""

import pytest
from django.conf import settings
from environ import Env


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip by name what has no server; fail the run where services are required (as in CI)."""
    if not settings.MISSING_SERVICE:
        return
    if Env().bool("WORKQUEUE_REQUIRE_SERVICES", False):
        pytest.exit(f"A required service is missing. {settings.MISSING_SERVICE}", returncode=1)
    for item in items:
        item.add_marker(pytest.mark.skip(reason=settings.MISSING_SERVICE))
