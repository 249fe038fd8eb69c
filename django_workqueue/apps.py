"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class WorkQueueConfig(AppConfig):
    """Registers the system checks."""

    name = "django_workqueue"
    label = "workqueue"
    verbose_name = _("Work queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks

        checks.register()
