"""Claim jobs for a worker: which queues, in what order, and what to do with what it cannot run."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from . import clock, registry
from .demand import Room
from .faults import DATABASE_FAULTS
from .ids import new_token
from .job import Job
from .kinds import Kinds
from .states import HeldReason, Lane
from .store import BaseStore, Hold

logger = logging.getLogger("django_workqueue.claimer")

PROBE_SECONDS: Final = 0.1
"""How long a worker that finds all it asks for does not look for what else is there, at least."""
PROBE_FACTOR: Final = 20.0
"""That many times as long as a look took, where there are many queues, but not for long."""
MAX_PROBE_SECONDS: Final = 1.0
PASS_SECONDS: Final = 0.1
"""How long a pass goes on once it found some: nothing is settled in it, and no stop is heard."""
UNHOLD_SECONDS: Final = 10.0
UNKNOWN_SECONDS: Final = 60.0


Take = Callable[[Sequence[Job]], None]
"""Is given the jobs that a claim brought."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a pass over the queues brought."""

    count: int
    # Each claim found as many jobs as it asked for: there may be more.
    full: bool
    # The monotonic time at which jobs that were passed over are worth another look.
    again_at: float
    # It took too long to come to all queues that were ready.
    cut: bool = False


class Claimer:
    """Claims for one worker, in its main thread. *queues* None: every queue, in turn."""

    def __init__(
        self,
        store: BaseStore,
        worker_id: str,
        queues: tuple[str, ...] | None,
        lease_seconds: float,
    ) -> None:
        self._store = store
        self._worker_id = worker_id
        self._queues = queues
        self._lease_seconds = lease_seconds
        self._kinds = Kinds(store)
        self._unhold_at = 0.0
        # The queues that had ready jobs at the last look, which is good until then.
        self._ready: list[str] = []
        self._ready_until = 0.0
        self._due_seconds: float | None = None
        self._last_queue = ""
        # Task names nobody declared here, with the monotonic time of the first sight.
        self._unknown: dict[str, float] = {}
        # When to look for claims whose answer was lost, and until when more may come up.
        self._strays_at = math.inf
        self._strays_until = 0.0

    def claim(self, room: Room, take: Take, *, told: bool = False) -> Claimed:
        """Claim jobs for *room*, queue by queue.

        What each statement claimed is handed to *take* before the next, which may fail. Where
        nothing was ready and somebody *told* of a job, the queue served last is tried before it is
        asked which have any: a statement less until that job starts.
        """
        looked = clock.monotonic()
        if looked >= self._unhold_at:
            self._look_after_unknown()
        if looked < self._ready_until:
            claimed = self._pass(room, take)
            if not self._has_more(claimed):
                self._ready_until = 0.0
            if claimed.count:
                return claimed
        guessed = self._guess(room, take) if told and not self._ready else 0
        if guessed:
            return Claimed(guessed, full=False, again_at=math.inf)
        good_until = self._look()
        claimed = self._pass(room, take)
        if self._has_more(claimed):
            self._ready_until = good_until
        return claimed

    def _has_more(self, claimed: Claimed) -> bool:
        """Tell whether the queues that were ready are worth another pass without another look.

        After one that was cut only where the next begins behind it: of queues in an order, it would
        try those again that are empty now.
        """
        more = claimed.full or (claimed.cut and self._queues is None)
        return claimed.count > 0 and more

    def _look(self) -> float:
        """Ask which queues are ready; return until when that is good while they give enough."""
        began = clock.monotonic()
        self._ready, self._due_seconds = self._store.look(Lane.TASK)
        now = clock.monotonic()
        return now + min(max(PROBE_FACTOR * (now - began), PROBE_SECONDS), MAX_PROBE_SECONDS)

    def _guess(self, room: Room, take: Take) -> int:
        """Claim one job, for which nothing else has to wait, of the queue served last.

        Of queues in an order only where that is the first: it may take the only thread for hours.
        """
        if not self._last_queue or min(room.threads, room.coroutines, room.total) < 1:
            return 0
        if self._queues and self._queues[0] != self._last_queue:
            return 0
        jobs = self._claim_queue(self._last_queue, 1, exclude_async=None)
        if jobs:
            take(jobs)
        return len(jobs)

    def _pass(self, room: Room, take: Take) -> Claimed:
        self._kinds.begin()
        count, full, cut = 0, True, False
        # Counted from when it found some: before that, the next would do no better.
        ends = math.inf
        for name in self._in_order(self._ready):
            cut = clock.monotonic() >= ends
            if cut:
                break
            kinds = self._kinds.of(name)
            for kind in kinds:
                limit = room.of(is_async=kind)
                mixed = len(kinds) > 1
                if limit < 1 or (mixed and not self._kinds.worth(name, kind)):
                    continue
                jobs = self._claim_queue(name, limit, exclude_async=not kind if mixed else None)
                if jobs:
                    self._kinds.note(name, jobs)
                    take(jobs)
                    self._last_queue = name
                    ends = min(ends, clock.monotonic() + PASS_SECONDS)
                room = room.less(jobs)
                count += len(jobs)
                full = full and len(jobs) == limit
        again_at = self._kinds.passed_over_until
        return Claimed(count, full=full and not cut, again_at=again_at, cut=cut)

    @property
    def due_seconds(self) -> float | None:
        """Seconds until the next scheduled job is due, as the last pass saw it; None: no job."""
        return self._due_seconds

    def note_unknown(self, path: str) -> None:
        """Leave jobs of that task, which nobody declared here, out of the claims for a while."""
        self._unknown.setdefault(path, clock.monotonic())

    def _look_after_unknown(self) -> None:
        """Take up held jobs of tasks known here; hold what nobody took for as long.

        Jobs of a task found unknown are first left for a worker that knows it. Those still ready
        after UNKNOWN_SECONDS are held, out of the way of the claims.
        """
        now = clock.monotonic()
        self._unhold_at = now + UNHOLD_SECONDS
        self._store.unhold(HeldReason.UNKNOWN, registry.paths())
        known = {path for path in self._unknown if registry.get(path) is not None}
        old = {path for path, since in self._unknown.items() if now - since >= UNKNOWN_SECONDS}
        if old - known:
            self._store.hold_ready(HeldReason.UNKNOWN, old - known, UNKNOWN_SECONDS)
        for path in known:
            del self._unknown[path]

    def _in_order(self, ready: Sequence[str]) -> list[str]:
        if self._queues is not None:
            names = set(ready)
            return [name for name in self._queues if name in names]
        # All queues, beginning behind the one served last.
        return [name for name in ready if name > self._last_queue] + [
            name for name in ready if name <= self._last_queue
        ]

    def _claim_queue(self, name: str, limit: int, *, exclude_async: bool | None) -> Sequence[Job]:
        """Claim from one queue, leaving out coroutines, or all other tasks known, or neither."""
        excluded = [] if exclude_async is None else registry.paths_of(is_async=exclude_async)
        try:
            claims = self._store.claim(
                Lane.TASK,
                name,
                worker_id=self._worker_id,
                token=new_token(),
                limit=limit,
                lease_seconds=self._lease_seconds,
                exclude_tasks=[*self._unknown, *excluded],
            )
        except DATABASE_FAULTS:
            self._strays_at = clock.monotonic()
            self._strays_until = self._strays_at + self._lease_seconds
            raise
        return [Job(claim, is_async=registry.is_async(claim.task)) for claim in claims]

    def release_strays(self, known: Callable[[], Collection[Hold]]) -> None:
        """Give back what a claim took whose answer never came: all but the *known*.

        Again and again for a lease: a server may finish a statement, and commit it, after the
        connection that sent it is gone and was replaced.
        """
        looked = clock.monotonic()
        if looked < self._strays_at:
            return
        count = self._store.release_strays(self._worker_id, known())
        if count:
            logger.warning(
                "stray claims released", extra={"worker_id": self._worker_id, "count": count}
            )
        again = looked + self._lease_seconds / 6
        self._strays_at = again if looked < self._strays_until else math.inf
