"""A task module as Celery projects have them; the import is what was changed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from django_workqueue.contrib.celery import shared_task

logger = logging.getLogger(__name__)

bodies: dict[str, Callable[..., Any]] = {}
"""What `call` and its kin do in this process: a test puts it here."""


@shared_task
def add(x: int, y: int = 2) -> int:
    """Return the sum."""
    return x + y


@shared_task()
def call(name: str, *args: Any) -> Any:
    return bodies[name](*args)


@shared_task(bind=True, max_retries=2, default_retry_delay=30)
def call_bound(self: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    return bodies[name](self, *args, **kwargs)


@shared_task(
    bind=True,
    autoretry_for=(OSError,),
    dont_autoretry_for=(FileNotFoundError,),
    retry_backoff=5,
    retry_backoff_max=15,
    retry_jitter=False,
    max_retries=4,
)
def fetch(self: Any, name: str) -> Any:
    return bodies[name](self)


@shared_task(autoretry_for=(Exception,), retry_kwargs={"max_retries": 1, "countdown": 600})
def fragile(name: str) -> Any:
    return bodies[name]()


@shared_task(
    name="mail.send",
    queue="mail",
    priority=9,
    ignore_result=True,
    acks_late=True,
    reject_on_worker_lost=True,
    track_started=True,
    time_limit=120,
    expires=3600,
    serializer="json",
    throws=(ValueError,),
)
def with_options() -> None:
    """Do nothing."""
