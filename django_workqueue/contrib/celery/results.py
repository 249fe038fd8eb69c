"""What ``delay`` returns: Celery's view of a job, wherever it is."""

from __future__ import annotations

import uuid
from typing import Any, Final

from ... import arguments, clock
from ...exceptions import TaskFailed
from ...states import HeldReason, Place, ResultOutcome, State
from ...transactions import refuse_open
from .requests import current

POLL_SECONDS: Final = 0.5
STATUS: Final = {
    State.SCHEDULED: "PENDING",
    State.READY: "PENDING",
    State.HELD: "PENDING",
    State.RUNNING: "STARTED",
    Place.DEAD: "FAILURE",
    ResultOutcome.SUCCEEDED: "SUCCESS",
    ResultOutcome.CANCELLED: "REVOKED",
}
"""Celery's words for where a job is. A job that waits to be tried again is in RETRY."""

READY: Final = frozenset({"SUCCESS", "FAILURE", "REVOKED"})


class AsyncResult:
    """A job by its id; each look asks the database.

    A job that is gone, or never was, is PENDING: as with Celery, nobody can tell.
    """

    def __init__(self, id: str) -> None:  # noqa: A002  # as Celery has it
        self.id = str(id)

    def __repr__(self) -> str:
        return f"<AsyncResult {self.id}>"

    def __str__(self) -> str:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AsyncResult) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def task_id(self) -> str:
        return self.id

    @property
    def status(self) -> str:
        """PENDING, STARTED, RETRY, SUCCESS, FAILURE or REVOKED."""
        return _status(self._found())

    state = status

    def ready(self) -> bool:
        """Tell whether it came to its end."""
        return self.status in READY

    def successful(self) -> bool:
        return self.status == "SUCCESS"

    def failed(self) -> bool:
        return self.status == "FAILURE"

    @property
    def result(self) -> Any:
        """What the task returned; a TaskFailed for a dead job, which is not raised; or None."""
        found = self._found()
        return (
            _error(found)
            if _status(found) in {"FAILURE", "REVOKED"}
            else getattr(found, "value", None)
        )

    info = result

    @property
    def traceback(self) -> str | None:
        """The text of the last attempt's traceback, where it failed."""
        found = self._found()
        return str(found.errors[-1]["traceback"]) if found is not None and found.errors else None

    def get(
        self,
        timeout: float | None = None,
        propagate: bool = True,  # noqa: FBT001, FBT002  # as Celery has it
        interval: float = POLL_SECONDS,
    ) -> Any:
        """Wait for the end of the job and return what its task returned.

        Raises TimeoutError after *timeout* seconds, and TaskFailed for a job that is dead or was
        cancelled; with *propagate* False that error is returned. Raises InTransaction where the
        job could not begin before the caller's commit, and RuntimeError inside a task.
        """
        from ...store import queue_alias

        if not current().called_directly:
            raise RuntimeError(
                f"A task must not wait for another one, and waits for {self.id}: all threads could "
                "wait, and none be left to run it. Let the other task enqueue what comes next."
            )
        refuse_open(queue_alias(), "get()", "no worker sees the job before the commit")
        pause = arguments.seconds("interval", interval, may_be_zero=False, hint="Half a second.")
        ends = None if timeout is None else clock.monotonic() + timeout
        while _status(found := self._found()) not in READY:
            if ends is not None and clock.monotonic() >= ends:
                raise TimeoutError(
                    f"Job {self.id} must end within {timeout:g} s, and is {_status(found)}. "
                    "Is a worker running?"
                )
            clock.sleep(pause if ends is None else min(pause, max(ends - clock.monotonic(), 0.0)))
        if found is not None and found.state == ResultOutcome.SUCCEEDED:
            return found.value
        if propagate:
            raise _error(found)
        return _error(found)

    def revoke(self) -> None:
        """Cancel the job; one that runs is asked to stop."""
        from ...store import get_store

        get_store().cancel(uuid.UUID(self.id))

    def forget(self) -> None:
        """Do nothing: results go by themselves, after the task's ``result_ttl``."""

    def _found(self) -> Any:
        from ... import results
        from ...store import queue_alias

        try:
            return results.find(queue_alias(), uuid.UUID(self.id))
        except ValueError:
            return None


def _status(found: Any) -> str:
    if found is None:
        return "PENDING"
    waits = found.state in {State.SCHEDULED, State.READY}
    if waits and found.errors and found.reason != HeldReason.UNKNOWN:
        return "RETRY"
    return STATUS.get(found.state, "PENDING")


def _error(found: Any) -> TaskFailed:
    """Return what is known of a job that did not succeed: its error class by name, and its text."""
    records = found.errors
    if found.state == ResultOutcome.CANCELLED:
        return TaskFailed(f"job {found.id} was cancelled", exception_class_path="", traceback="")
    last = records[-1] if records else {"exception_class": "", "message": "", "traceback": ""}
    name = last["exception_class"].rpartition(".")[2] or found.reason
    return TaskFailed(
        f"{name}: {last['message']}",
        exception_class_path=last["exception_class"],
        traceback=last["traceback"],
    )
