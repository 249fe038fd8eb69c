"""What must be known elsewhere before a body runs, and forgotten once its job was settled."""

from __future__ import annotations

from collections import deque

from django.db import Error, connections

from .board import Board
from .job import Job
from .store import get_store


def needs_mark(job: Job) -> bool:
    """Tell whether the row has to say that its only attempt was started."""
    return job.claim.max_attempts <= 1 and not job.lease_lost.is_set()


def may_start(job: Job) -> bool:
    """Mark a job of one attempt as started in its row; return whether its body may run.

    If it lapses unmarked it is refunded: such a job is run at most once, and never dies
    without having run. A job that was not marked is not run; it goes back.
    """
    if job.lease_lost.is_set():
        return False
    if not needs_mark(job):
        return True
    try:
        return bool(get_store().mark_started([job.claim]))
    except Error:
        connections.close_all()
        return False


class Begun:
    """The jobs of this process on the board that its parent reads, where it has one.

    A job keeps its slot until it is settled. There is one for every job in flight, so that
    no body waits for another job's settle.
    """

    def __init__(self, board: Board | None) -> None:
        self._board = board
        # Its ends are taken and given by any thread, each in one step.
        self._free = deque(range(0 if board is None else board.slots))

    def show(self, job: Job) -> None:
        """Show that the body of *job* is about to run."""
        if self._board is not None:
            job.slot = self._free.popleft()
            self._board.begin(job.slot, job.claim.hold, job.claim.timeout)

    def forget(self, job: Job) -> None:
        """Clear the slot of a job that was settled."""
        if self._board is not None and job.slot is not None:
            self._board.end(job.slot)
            self._free.append(job.slot)
            job.slot = None
