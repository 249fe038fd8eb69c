"""Ticks to jobs: deciding, firing, and the loop that does both until it is stopped."""

from __future__ import annotations

from .running import LOCK_NAME, Scheduler, in_thread
from .ticking import TickReport, as_json, once, replan, tick
from .writing import write

__all__ = [
    "LOCK_NAME",
    "Scheduler",
    "TickReport",
    "as_json",
    "in_thread",
    "once",
    "replan",
    "tick",
    "write",
]
