"""Django's Tasks API under one name: ``django.tasks``, or else the backport ``django_tasks``.

The two are told apart here and nowhere else.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

BACKPORT: bool = importlib.util.find_spec("django.tasks") is None
"""Whether the Tasks API comes from the PyPI package django-tasks (Django below 6.0)."""

SIGNALS_LOGGER: str = "django_tasks" if BACKPORT else "django.tasks"
"""What receives the Tasks API's signals, and logs them."""

if TYPE_CHECKING or not BACKPORT:
    from django.tasks import (
        DEFAULT_TASK_BACKEND_ALIAS,
        DEFAULT_TASK_QUEUE_NAME,
        TaskContext,
        TaskResult,
        TaskResultStatus,
        task_backends,
    )
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import (
        DEFAULT_TASK_PRIORITY,
        TASK_MAX_PRIORITY,
        TASK_MIN_PRIORITY,
        Task,
        TaskError,
    )
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
else:
    try:
        from django_tasks import (
            DEFAULT_TASK_BACKEND_ALIAS,
            DEFAULT_TASK_QUEUE_NAME,
            TaskContext,
            TaskResult,
            TaskResultStatus,
            task_backends,
        )
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import (
            DEFAULT_TASK_PRIORITY,
            TASK_MAX_PRIORITY,
            TASK_MIN_PRIORITY,
            Task,
            TaskError,
        )
        from django_tasks.exceptions import InvalidTaskError as InvalidTask
        from django_tasks.exceptions import TaskResultDoesNotExist
        from django_tasks.signals import task_enqueued, task_finished, task_started
    except ModuleNotFoundError as error:
        from django.core.exceptions import ImproperlyConfigured

        raise ImproperlyConfigured(
            "Django below 6.0 has no Tasks API of its own and the package django-tasks is not "
            'installed. Install it with: pip install "django-workqueue[django52]"'
        ) from error

__all__ = [
    "BACKPORT",
    "DEFAULT_TASK_BACKEND_ALIAS",
    "DEFAULT_TASK_PRIORITY",
    "DEFAULT_TASK_QUEUE_NAME",
    "SIGNALS_LOGGER",
    "TASK_MAX_PRIORITY",
    "TASK_MIN_PRIORITY",
    "BaseTaskBackend",
    "InvalidTask",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]
