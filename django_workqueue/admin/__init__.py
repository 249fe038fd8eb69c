"""The admin: dead jobs to be judged, corrected and requeued; everything else to be looked at.

Nothing here writes to a table of the queue except through the store. Everything reads the queue's
own database, whatever a router reads from.
"""

from __future__ import annotations

from .deadjobs import DeadJobAdmin
from .livejobs import LiveJobAdmin
from .others import LockAdmin, QueueAdmin, ResultAdmin, WorkerAdmin
from .schedules import ScheduleAdmin

__all__ = [
    "DeadJobAdmin",
    "LiveJobAdmin",
    "LockAdmin",
    "QueueAdmin",
    "ResultAdmin",
    "ScheduleAdmin",
    "WorkerAdmin",
]
