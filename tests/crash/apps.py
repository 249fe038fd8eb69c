"""The app that brings the crash tests' tasks into a worker, and takes safeguards out of it."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.conf import settings as django_settings


class CrashConfig(AppConfig):
    name = "tests.crash"

    def ready(self) -> None:
        from tests.crash import without

        settings: Any = django_settings
        for name in settings.CRASH_WITHOUT:
            without.SAFEGUARDS[name]()
