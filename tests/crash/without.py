"""Safeguards that a worker can be run without, to show that a fault bites where they are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from django_workqueue import extender, sweeper


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


SAFEGUARDS: Final[dict[str, Callable[[], Any]]] = {
    "hold_off": hold_off,
    "extending": extending,
}
