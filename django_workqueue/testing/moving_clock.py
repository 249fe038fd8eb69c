"""A database's clock that a test moves, for what is due later: retries, delays, schedules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from .. import arguments
from ..store import get_store
from ..store.core import StoreCore


class MovedClock:
    """The database's clock as this process sees it: it goes on, from where a test moved it to."""

    def now(self) -> datetime:
        """Return the moved moment."""
        return get_store().now()

    def advance(self, seconds: float) -> None:
        """Move the clock forward. Raises ValueError for a step backwards."""
        hint = "A step backwards is move_to(), with a moment."
        StoreCore.moved_seconds += arguments.seconds("seconds", seconds, hint=hint)

    def move_to(self, moment: datetime) -> None:
        """Let the clock go on from *moment*; a naive one is in Django's current time zone."""
        hint = "Give a moment such as datetime(2030, 1, 1, tzinfo=UTC)."
        wanted = arguments.moment("moment", moment, hint=hint)
        StoreCore.moved_seconds += (wanted - self.now()).total_seconds()


@contextmanager
def moved_clock() -> Iterator[MovedClock]:
    """Let a test move the clock that decides what is due; the old one is back after the block.

    Everything that asks the database's clock in this process sees it, and other processes do not.
    Python's own clock is left alone.
    """
    before = StoreCore.moved_seconds
    try:
        yield MovedClock()
    finally:
        StoreCore.moved_seconds = before
