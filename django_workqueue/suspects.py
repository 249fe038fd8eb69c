"""Jobs that were running when their process died: each runs alone, so that it is known who did it.

One of them may end its process again. Alone, it takes no other job's attempt along, and the next
death is charged to the right one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from .job import Job


class Suspects:
    """The suspects that a worker has claimed and not started yet."""

    def __init__(self) -> None:
        self._waiting: deque[Job] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, jobs: Iterable[Job]) -> None:
        self._waiting.extend(jobs)

    def next(self, in_flight: Collection[Job]) -> Job | None:
        """Return the suspect that may start now: when nothing else of this worker runs."""
        if not self._waiting or len(in_flight) > len(self._waiting):
            return None
        return self._waiting.popleft()

    def take(self) -> list[Job]:
        """Return those that wait; none of them will be started here."""
        waiting = list(self._waiting)
        self._waiting.clear()
        return waiting
