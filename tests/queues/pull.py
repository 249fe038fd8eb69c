"""Short ways to a claim, and to what became of its job."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from django_workqueue.models import LiveJob
from django_workqueue.queues import Claim, Queue
from django_workqueue.store import get_store


def claim_one(queue: Queue, worker: str = "w", **options: Any) -> Claim:
    [claim] = queue.claim(worker, **options)
    return claim


def claim_one_of(queue: Queue, *, lease_seconds: float = 60, **options: Any) -> Claim:
    """Enqueue a job and claim it."""
    job_id = queue.enqueue("x", **options)
    claim = claim_one(queue, lease_seconds=lease_seconds)
    assert claim.id == job_id
    return claim


def live(job_id: uuid.UUID) -> LiveJob:
    return LiveJob.objects.get(pk=job_id)


def lapse(*claims: Claim) -> None:
    """Let the leases of *claims* have ended, a moment ago."""
    past = get_store().now() - timedelta(seconds=1)
    rows = LiveJob.objects.filter(pk__in=[claim.id for claim in claims])
    assert rows.update(lease_expires_at=past) == len(claims)
