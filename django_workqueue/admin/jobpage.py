"""The parts of a page about one job, live, dead or finished, ready to be shown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from django.db.models import Model
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import registry
from ..states import Lane
from . import showing
from .attempts import attempts_of
from .redaction import MASK, redacted, redacted_call

Row = tuple[str, SafeString | str]

MOMENTS: Final[dict[str, Any]] = {
    "enqueued_at": gettext_lazy("Enqueued"),
    "scheduled_for": gettext_lazy("Tick of its schedule"),
    "run_after": gettext_lazy("Due"),
    "expires_at": gettext_lazy("Expires"),
    "claimed_at": gettext_lazy("Last claimed"),
    "started_at": gettext_lazy("Last started"),
    "lease_expires_at": gettext_lazy("Lease ends"),
    "cancel_asked_at": gettext_lazy("Cancel asked"),
    "unknown_since": gettext_lazy("Task unknown since"),
    "died_at": gettext_lazy("Died"),
    "finished_at": gettext_lazy("Finished"),
}

FACTS: Final[dict[str, Any]] = {
    "task": gettext_lazy("Task"),
    "kind": gettext_lazy("Kind"),
    "lane": gettext_lazy("Lane"),
    "backend": gettext_lazy("Backend"),
    "schedule": gettext_lazy("Schedule"),
    "worker_id": gettext_lazy("Worker"),
    "order_key": gettext_lazy("Order key"),
    "seq": gettext_lazy("Number within its key"),
    "fence": gettext_lazy("Fence"),
    "deaths": gettext_lazy("Deaths of its workers"),
}


def task_of(job: Any) -> Any | None:
    """Return the declared task of *job*, or None where this process does not know it."""
    return registry.find(job.task) if job.lane == Lane.TASK else None


def name_of(job: Any) -> str:
    # What a message is, its queue says; its kind is the same for all.
    own = job.queue_name if job.lane == Lane.OUTBOX else job.kind
    return showing.visible(job.task or own or job.lane)


def shown_payload(job: Any) -> Any:
    """Return the payload of *job* with what is to be hidden behind the mask."""
    if job.lane == Lane.TASK:
        return redacted_call(job.payload, task_of(job))
    return redacted(job.payload)


def sections(job: Any) -> dict[str, Any]:
    """Return what the template job.html shows of *job*, whichever table it is in."""
    arguments = showing.pretty(shown_payload(job))
    return {
        "job": job,
        "job_name": name_of(job),
        "arguments": arguments,
        "hides_values": MASK in arguments,
        "attempts": [_attempt(attempt) for attempt in attempts_of(job.errors)],
        "facts": facts(job),
        "moments": moments(job),
        "headers": _json(job, "headers"),
        "progress": _json(job, "progress"),
    }


def facts(job: Any) -> list[Row]:
    """Return label and value of each fact that *job* has."""
    rows: list[Row] = [
        (_("Id"), showing.code(str(job.pk))),
        (_("Queue"), showing.code(showing.visible(job.queue_name))),
        (_("Priority"), str(-job.rank)),
        (_("Attempts"), _tries(job)),
    ]
    for name, label in FACTS.items():
        value = getattr(job, name, None)
        if value not in (None, "", 0):
            rows.append((str(label), showing.code(showing.visible(str(value)))))
    rows += _options(job)
    if job.worker_ids:
        rows.append((_("Workers"), _codes(job.worker_ids)))
    return rows


def _tries(job: Any) -> str:
    if not hasattr(job, "max_attempts"):
        return str(job.attempts)
    return _("%(attempt)d of %(most)d") % {"attempt": job.attempt, "most": job.max_attempts}


def _options(job: Any) -> Iterable[Row]:
    if getattr(job, "timeout", None) is not None:
        yield _("Timeout"), _seconds(job.timeout)
    if getattr(job, "atomic", False):
        yield _("Atomic"), _("yes: its writes and its completion commit together")
    if getattr(job, "unique_key", ""):
        yield _("Unique key"), showing.code(showing.visible(showing.bounded(job.unique_key, 500)))
    if getattr(job, "suspect", False):
        yield _("Suspect"), _("yes: it was running when its worker died, and now runs alone")


def moments(job: Any) -> list[tuple[str, SafeString, SafeString]]:
    """Return label, moment and age of each moment that *job* has, in the order of a job's life."""
    found = []
    for name, label in MOMENTS.items():
        value = getattr(job, name, None)
        if value is not None:
            found.append((str(label), showing.moment(value), showing.age(value, job.now)))
    return found


def _attempt(attempt: Any) -> dict[str, Any]:
    seconds = attempt.seconds
    return {
        "it": attempt,
        "started": showing.moment(attempt.started),
        "ended": showing.moment(attempt.ended),
        "took": "" if seconds is None else _seconds(seconds),
    }


def _seconds(value: float) -> str:
    return _("%(seconds)s s") % {"seconds": f"{value:,.3f}".rstrip("0").rstrip(".")}


def _codes(names: Iterable[Any]) -> SafeString:
    texts = [showing.code(showing.visible(name)) for name in dict.fromkeys(map(str, names))]
    return format_html(", ".join(["{}"] * len(texts)), *texts)


def _json(job: Model, name: str) -> str:
    value = getattr(job, name, None)
    return showing.pretty(redacted(value)) if value else ""
