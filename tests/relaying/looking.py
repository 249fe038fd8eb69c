"""A task that a test may import: no destination comes with it, which every worker would relay."""

from __future__ import annotations

import time
from typing import Any

from django.conf import settings as project
from django.contrib.auth.models import Group

from django_workqueue.tasks import task
from tests.app.files import append

settings: Any = project
"""With the names of tests.relaying.settings, which no other process has."""


@task
def look_for(name: str, using: str | None) -> None:
    """Write whether a row is there, and when; *using* None: where a router finds it."""
    rows = Group.objects if using is None else Group.objects.using(using)
    found = "found" if rows.filter(name=name).exists() else "missing"
    append(settings.DELIVERIES, f"{name} {found} {time.monotonic()}")
