"""One child process as its parent sees it: how it lives, whether it is silent, how it ended.

A child says by its board, again and again, that its threads get to run. One that does not is
silent: a task holds the interpreter's lock, in an extension module say, so that the child can
neither extend its leases nor end what outlived its time limit. Then its parent does both.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from . import clock
from .board import Board
from .deadlines import TIMEOUT_MARGIN_SECONDS
from .memory import resident_bytes
from .store import Hold

START_SECONDS: Final = 60.0
"""What a child gets to come up; one that hangs before is killed, and counts as failed."""
AT_ONCE_SECONDS: Final = 10.0
"""A child that dies sooner after it came up, and has begun no job, counts as failed too."""
OVERDUE_MARGIN_SECONDS: Final = TIMEOUT_MARGIN_SECONDS + 1.0
"""Past its time limit, what a task of a silent child gets: a little more than the child gives."""
HUNG_SECONDS: Final = 3600.0
"""A child that was silent for so long is dead, whatever its process says."""


@dataclass(slots=True, eq=False)
class Child:
    """One child process, and what it leaves behind."""

    worker_id: str
    board: Board
    process: subprocess.Popen[bytes]
    # The child watches the other end: it closes when this process is gone.
    alive_descriptor: int
    started: float = field(default_factory=clock.monotonic)
    ready_at: float | None = None
    looked_at: float = field(default_factory=clock.monotonic)
    # When its parent is to extend its leases, as long as it is silent.
    extend_at: float = 0.0
    memory_bytes: int = 0
    # On purpose: what it ran goes back uncharged.
    killed: bool = False
    # Of a silent child: the jobs whose cancel was asked, and since when its parent knows.
    cancels: dict[Hold, float] = field(default_factory=dict)
    # Its tasks that it was killed for; and why it was, in words.
    overdue: set[Hold] = field(default_factory=set)
    why_killed: str = ""

    def look(self) -> None:
        """Note how it lives; end it where it cannot end what it should by itself."""
        self.memory_bytes = resident_bytes(self.process.pid) or self.memory_bytes
        now = clock.monotonic()
        # Where this process stood still as long, its silence may be no more than that.
        pause_seconds, self.looked_at = now - self.looked_at, now
        if self.ready_at is None:
            self.ready_at = now if self.board.ready else None
            if self.ready_at is None and now - self.started >= START_SECONDS:
                self.kill(f"it was not up within {START_SECONDS:g} s")
            return
        if not self.silent or self.overdue or self.why_killed:
            return
        if overdue := self.board.overdue(now - OVERDUE_MARGIN_SECONDS):
            self.overdue = set(overdue)
            self.kill("a task outlived its time limit and let nothing else run")
        elif self.board.silent_seconds >= HUNG_SECONDS and pause_seconds < HUNG_SECONDS / 2:
            # Not on purpose: what it ran is charged, as after any death.
            self.why_killed = f"it showed no sign of life for {HUNG_SECONDS:g} s"
            self.process.kill()

    def heed_cancels(self, asked: set[Hold], grace_seconds: float) -> None:
        """End a silent child for tasks that were to be cancelled for longer than the grace."""
        now = clock.monotonic()
        self.cancels = {hold: self.cancels.get(hold, now) for hold in asked}
        begun = set(self.board.running())
        late = {
            hold
            for hold, since in self.cancels.items()
            if hold in begun and now - since >= grace_seconds
        }
        if late and not self.killed:
            self.overdue = late
            self.kill("a task that was cancelled let nothing else run")

    @property
    def proven(self) -> bool:
        """Whether its end says nothing against its start: it began a job, or was up for long."""
        up_seconds = 0.0 if self.ready_at is None else clock.monotonic() - self.ready_at
        return self.board.begun or up_seconds >= AT_ONCE_SECONDS

    @property
    def silent(self) -> bool:
        """Whether its threads do not get to run, though nobody has stopped the process."""
        return (
            self.ready_at is not None
            and self.board.silent_seconds > 2 * self.board.sign_seconds
            and not is_stopped(self.process.pid)
        )

    @property
    def told(self) -> str:
        """How the process ended, in words."""
        code = self.process.returncode
        how = f"exit status {code}"
        if code < 0:
            how = f"signal {-code} ({signal.Signals(-code).name})"
        if self.why_killed:
            how += f", since {self.why_killed}"
        memory = f"; its memory was {self.memory_bytes >> 20} MB" if self.memory_bytes else ""
        return f"the worker process {self.worker_id} ended by {how}{memory}"

    def stop(self, count: int) -> None:
        """Ask the child to stop, for the *count*-th time."""
        self.board.ask_stop(count)
        self.process.send_signal(signal.SIGTERM)

    def kill(self, why: str = "") -> None:
        """End the process on purpose."""
        self.killed = True
        self.why_killed = why
        self.process.kill()

    def close(self) -> None:
        self.board.close()
        os.close(self.alive_descriptor)


Spawn = Callable[[str, Board, int], "subprocess.Popen[bytes]"]
"""Start a child with that worker id and board; its end of the watched pipe comes third."""


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped the process; False where the system does not tell."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in {"T", "t"}
