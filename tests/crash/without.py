"""Safeguards that a worker can be run without, to show that a fault bites where they are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from django_workqueue import clock, extender, scheduler, sweeper


def hold_off() -> None:
    """Reclaim as soon as the database answers."""
    sweeper.Sweeper._hold_off = no_hold_off  # type: ignore[method-assign]


def no_hold_off(self: sweeper.Sweeper) -> None:
    self._reclaims_from = 0.0


def extending() -> None:
    """Never extend a lease."""
    extender.Extender.step = no_extending  # type: ignore[method-assign]


def no_extending(self: extender.Extender) -> float:
    return self._lease_seconds


def prompt_extending() -> None:
    """Extend as late as is allowed after a stall: after a sixth of a lease, each time."""
    step = extender.Extender.step

    def late_step(self: extender.Extender) -> float:
        began = clock.monotonic()
        seconds = step(self)
        if clock.monotonic() - began > self._lease_seconds / 6:
            return self._lease_seconds / 6
        return seconds

    extender.Extender.step = late_step  # type: ignore[method-assign]
    extender.fault_pause = lambda count, lease_seconds: lease_seconds / 6  # type: ignore[attr-defined]


def leading() -> None:
    """Let every scheduler lead, whoever holds the lock."""
    scheduler.Scheduler._leads = always  # type: ignore[method-assign]


def always(self: scheduler.Scheduler) -> bool:
    return True


SAFEGUARDS: Final[dict[str, Callable[[], Any]]] = {
    "hold_off": hold_off,
    "extending": extending,
    "prompt_extending": prompt_extending,
    "leading": leading,
}
