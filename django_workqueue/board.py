"""What a child and its parent show each other: which jobs run, and how the child is to end.

Shared memory, which outlives the child.

A slot is written before a body runs and cleared after it ended, so the parent of a child that
died knows which of its jobs had started, whatever ended it.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import tempfile
import uuid
from typing import TYPE_CHECKING, Final

from . import clock

if TYPE_CHECKING:
    from .store import Hold

SLOT: Final = struct.Struct("=?7x16s16sd")
HEADER: Final = struct.Struct("=8xdd")
HEADER_BYTES: Final = HEADER.size
MOMENT: Final = struct.Struct("=d")
"""Monotonic seconds, which are one clock for all processes of a host."""
ALIVE, SIGN = 8, 16
"""Moments of the header: the newest sign of life, and the seconds between two."""
MAX_SIGN_SECONDS: Final = 1.0
READY, END, ASKED, BEGUN = range(4)
"""Bytes of the header: the child is up; the exit code it chose, plus one; stops asked of it; it
has begun a job."""


class Board:
    """Shared memory of *slots* slots, on the file behind *descriptor*."""

    def __init__(self, descriptor: int, slots: int) -> None:
        self.descriptor = descriptor
        self.slots = slots
        self._memory = mmap.mmap(descriptor, HEADER_BYTES + slots * SLOT.size)

    @classmethod
    def create(cls, slots: int, lease_seconds: float = 30.0) -> Board:
        """Return a new board, of a file without a name that a child may be given."""
        with tempfile.TemporaryFile() as file:
            file.truncate(HEADER_BYTES + slots * SLOT.size)
            board = cls(os.dup(file.fileno()), slots)
        # So that a silent child is noticed while its leases last.
        MOMENT.pack_into(board._memory, SIGN, min(lease_seconds / 6, MAX_SIGN_SECONDS))
        return board

    # The child

    def show_ready(self) -> None:
        """Say that the child came so far that its start did not fail."""
        self.show_alive()
        self._memory[READY] = 1

    def show_end(self, code: int) -> None:
        """Say with which exit code the worker ends, which a task's own exit cannot say."""
        self._memory[END] = code + 1

    @property
    def asked(self) -> int:
        """How often the parent asked the child to stop."""
        return self._memory[ASKED]

    def show_alive(self) -> None:
        """Say that the child's threads get to run. Asked for every ``sign_seconds``."""
        MOMENT.pack_into(self._memory, ALIVE, clock.monotonic())

    def begin(self, slot: int, hold: Hold, timeout: float | None = None) -> None:
        """Show that a body begins, which must end within *timeout* seconds."""
        offset = HEADER_BYTES + slot * SLOT.size
        ends = math.inf if timeout is None else clock.monotonic() + timeout
        SLOT.pack_into(self._memory, offset, 0, hold[0].bytes, hold[1].bytes, ends)
        # The flag last: a death between the two shows no half-written hold.
        self._memory[offset] = 1
        self._memory[BEGUN] = 1

    def end(self, slot: int) -> None:
        self._memory[HEADER_BYTES + slot * SLOT.size] = 0

    # The parent

    @property
    def sign_seconds(self) -> float:
        """How often the child is to show that it is alive."""
        return float(MOMENT.unpack_from(self._memory, SIGN)[0])

    @property
    def silent_seconds(self) -> float:
        """How long ago the child showed that it was alive, for the last time."""
        return clock.monotonic() - float(MOMENT.unpack_from(self._memory, ALIVE)[0])

    @property
    def ready(self) -> bool:
        return bool(self._memory[READY])

    @property
    def begun(self) -> bool:
        """Whether the child has ever begun a job."""
        return bool(self._memory[BEGUN])

    @property
    def end_code(self) -> int | None:
        """The exit code that the worker chose; None if something else ended its process."""
        return self._memory[END] - 1 if self._memory[END] else None

    def ask_stop(self, count: int) -> None:
        """Say that the signal which follows is the *count*-th stop."""
        self._memory[ASKED] = count

    def running(self) -> list[Hold]:
        """Return the holds whose bodies had begun and not ended."""
        return self.overdue(math.inf)

    def overdue(self, now: float) -> list[Hold]:
        """Return those of them that had to end by *now*, a monotonic moment."""
        holds = []
        for slot in range(self.slots):
            offset = HEADER_BYTES + slot * SLOT.size
            begun, job_id, token, ends = SLOT.unpack_from(self._memory, offset)
            if begun and ends <= now:
                holds.append((uuid.UUID(bytes=job_id), uuid.UUID(bytes=token)))
        return holds

    def close(self) -> None:
        self._memory.close()
        os.close(self.descriptor)
