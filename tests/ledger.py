"""What jobs did, told outside of the database: a file to which many processes append.

One line is one ``write`` to a file opened with O_APPEND, so lines of processes that run side by
side, or die in between, are whole. What the queue's tables say is held against it.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

START: Final = "start"
END: Final = "end"


def seconds() -> float:
    """Return the host's monotonic seconds: one clock for its processes, wrong wall clock or not."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing that a job did: what, in which attempt and process, and when."""

    event: str
    job_id: str
    attempt: int
    fence: int
    pid: int
    at: float


def write(path: str | Path, event: str, *, job_id: object, attempt: int, fence: int) -> None:
    """Append one entry. Once this returns, killing the process takes nothing of it back."""
    entry = Entry(
        event=event,
        job_id=str(job_id),
        attempt=attempt,
        fence=fence,
        pid=os.getpid(),
        at=seconds(),
    )
    line = json.dumps(asdict(entry)) + "\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


class Ledger:
    """The entries of one file, in the order in which they were written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def entries(self, event: str | None = None) -> list[Entry]:
        if not self.path.exists():
            return []
        lines = self.path.read_text().splitlines()
        entries = [Entry(**json.loads(line)) for line in lines]
        return [each for each in entries if event in (None, each.event)]

    def by_job(self, event: str) -> dict[str, Sequence[Entry]]:
        """Return the entries of *event* by job."""
        found: dict[str, list[Entry]] = defaultdict(list)
        for entry in self.entries(event):
            found[entry.job_id].append(entry)
        return dict(found)

    def started(self) -> dict[str, int]:
        """Return how often each job started."""
        return {job_id: len(entries) for job_id, entries in self.by_job(START).items()}

    def ended(self) -> dict[str, int]:
        """Return how often the body of each job came to its end."""
        return {job_id: len(entries) for job_id, entries in self.by_job(END).items()}

    def cut_short(self) -> list[Entry]:
        """Return the starts whose body never came to its end."""
        ended = {(each.job_id, each.fence) for each in self.entries(END)}
        return [each for each in self.entries(START) if (each.job_id, each.fence) not in ended]
