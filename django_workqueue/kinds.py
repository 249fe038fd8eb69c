"""Whether a queue holds tasks for threads, coroutines, or both, and which of them to ask for.

A row does not say which kind its task is; the registry does. A queue of one kind is claimed from
as it is. From a mixed one each kind is claimed by itself, by leaving out the tasks of the other:
a worker whose threads are all busy still takes coroutines, and no more jobs than it can start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from . import clock, registry
from .job import Job
from .states import Lane
from .store import BaseStore
from .store.finding import front_tasks

FRONT: Final = 1_000
"""How many jobs of the other kind a claim steps over at most."""
PAUSE_SECONDS: Final = 0.1
PAUSE_FACTOR: Final = 20.0
"""A look that found none of a kind is not repeated for that many times as long as it took."""


class Kinds:
    """What one worker knows of the kinds of task in each queue."""

    def __init__(self, store: BaseStore) -> None:
        self._store = store
        self._seen: dict[str, set[bool]] = {}
        # The tasks at the front of a queue, in this pass.
        self._fronts: dict[str, set[str]] = {}
        # Of a queue and a kind, when it is worth another look.
        self._again_at: dict[tuple[str, bool], float] = {}
        self.passed_over_until = math.inf
        """Infinite, or the monotonic time at which a kind that was not looked for is, first."""

    def begin(self) -> None:
        """Begin a pass over the queues."""
        self._fronts.clear()
        self.passed_over_until = math.inf

    def of(self, queue_name: str) -> list[bool]:
        """Return the kinds that jobs of a queue may be: whether they are coroutines."""
        if not registry.has_coroutines():
            return [False]
        kinds = registry.kinds(queue_name) | self._seen.get(queue_name, set())
        return sorted(kinds) or [False, True]

    def note(self, queue_name: str, jobs: Sequence[Job]) -> None:
        """Note which kinds a claim brought."""
        self._seen.setdefault(queue_name, set()).update(job.is_async for job in jobs)

    def worth(self, queue_name: str, kind: bool) -> bool:  # noqa: FBT001
        """Tell whether a claim of one kind from a mixed queue will find some.

        Otherwise it might step over a million jobs of the other kind, with locks in its hands.
        """
        began = clock.monotonic()
        again_at = self._again_at.get((queue_name, kind), 0.0)
        if began < again_at:
            self.passed_over_until = min(self.passed_over_until, again_at)
            return False
        if queue_name not in self._fronts:
            self._fronts[queue_name] = front_tasks(self._store, Lane.TASK, queue_name, limit=FRONT)
        front = self._fronts[queue_name]
        if any(registry.is_async(path) is kind for path in front):
            return True
        if not front:
            # Empty since it was seen: there is nothing to step over the next time.
            return False
        now = clock.monotonic()
        pause = max(PAUSE_FACTOR * (now - began), PAUSE_SECONDS)
        self._again_at[queue_name, kind] = now + pause
        return False
