"""Live jobs: what waits, what runs, and what may not run now; nothing to do but to cancel."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..models import LiveJob
from ..states import HeldReason, State
from . import jobpage, showing, waiting
from .base import SEARCH_NEWEST_HELP, newest_with_text
from .confirming import OperatedAdmin
from .filters import StateFilter
from .operations import CANCEL

ORDERINGS: Final = {
    # Each state in the order of its own index.
    State.SCHEDULED.value: ("run_after", "id"),
    State.READY.value: ("lane", "queue_name", "rank", "run_after", "id"),
    State.RUNNING.value: ("lease_expires_at", "id"),
    StateFilter.lapsed: ("lease_expires_at", "id"),
    State.HELD.value: ("held_reason", "run_after", "id"),
}

HELD_LABELS: Final[dict[str, Any]] = {
    HeldReason.KEY: gettext_lazy("an earlier job of its key is not done"),
    HeldReason.LIMIT: gettext_lazy("a limit is reached"),
    HeldReason.UNKNOWN: gettext_lazy("no worker knows its task"),
    HeldReason.SUSPECT: gettext_lazy("its worker died, and it will run alone"),
}


@admin.register(LiveJob)
class LiveJobAdmin(OperatedAdmin):
    """The list of live jobs, each state in the order in which it will be served."""

    operations = (CANCEL,)
    actions = ("cancel",)
    list_display = ("what", "queue", "shown_state", "due", "enqueued")
    list_filter = (StateFilter,)
    search_fields = ("id",)
    search_help_text = SEARCH_NEWEST_HELP
    large_fields: ClassVar = (
        "payload",
        "headers",
        "errors",
        "worker_ids",
        "progress",
        "unique_key",
    )

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        return ORDERINGS.get(request.GET.get(StateFilter.parameter_name, ""), ("-id",))

    # The list

    @admin.display(description=gettext_lazy("task or kind"))
    def what(self, job: LiveJob) -> SafeString:
        return showing.name(jobpage.name_of(job))

    @admin.display(description=gettext_lazy("queue"))
    def queue(self, job: LiveJob) -> str:
        return showing.visible(job.queue_name)

    @admin.display(description=gettext_lazy("state"))
    def shown_state(self, job: LiveJob) -> str:
        return state_label(job)

    @admin.display(description=gettext_lazy("due"))
    def due(self, job: LiveJob) -> SafeString:
        return showing.age(job.run_after, job.now)  # type: ignore[attr-defined]  # an annotation

    @admin.display(description=gettext_lazy("enqueued"))
    def enqueued(self, job: LiveJob) -> SafeString:
        return showing.age(job.enqueued_at, job.now)  # type: ignore[attr-defined]  # as above

    def search_text(
        self, request: HttpRequest, queryset: QuerySet[Any], term: str
    ) -> QuerySet[Any]:
        return newest_with_text(queryset, term, ("task", "kind", "queue_name"), self.alias)

    # Permission and action

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return self.may(request, CANCEL.permission)

    @admin.action(description=CANCEL.label, permissions=["cancel"])
    def cancel(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse:
        return self.ask_about(request, CANCEL, queryset)

    # The page

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        job = self.object_or_redirect(request, object_id)
        if isinstance(job, HttpResponse):
            return job
        return self.page(
            request,
            "livejob.html",
            _("Live job %(name)s") % {"name": jobpage.name_of(job)},
            **jobpage.sections(job),
            state=state_label(job),
            next_step=waiting.next_step(request, job),
            buttons=[(each, self.operation_url(each)) for each in self.allowed_operations(request)],
            filters=request.GET.get("_changelist_filters", ""),
        )


def state_label(job: Any) -> str:
    """Return a live job's state in words, with why it is held or that its lease lapsed."""
    if job.state == State.HELD:
        return _("held: %(reason)s") % {"reason": HELD_LABELS.get(job.held_reason, job.held_reason)}
    if job.state != State.RUNNING:
        labels = {State.SCHEDULED.value: _("scheduled"), State.READY.value: _("ready")}
        return labels.get(job.state, str(job.state))
    if waiting.is_lapsed(job):
        return _("running, lease lapsed")
    return _("running, cancel asked") if job.cancel_asked_at else _("running")
