"""A fixture for pytest-django: ``pytest_plugins = ["django_workqueue.pytest_plugin"]``.

Not an entry point: pytest would load it in every run of an environment, Django or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .testing.fixture import WorkQueue


@pytest.fixture
def workqueue(db: None) -> Iterator[WorkQueue]:
    """What ``django_workqueue.testing`` has, and a clock that is back after the test."""
    # No part of Django is imported before a test asks for it.
    from .testing.fixture import WorkQueue
    from .testing.moving_clock import moved_clock

    with moved_clock() as clock:
        yield WorkQueue(clock)
