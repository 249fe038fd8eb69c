"""A lock in the hands of its owner: acquired, renewed while it is needed, released."""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from django.db import Error, connections

from .. import arguments, clock
from ..exceptions import LockHeld, LockLost
from ..transactions import refuse_open, reopen
from . import rows

if TYPE_CHECKING:
    from ..store import BaseStore

logger = logging.getLogger("django_workqueue")

MAX_TTL_SECONDS: Final = 366 * 86_400
FIRST_POLL_SECONDS: Final = 0.05
LAST_POLL_SECONDS: Final = 1.0
RENEWALS_PER_TTL: Final = 3

TTL_HINT: Final = "Set it above the longest pause of the process that holds the lock."
WAIT_HINT: Final = "Use None not to wait."
REASON: Final = "others would wait for its end, and a rollback would undo the call"


def lock(
    name: str,
    ttl: float = 60,
    owner: str | None = None,
    wait: float | None = None,
    using: str | None = None,
) -> NamedLock:
    """Return the lock *name*, not acquired yet: use it in ``with``, or call `acquire`.

    It ends *ttl* seconds after it was acquired or renewed. *owner* None: this object alone; a
    name: whoever gives the same one acquires it again, with a new token. *wait*: how many seconds
    acquiring may take while another holds it; None: it does not wait. *using* is a database
    alias; None: the queue's.
    """
    return NamedLock(name, ttl=ttl, owner=owner, wait=wait, using=using)


@dataclass(slots=True)
class Grant:
    """One acquisition. Until *ends*, of this process's monotonic time, it surely has not expired.

    The renewing thread writes here and not on the lock, so that it cannot bring back an
    acquisition that was released meanwhile.
    """

    token: int
    ends: float
    lost: bool = False


