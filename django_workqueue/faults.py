"""A database that fails: which errors say so, and how long to wait before the next try."""

from __future__ import annotations

import random
from typing import Final

from django.db import DatabaseError, InterfaceError

DATABASE_FAULTS: Final = (DatabaseError, InterfaceError)
MAX_PAUSE_SECONDS: Final = 10.0


def fault_pause(count: int, lease_seconds: float) -> float:
    """Return the seconds to wait after the *count*-th fault in a row, jittered.

    At most a sixth of the lease, so that a lease is extended before it ends, and 10 s.
    """
    most = min(lease_seconds / 6, MAX_PAUSE_SECONDS)
    return random.uniform(0.5, 1.0) * min(0.1 * 2.0 ** min(count, 10), most)
