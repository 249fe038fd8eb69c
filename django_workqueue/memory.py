"""How much memory a process takes, as far as the system tells."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from . import clock

LOOK_SECONDS: Final = 1.0
"""Between two looks of a limit: memory that grows for good is seen soon enough."""


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process, or 0 where the system does not tell."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


class MemoryLimit:
    """Tells whether this process takes more than *most_bytes*; None: never."""

    def __init__(self, most_bytes: int | None) -> None:
        self._most_bytes = most_bytes
        self._look_at = clock.monotonic()
        self._exceeded = False

    @property
    def exceeded(self) -> bool:
        """Whether it was so at the last look, a second ago at most."""
        now = clock.monotonic()
        if self._most_bytes is not None and now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._exceeded = resident_bytes(os.getpid()) > self._most_bytes
        return self._exceeded
