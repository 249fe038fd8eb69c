"""Schedules of the tests: declared in this process, and forgotten with the test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from django_workqueue.models import LiveJob
from django_workqueue.schedules import declaring


@contextmanager
def no_declarations() -> Iterator[None]:
    """Let this process declare nothing, and have looked into the apps' modules."""
    with (
        mock.patch.object(declaring, "_declared", {}),
        mock.patch.object(declaring, "_discovered", True),
    ):
        yield


def ticks_of(name: str) -> list[Any]:
    """Return the ticks that have a live job, in order."""
    rows = LiveJob._base_manager.filter(schedule=name).order_by("scheduled_for")
    return list(rows.values_list("scheduled_for", flat=True))
