"""What the wake-ups of all databases have: a pipe that this process itself can write to."""

from __future__ import annotations

import contextlib
import os
import select

from ..store import BaseStore


class Wakeup:
    """Wakes one waiting thread: from other threads, from signal handlers, from the database.

    ``set`` writes to a pipe, which a signal handler may do at any point.
    """

    told_by = "poll"

    def __init__(self, store: BaseStore) -> None:
        self._store = store
        self.told = False
        """Whether somebody who enqueued has told of it since the last `catch_up`."""
        # Written before, and read after, the flag that says so is changed.
        self._is_set = False
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)

    @property
    def trusted(self) -> bool:
        """Whether the database was seen to tell; then the poll may be rarer."""
        return False

    def attach(self) -> None:
        """Begin to listen, or begin again on a new connection. Called before each look for work."""

    def catch_up(self) -> None:
        """Forget what was told until now: a look for work follows, which sees all of it.

        So that what this process has written itself wakes it not.
        """
        self.told = False

    def set(self) -> None:
        # A full pipe says it already, and a closed one has nobody left to tell.
        with contextlib.suppress(OSError):
            os.write(self._writer, b".")
        self._is_set = True

    def clear(self) -> None:
        if not self._is_set:
            return
        self._is_set = False
        with contextlib.suppress(BlockingIOError):
            while os.read(self._reader, 4096):
                pass

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until woken, at most *timeout* seconds; return whether it was."""
        return bool(self._readable(timeout, self._reader))

    def detach(self) -> None:
        """Close the connection of its own that it may have; it can be woken all the same."""

    def close(self) -> None:
        self.detach()
        reader, writer = self._reader, self._writer
        # First, since a thread that still runs may call set(): the number is soon another file's.
        self._reader = self._writer = -1
        os.close(reader)
        os.close(writer)

    def _readable(self, timeout: float | None, *descriptors: int) -> list[int]:
        # poll(), since select() knows no descriptor above 1,023.
        poll = select.poll()
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        return [found for found, _ in poll.poll(None if timeout is None else timeout * 1000)]
