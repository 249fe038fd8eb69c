"""Tables: fields, constraints, indexes and named predicates. Nothing here writes."""

from .coordination import Lock, Moved, OutboxKey, Queue, Schedule, Seen, Worker
from .jobs import SPENT, DeadJob, JobFacts, LiveJob, Result

__all__ = [
    "SPENT",
    "DeadJob",
    "JobFacts",
    "LiveJob",
    "Lock",
    "Moved",
    "OutboxKey",
    "Queue",
    "Result",
    "Schedule",
    "Seen",
    "Worker",
]
