"""The destination of these tests: it fails at random, and writes down what it received."""

from __future__ import annotations

import os
import random
from typing import Any

from django.conf import settings as project

from django_workqueue import outbox
from django_workqueue.outbox import Message
from django_workqueue.tasks import task
from tests.app.files import append
from tests.relaying import looking  # noqa: F401  # for workers, which discover modules named so

settings: Any = project
"""With the names of tests.relaying.settings, which no other process has."""


class Refused(Exception):
    """What the destination raises."""


@outbox.destination("storm", max_attempts=10_000, backoff=0.05)
def storm(message: Message) -> None:
    if message.key == settings.STUCK or random.random() < settings.FAILURES:
        raise Refused
    append(settings.DELIVERIES, f"{message.id} {message.key} {os.getpid()}")


@task
def arrived(name: str) -> None:
    append(settings.DELIVERIES, f"{name} - {os.getpid()}")
