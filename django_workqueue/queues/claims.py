"""A claim in the hands of its holder: extend it, and settle it once."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from .. import arguments, clock, conf, payload
from ..exceptions import Cancelled
from ..states import DeathReason

if TYPE_CHECKING:
    from ..store import BaseStore, ErrorRecord
    from ..store import Claim as Taken

DELAY_HINT = "Give the seconds until the job may be claimed again."
LEASE_HINT = (
    "Set it above the longest pause between two extends; a job that needs longer calls extend()."
)


class Claim:
    """A job taken under a lease. Every call is by id and token, and changes nothing once the job
    was settled, or taken by another claim: then it raises LeaseLost (I3).

    A holder that is late, but whose job nobody took, still holds it. The calls join the
    caller's transaction where there is one: ``with atomic(): …; claim.ack()`` commits both or
    neither.
    """

    def __init__(self, taken: Taken, alias: str, lease_seconds: float) -> None:
        self._taken = taken
        self._alias = alias
        self._lease_seconds = lease_seconds
        self.id: uuid.UUID = taken.id
        self.token: uuid.UUID = taken.token
        self.kind: str = taken.kind
        self.queue_name: str = taken.queue_name
        self.worker: str = taken.worker_id
        self.attempt: int = taken.attempt
        self.max_attempts: int = taken.max_attempts
        # Rises at every claim of the job: a store that remembers the highest it has seen can
        # refuse the writes of an earlier holder.
        self.fence: int = taken.fence
        # On the database's clock, as all moments are.
        self.lease_expires_at: datetime = taken.lease_expires_at

    def __repr__(self) -> str:
        return (
            f"<Claim of {self.id} in {self.queue_name!r} by {self.worker!r}, "
            f"attempt {self.attempt} of {self.max_attempts}>"
        )

    # Read when asked for: one row that holds rubbish must not hide the claims beside it.

    @cached_property
    def payload(self) -> Any:
        """What was enqueued. Raises PayloadError for a row that was edited into something else."""
        return payload.decode(self._taken.payload)

    @cached_property
    def headers(self) -> Mapping[str, Any]:
        """The caller's headers. Raises PayloadError as `payload` does."""
        headers: Mapping[str, Any] = payload.decode(self._taken.headers)
        return headers

    def extend(self, lease_seconds: float | None = None) -> datetime:
        """Move the end of the lease to *lease_seconds* from now; return it.

        None: as long as it was claimed for. Raises Cancelled, which is a LeaseLost, where a
        cancel was asked: stop, and ack what is done or release it.
        """
        if lease_seconds is None:
            lease_seconds = self._lease_seconds
        lease_seconds = checked_lease(lease_seconds)
        store = self._store()
        cancel_asked = store.extend([self._taken], lease_seconds).get(self._taken.hold)
        if cancel_asked is None:
            self._raise_lost("extend")
        if cancel_asked:
            raise Cancelled(
                f"A claim is extended while its job is wanted, and a cancel of job {self.id} was "
                "asked. Stop working on it, then call release(), or ack() if the work is done.",
                job_id=self.id,
            )
        from ..store import finding

        end = finding.lease_end(store, self._taken)
        if end is None:
            self._raise_lost("extend")
        self.lease_expires_at = end
        return end

    def ack(self, value: Any = None) -> None:
        """Finish the job and keep *value* as its result. Wins over a cancel that was asked.

        Raises PayloadError for a value that JSON or a limit refuses; the job is still held then.
        """
        from ..store import Ack

        limit = conf.current().result_max_bytes
        text = payload.encode(value, max_bytes=limit, root="value", what="result")
        ack = Ack(claim=self._taken, value=text, started_at=self._taken.claimed_at)
        if not self._store().ack([ack]):
            self._raise_lost("ack")

    def retry(self, delay: float | None = None, error: str | BaseException = "") -> str:
        """Schedule the job again in *delay* seconds (None: by the backoff of the settings).

        Returns where it is now: ``scheduled``; ``dead`` (reason exhausted) after the last of its
        attempts; ``cancelled`` where a cancel was asked. *error* stays on this attempt.
        """
        if delay is None:
            delay = conf.current().backoff.delay_seconds(self.attempt)
        delay = arguments.seconds("delay", delay, hint=DELAY_HINT)
        return self._store().retry(self._taken, delay, self._error(error))

    def bury(self, error: str | BaseException) -> str:
        """Move the job to the dead, reason terminal, whatever is left of its attempts.

        Returns where it is now: ``dead``, or ``cancelled`` where a cancel was asked.
        """
        return self._store().bury(self._taken, DeathReason.TERMINAL, self._error(error))

    def release(self, delay: float = 0) -> str:
        """Give the job back in *delay* seconds, uncharged: this attempt does not count.

        Returns where it is now: ``ready`` or ``scheduled``, or ``cancelled`` where a cancel was
        asked. Without a delay it keeps its place in the queue.
        """
        delay = arguments.seconds("delay", delay, hint=DELAY_HINT)
        return self._store().release(self._taken, delay_seconds=delay)

    def _store(self) -> BaseStore:
        from ..store import get_store

        return get_store(self._alias)

    def _error(self, error: str | BaseException) -> ErrorRecord:
        from ..store import ErrorRecord

        limit = conf.current().error_max_bytes
        texts: dict[str, Any]
        if isinstance(error, BaseException):
            text = payload.describe_error(error, max_bytes=limit)
            texts = {
                "exception_class": text.exception_class_path,
                "message": text.message,
                "traceback": text.traceback,
                "cut": text.cut,
            }
        elif isinstance(error, str):
            message = payload.storable_text(error, max_bytes=limit)
            texts = {"message": message, "cut": len(error.encode(errors="replace")) > limit}
        else:
            raise arguments.refusal(
                "error", "a string or an exception", error, "Say what went wrong."
            )
        return ErrorRecord(
            attempt=self.attempt,
            worker=self.worker,
            started=self._taken.claimed_at,
            ended=self._taken.moment(clock.monotonic()),
            outcome="failed",
            **texts,
        )

    def _raise_lost(self, verb: str) -> NoReturn:
        from ..store.core import lost

        raise lost(self.id, verb)


def checked_lease(lease_seconds: float) -> float:
    """Return *lease_seconds* if a lease may be that long. Raises ValueError otherwise."""
    return arguments.seconds(
        "lease_seconds",
        lease_seconds,
        may_be_zero=False,
        most=conf.MAX_LEASE_SECONDS,
        hint=LEASE_HINT,
    )
