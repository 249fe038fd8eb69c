"""Named locks with an end, on the database's clock.

    with lock("nightly-backup", ttl=60) as held:
        ...
        held.check()

A lock is one row, and no lock of the database outlives a statement: a pooler in transaction mode
is enough, and a holder that vanished holds nothing longer than its *ttl*.
"""

from ..exceptions import InTransaction, LockHeld, LockLost
from .named import NamedLock, lock

__all__ = ["InTransaction", "LockHeld", "LockLost", "NamedLock", "lock"]
