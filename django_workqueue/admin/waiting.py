"""What will happen to a live job by itself, and what would help it."""

from __future__ import annotations

from typing import Any

from django.db.models import Model
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from .. import registry
from ..models import DeadJob, LiveJob
from ..outbox import destinations
from ..states import HeldReason, Lane, OutboxKind, State
from ..store import queue_alias
from .confirming import job_link
from .showing import visible


def next_step(request: HttpRequest, job: Any) -> str:
    """Return what will happen to a live job by itself, and what would help it."""
    if job.state == State.RUNNING:
        return _running(job)
    if job.state == State.SCHEDULED:
        return _("It waits until it is due.")
    if job.state == State.READY:
        return _ready_message(job) if job.lane == Lane.OUTBOX else _ready()
    if job.held_reason == HeldReason.UNKNOWN:
        return _(
            "No worker that saw it knows its task. Deploy the code that declares it; in time it "
            "is dead, with the reason “unknown task”."
        )
    if job.held_reason == HeldReason.KEY and job.seq is not None:
        return _held_by_key(request, job)
    return _("It is made ready by itself when nothing holds it any more.")


def is_lapsed(job: Any) -> bool:
    """Tell whether nobody has extended the lease of a running job, by the database's clock."""
    return job.lease_expires_at is not None and job.lease_expires_at < job.now


def _running(job: Any) -> str:
    if is_lapsed(job):
        return _(
            "Its worker has not extended its lease: it ended or stalled. The next sweep takes "
            "the job back. If none comes, no worker is running."
        )
    return _("A worker holds it. If that worker dies, the job is taken back after its lease.")


def _ready() -> str:
    return _(
        "The next free worker of its queue takes it. If it stays here, look whether a worker "
        "serves this queue and whether the queue is paused."
    )


def _ready_message(job: Any) -> str:
    """A message is delivered by whoever declares its destination; --queues has no say in it."""
    text = _(
        "A runworker that declares its destination delivers it. If it stays here, look whether "
        "one runs that has this database in its OUTBOX_DATABASES, and whether the queue is paused."
    )
    registry.discover()
    if job.kind == OutboxKind.MOVE or job.queue_name in destinations.declared():
        return text
    unknown = _(
        "This process does not declare the destination {name}: look whether the workers do, and "
        "deploy the code that declares it."
    ).format(name=visible(job.queue_name.removeprefix(destinations.QUEUE_PREFIX)))
    return f"{text} {unknown}"


def _held_by_key(request: HttpRequest, job: Any) -> str:
    """Say what the first message of the key does; only that one, dead or live, holds the others."""
    # A skippable message that is dead has left.
    dead = _first_before(job, DeadJob, but_kind=OutboxKind.SKIPPABLE)
    live = _first_before(job, LiveJob)
    if dead is not None and (live is None or dead.seq < live.seq):
        text = _(
            "An earlier message of its key is dead: {link}. This one waits until that one is "
            "requeued and delivered, or discarded."
        )
        return format_html(text, link=_link(request, dead))
    if live is not None:
        text = _(
            "An earlier message of its key is not delivered yet: {link}. This one goes when that "
            "one is done."
        )
        return format_html(text, link=_link(request, live))
    return _(
        "No earlier message of its key is left. The next sweep makes it ready; if it stays here, "
        "no worker is running."
    )


def _first_before(job: Any, model: type[Model], *, but_kind: str = "") -> Any | None:
    """Return the first message of the key of *job* in one table, if it is before *job*."""
    rows = model._default_manager.using(queue_alias()).filter(
        queue_name=job.queue_name, order_key=job.order_key, seq__lt=job.seq
    )
    if but_kind:
        rows = rows.exclude(kind=but_kind)
    return rows.only("pk", "seq").order_by("seq").first()


def _link(request: HttpRequest, job: Any) -> SafeString:
    """Return the id of *job*, as a link for those who may see its page."""
    user: Any = request.user
    if not user.has_perm(f"{job._meta.app_label}.view_{job._meta.model_name}"):
        return format_html("{}", job.pk)
    return job_link(job._meta.model_name, job.pk)
