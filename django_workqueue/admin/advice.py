"""What to do next about a dead job, by the reason of its death."""

from __future__ import annotations

from typing import Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..models import DeadJob
from ..states import DeathReason, Lane
from .showing import visible

ADVICE: Final[dict[str, Any]] = {
    DeathReason.EXHAUSTED: gettext_lazy(
        "Every attempt failed. Read the last error, remove its cause, then requeue the job: it "
        "gets a new budget of attempts. If its arguments are wrong, correct them."
    ),
    DeathReason.TERMINAL: gettext_lazy(
        "The task, or its list of errors worth a retry, said that trying again is useless. "
        "Requeue it only after its cause or its arguments have changed; otherwise discard it."
    ),
    DeathReason.LOST: gettext_lazy(
        "Its workers ended or stalled while it ran, and it may be what ended them. Look for a "
        "kill, an out-of-memory or a crash in their logs at the moments below before you requeue "
        "it. It may have been partly or wholly done."
    ),
    DeathReason.TIMEOUT: gettext_lazy(
        "It ran longer than its timeout. Find out what it waited for, or raise the task’s "
        "timeout, then requeue it. It may have been partly done."
    ),
    DeathReason.EXPIRED: gettext_lazy(
        "No attempt could start before it expired: workers were too few, stopped or paused. "
        "If it is still wanted, requeue it: the expiry is removed. Otherwise discard it."
    ),
    DeathReason.UNKNOWN_TASK: gettext_lazy(
        "No worker knew its task. Deploy the code that declares it, or start workers that have "
        "it, then requeue the job. If the task is gone for good, discard it."
    ),
    DeathReason.BAD_ARGUMENTS: gettext_lazy(
        "Its arguments do not fit the signature of its task. Correct them, or deploy code that "
        "takes them, then requeue it."
    ),
    DeathReason.UNSTORABLE_RESULT: gettext_lazy(
        "Its work was done, and only what it returned could not be stored. Requeueing does the "
        "work again: correct what the task returns, and discard this job unless it is safe."
    ),
}

UNKNOWN_REASON: Final = gettext_lazy(
    "This version does not know the reason. Read the attempts below before you requeue it."
)


MESSAGE_ADVICE: Final[dict[str, Any]] = {
    DeathReason.EXHAUSTED: gettext_lazy(
        "Every attempt failed. Read the last error, remove its cause, then requeue the message: "
        "it gets a new budget of attempts. If its payload is wrong, correct it."
    ),
    DeathReason.TERMINAL: gettext_lazy(
        "The handler, or its list of errors worth a retry, said that trying again is useless. "
        "Requeue the message only after its cause or its payload has changed; otherwise discard it."
    ),
}
"""Where a message of the outbox is spoken of in other words than a job of a task."""


def next_step(job: DeadJob) -> str:
    """Return what an operator should do about *job*."""
    own = MESSAGE_ADVICE if job.lane == Lane.OUTBOX else {}
    return str(own.get(job.reason) or ADVICE.get(job.reason, UNKNOWN_REASON))


def unknown_task(job: DeadJob, task: Any | None) -> str:
    """Return a warning where this process cannot tell whether arguments fit, else nothing."""
    if task is not None or job.lane != Lane.TASK:
        return ""
    return _(
        "This process does not know the task {task}: its arguments cannot be checked against a "
        "signature. A worker that does not know it either will hold the job again."
    ).format(task=visible(job.task))