class NamedLock:
    """One lock in the hands of one owner. Acquire, renew and release commit by themselves, and
    raise InTransaction inside a caller's ``atomic()``.
    """

    def __init__(
        self,
        name: str,
        *,
        ttl: float = 60,
        owner: str | None = None,
        wait: float | None = None,
        using: str | None = None,
    ) -> None:
        self.name = arguments.name("name", name)
        self.ttl = arguments.seconds(
            "ttl", ttl, may_be_zero=False, most=MAX_TTL_SECONDS, hint=TTL_HINT
        )
        self.owner = _own_name() if owner is None else arguments.name("owner", owner)
        self.wait = None if wait is None else arguments.seconds("wait", wait, hint=WAIT_HINT)
        self.using = using
        self._row = rows.LockRow(self.name, self.owner, self.ttl)
        self._grant: Grant | None = None
        self._renewer: _Renewer | None = None

    def __repr__(self) -> str:
        return f"<lock {self.name!r} of {self.owner!r}>"

    @property
    def token(self) -> int:
        """The number of this acquisition: larger than that of every earlier one of this name.

        What the lock protects can keep the largest it has seen and refuse writes with a smaller
        one. Raises LockLost where the lock was not acquired, or was released.
        """
        if self._grant is None:
            raise self._lost_error()
        return self._grant.token

    def acquire(self) -> bool:
        """Take the lock, or this owner's again; False if another holds it, after *wait*."""
        store = self._store("acquire()")
        deadline = clock.monotonic() + (self.wait or 0.0)
        pause = FIRST_POLL_SECONDS
        while True:
            sent = clock.monotonic()
            token = rows.acquire(store, self._row)
            if token is not None:
                self._grant = Grant(token, sent + self.ttl)
                return True
            left = deadline - clock.monotonic()
            if left <= 0:
                return False
            # Jittered, so that those who wait do not ask all at once; the last look at the end.
            clock.sleep(min(random.uniform(0.5, 1.0) * pause, left))
            pause = min(pause * 2, LAST_POLL_SECONDS)

    def renew(self) -> None:
        """Let the lock end a whole *ttl* from now. Raises LockLost if it expired or was taken."""
        store, grant = self._store("renew()"), self._held()
        sent = clock.monotonic()
        if not rows.renew(store, self._row, grant.token):
            grant.lost = True
            raise self._lost_error()
        grant.ends = sent + self.ttl

    def check(self) -> None:
        """Ask the database whether the lock is still held. Raises LockLost if not.

        What follows is only as safe as what is left of the ttl: what must not be done twice
        carries the token as well.
        """
        grant = self._held()
        # This process's own knowledge first: a transaction may see an old row.
        expired = clock.monotonic() >= grant.ends
        if expired or not rows.is_held(self._open(), self._row, grant.token):
            grant.lost = True
            raise self._lost_error()

    def release(self) -> bool:
        """Give the lock up; False if it was not held any more, and then nothing is changed."""
        store = self._store("release()")
        grant, self._grant = self._grant, None
        return grant is not None and rows.release(store, self._row, grant.token)

    def __enter__(self) -> Self:
        if self._renewer is not None:
            raise RuntimeError(
                f"A lock object must guard one block at a time, and {self!r} guards one already. "
                "Make another with lock()."
            )
        if not self.acquire():
            raise self._held_error()
        # Within the transaction of a TestCase, no other connection sees the row.
        store = self._open()
        if not store.connection.in_atomic_block:
            pause = self.ttl / RENEWALS_PER_TTL
            self._renewer = _Renewer(self._renew_again, pause, store.alias, f"renew {self!r}")
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        renewer, self._renewer = self._renewer, None
        if renewer is not None:
            renewer.stop()
        if self._grant is None:  # The block released it.
            return
        try:
            if not self.release():
                logger.warning("lock lost before its block ended", extra={"lock": self.name})
        except Error:
            # The work is done, and the lock ends by itself: an error would say otherwise.
            logger.warning("lock not released", exc_info=True, extra={"lock": self.name})

    def _renew_again(self) -> float | None:
        """Renew in the background; return the seconds until the next time, None: no more."""
        grant = self._grant
        if grant is None:
            return None
        try:
            self.renew()
        except LockLost:
            # Unless the block released or acquired it while the statement was under way.
            if grant is self._grant:
                logger.warning("lock lost", extra={"lock": self.name})
                return None
        except Error:
            logger.warning("lock not renewed", exc_info=True, extra={"lock": self.name})
            return self.ttl / RENEWALS_PER_TTL**2
        return self.ttl / RENEWALS_PER_TTL

    def _open(self) -> BaseStore:
        from ..store import get_store

        return get_store(self.using)

    def _store(self, call: str) -> BaseStore:
        store = self._open()
        refuse_open(store.alias, f"lock.{call}", REASON)
        reopen(store.alias)
        return store

    def _held(self) -> Grant:
        if self._grant is None or self._grant.lost:
            raise self._lost_error()
        return self._grant

    def _lost_error(self) -> LockLost:
        return LockLost(
            f"Lock {self.name!r} must be held by {self.owner!r}, and it was not acquired, or it "
            "expired or was taken since. Nothing was written; stop what it protects."
        )

    def _held_error(self) -> LockHeld:
        row = rows.find(self._open(), self.name).first()
        holder = "another, until now" if row is None else f"{row.owner!r} until {row.expires_at}"
        return LockHeld(
            f"Lock {self.name!r} must be free, and it is held by {holder}. Try again later, or "
            "wait for it with wait=seconds."
        )


class _Renewer:
    """Calls *step* in a thread with a connection of its own, which is closed at the end.

    *step* returns the seconds until its next call, None: no more.
    """

    def __init__(
        self, step: Callable[[], float | None], first_pause: float, alias: str, name: str
    ) -> None:
        self._step = step
        self._first_pause = first_pause
        self._alias = alias
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Return when no further step can come, and the connection is closed."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        pause: float | None = self._first_pause
        try:
            while pause is not None and not clock.wait(self._stopped, pause):
                pause = self._step()
        finally:
            connections[self._alias].close()


def _own_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex}"[-arguments.NAME_LENGTH :]
