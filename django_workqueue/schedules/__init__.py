"""Declare schedules in code: ``schedule(...)`` in each app's ``schedules.py``."""

from __future__ import annotations

from .declaring import declared, discover, schedule
from .definition import Definition, define

__all__ = ["Definition", "declared", "define", "discover", "schedule"]
