"""Stops that reach whatever the command does now: waiting for a database, working, supervising."""

from __future__ import annotations

from collections.abc import Callable


class Stops:
    """Counts stops and passes them on; one that came before is passed on at once.

    `note` may be called in a signal handler.
    """

    def __init__(self) -> None:
        self._count = 0
        self._pass_on: Callable[[int], None] | None = None

    @property
    def came(self) -> bool:
        return self._count > 0

    def note(self, count: int) -> None:
        """Note the *count*-th stop."""
        self._count = max(self._count, count)
        if self._pass_on is not None:
            self._pass_on(self._count)

    def pass_on(self, callback: Callable[[int], None]) -> None:
        """Call *callback* from now on with the number of stops so far, perhaps twice with one."""
        self._pass_on = callback
        if self._count:
            callback(self._count)
