"""The pull API: work that no Django worker runs, taken, kept and settled by the caller.

    queue = Queue("agents")
    job_id = queue.enqueue({"kind": "review"}, priority=5)
    for claim in queue.claim("agent-7", lease_seconds=60):
        claim.ack(review(claim.payload))

Its jobs are in a lane of their own: a worker never sees them, whatever its queues are called.
"""

from ..exceptions import Cancelled, InTransaction, LeaseLost, PayloadError, UniqueKeyTaken
from .claims import Claim
from .queue import Queue
from .views import JobView, QueueStats

__all__ = [
    "Cancelled",
    "Claim",
    "InTransaction",
    "JobView",
    "LeaseLost",
    "PayloadError",
    "Queue",
    "QueueStats",
    "UniqueKeyTaken",
]
