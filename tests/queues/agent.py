"""What a process of the tests does with the pull API. Forked from one that has Django set up."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from typing import Any

import django

django.setup()

from django.db import transaction  # noqa: E402 - apps are ready only now

from django_workqueue.models import LiveJob  # noqa: E402
from django_workqueue.queues import Queue  # noqa: E402
from django_workqueue.store import get_store  # noqa: E402

FALLBACK_SECONDS = 30


def claim_until_empty(number: int) -> dict[str, Any]:
    """Claim one at a time until told "nothing"; say how many free jobs there were then."""
    queue, taken = Queue("agents"), []
    while claims := queue.claim(f"agent-{number}"):
        taken += [claim.payload for claim in claims]
    with transaction.atomic():
        # A job that another claim has locked is on its way to that one.
        free = LiveJob.objects.filter(state="ready").select_for_update(skip_locked=True)
        return {"taken": taken, "free": len(free)}


def produce(number: int) -> dict[str, Any]:
    """Enqueue 75 jobs, one commit each."""
    queue = Queue("agents")
    for each in range(75):
        queue.enqueue(f"{number}-{each}")
    return {}


def work_until_done(number: int) -> dict[str, Any]:
    """Claim 7 at a time and ack, until no job is live and 300 are finished."""
    from django_workqueue.models import Result

    queue, done = Queue("agents"), []
    while Result.objects.count() < 300:
        claims = queue.claim(f"agent-{number}", limit=7)
        with transaction.atomic():
            for claim in claims:
                claim.ack()
        done += [claim.payload for claim in claims]
        if not claims:
            time.sleep(0.02)  # Between looks; what is waited for is the count.
    return {"done": done}


def wait_for_one(number: int) -> dict[str, Any]:
    """Sleep until the next job is due, as an agent does, and claim it; say when."""
    queue = Queue("agents")
    passes = 0
    while not (claims := queue.claim(f"agent-{number}")):
        passes += 1
        due, now = queue.next_due(), get_store().now()
        seconds = FALLBACK_SECONDS if due is None else (due - now).total_seconds()
        time.sleep(min(max(seconds, 0.01), FALLBACK_SECONDS))
    claimed_at = LiveJob.objects.get(pk=claims[0].id).claimed_at
    assert claimed_at is not None
    return {
        "payload": claims[0].payload,
        "attempt": claims[0].attempt,
        "claimed_at": claimed_at.isoformat(),
        "passes": passes,
    }


ROLES = {
    each.__name__: each for each in (claim_until_empty, produce, work_until_done, wait_for_one)
}


def run(role: str, number: int, parent: Connection) -> None:
    """Say that this process runs, wait for the parent's word, and send what *role* did."""
    parent.send("ready")
    parent.recv()
    parent.send(ROLES[role](number))
