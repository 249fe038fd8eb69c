"""Every error class of the package. Errors carry ids as attributes; messages say what to do."""

from __future__ import annotations

import uuid


class WorkQueueError(Exception):
    """The root of this package's errors."""


class PayloadError(WorkQueueError, ValueError):
    """A value that JSON, the databases or a limit refuse. *path* names the culprit."""

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class PayloadTypeError(PayloadError, TypeError):
    """A value of a type that JSON lacks."""


class ArgumentsError(WorkQueueError, TypeError):
    """A call that does not fit its task's signature."""


class UnknownTask(WorkQueueError, LookupError):
    """A dotted path under which no task is declared in this process."""


class WorkerLost(WorkQueueError):
    """The worker that ran an attempt stopped extending its lease, or its process ended."""


class TimeLimitExceeded(WorkQueueError, TimeoutError):
    """An attempt ran longer than its task's ``timeout``."""


class TransactionLeftOpen(WorkQueueError):
    """A task returned while a transaction it began was still open; its writes are rolled back."""


class TransactionBroken(WorkQueueError):
    """A task with ``atomic=True`` went on after an error that its transaction cannot outlive."""


class TransactionTooLong(WorkQueueError):
    """A task with ``atomic=True`` held a database's only write lock for more than half a lease."""


class BackoffError(WorkQueueError, ValueError):
    """A retry policy that cannot be used."""


class CronError(WorkQueueError, ValueError):
    """A cron expression or time zone that is refused."""


class ScheduleError(WorkQueueError, ValueError):
    """A schedule that is refused where it is declared. *option* names the culprit."""

    def __init__(self, message: str, *, option: str = "") -> None:
        super().__init__(message)
        self.option = option


class UniqueKeyTaken(WorkQueueError):
    """Another live job holds the unique key, and ``on_conflict="raise"``."""

    def __init__(self, message: str, *, holder_id: uuid.UUID | None = None) -> None:
        super().__init__(message)
        self.holder_id = holder_id


class LeaseLost(WorkQueueError):
    """The claim no longer holds its job: nothing was written."""

    def __init__(self, message: str, *, job_id: uuid.UUID) -> None:
        super().__init__(message)
        self.job_id = job_id


class Cancelled(LeaseLost):
    """A cancel of the running job was asked."""


class LockHeld(WorkQueueError):
    """Somebody else holds the lock."""


class LockLost(WorkQueueError):
    """The lock expired or was taken by somebody else."""


class NotInTransaction(WorkQueueError):
    """A call that only makes sense inside ``transaction.atomic()``."""


class InTransaction(WorkQueueError):
    """A call that must commit by itself, inside ``transaction.atomic()``."""


class UnsupportedDatabase(WorkQueueError):
    """A database, or a version of one, that cannot keep the queue's promises."""


class MigrationsMissing(WorkQueueError):
    """The queue's tables are not there, or older than this code."""


class TaskFailed(WorkQueueError):
    """The job whose value was waited for is dead, or cancelled: it has none."""

    def __init__(self, message: str, *, exception_class_path: str, traceback: str) -> None:
        super().__init__(message)
        self.exception_class_path = exception_class_path
        self.traceback = traceback


class MaxRetriesExceededError(WorkQueueError):
    """A ``shared_task`` asked for a retry when none was left, without an exception to raise."""


class WebhookFailed(WorkQueueError):
    """A webhook's receiver gave an answer that may be another one later. *status* is HTTP's."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


class Retry(Exception):
    """Raised by a task: try again after *after* seconds (None: by the task's backoff).

    An attempt like any other: it never extends the budget, and the delay is capped by the
    backoff's maximum.
    """

    def __init__(self, after: float | None = None, message: str = "") -> None:
        super().__init__(message or "the task asked to be retried")
        self.after = after


class Snooze(Exception):
    """Raised by a task: run again after *seconds*; not an attempt."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the task asked to be run again after {seconds!r} seconds")
        self.seconds = seconds


class Terminal(Exception):
    """Raised by a task: do not try again, the job is dead at once."""
