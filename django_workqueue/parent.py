"""The parent of a supervised worker as the worker sees it: what it gave, and whether it is there.

The other way round it is `child`.
"""

from __future__ import annotations

import select
from dataclasses import dataclass

from .board import Board


@dataclass(frozen=True, slots=True)
class Parent:
    """What a supervised worker was given by its parent."""

    worker_id: str
    board: Board
    # Readable, at its end, once the parent is gone.
    alive_descriptor: int

    def show_alive_until_gone(self) -> None:
        """Show the parent that threads get to run here; return when it is gone."""
        poll = select.poll()
        poll.register(self.alive_descriptor, select.POLLIN)
        # Readable at its end only: nobody writes to it.
        while not poll.poll(1000 * self.board.sign_seconds):
            self.board.show_alive()
