"""Results, locks, queues and workers: lists to look at."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..models import Lock, Queue, Result, Worker
from ..states import ResultOutcome
from ..store.operating import FOREVER
from . import jobpage, showing
from .base import SEARCH_NEWEST_HELP, ReadOnlyAdmin, containing, newest_with_text
from .redaction import redacted


@admin.register(Result)
class ResultAdmin(ReadOnlyAdmin):
    list_display = ("what", "queue", "shown_outcome", "attempts", "finished")
    ordering = ("-id",)
    search_fields = ("id",)
    search_help_text = SEARCH_NEWEST_HELP
    large_fields: ClassVar = ("payload", "value", "errors", "worker_ids")

    @admin.display(description=gettext_lazy("task or kind"))
    def what(self, result: Result) -> SafeString:
        return showing.name(jobpage.name_of(result))

    @admin.display(description=gettext_lazy("queue"))
    def queue(self, result: Result) -> str:
        return showing.visible(result.queue_name)

    @admin.display(description=gettext_lazy("outcome"))
    def shown_outcome(self, result: Result) -> str:
        return outcome_label(result)

    @admin.display(description=gettext_lazy("finished"))
    def finished(self, result: Any) -> SafeString:
        return showing.age(result.finished_at, result.now)

    def search_text(
        self, request: HttpRequest, queryset: QuerySet[Any], term: str
    ) -> QuerySet[Any]:
        return newest_with_text(queryset, term, ("task", "kind", "queue_name"), self.alias)

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        result = self.object_or_redirect(request, object_id)
        if isinstance(result, HttpResponse):
            return result
        return self.page(
            request,
            "result.html",
            _("Result of %(name)s") % {"name": jobpage.name_of(result)},
            **jobpage.sections(result),
            outcome=outcome_label(result),
            succeeded=result.outcome == ResultOutcome.SUCCEEDED,
            value=showing.pretty(redacted(result.value)),
        )


class NamedAdmin(ReadOnlyAdmin):
    """A small table whose primary key is a name: all of it is in the list."""

    list_display_links: Any = None
    search_fields = ("pk",)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        return (containing(queryset, term, ["pk"]) if term else queryset), False


@admin.register(Lock)
class LockAdmin(NamedAdmin):
    list_display = ("name", "owner", "token", "ends")
    ordering = ("name",)

    @admin.display(description=gettext_lazy("ends"))
    def ends(self, lock: Any) -> SafeString:
        return showing.age(lock.expires_at, lock.now)


@admin.register(Queue)
class QueueAdmin(NamedAdmin):
    empty_note = gettext_lazy(
        "A row appears when a queue is paused for the first time; every other queue is served "
        "without one. Pause and resume in code: Queue(“name”).pause()."
    )
    list_display = ("name", "paused", "reason")
    ordering = ("name",)

    @admin.display(description=gettext_lazy("paused"))
    def paused(self, queue: Any) -> SafeString | str:
        return paused_label(queue.paused_until, queue.now)


@admin.register(Worker)
class WorkerAdmin(NamedAdmin):
    list_display = ("id", "host", "pid", "served", "running", "started", "seen", "version")
    ordering = ("-last_seen_at", "id")

    @admin.display(description=gettext_lazy("queues"))
    def served(self, worker: Worker) -> str:
        names: Any = worker.queues
        return showing.first_line(", ".join(map(str, names))) or _("every queue")

    @admin.display(description=gettext_lazy("started"))
    def started(self, worker: Any) -> SafeString:
        return showing.age(worker.started_at, worker.now)

    @admin.display(description=gettext_lazy("last seen"))
    def seen(self, worker: Any) -> SafeString:
        return showing.age(worker.last_seen_at, worker.now)


def outcome_label(result: Result) -> str:
    return {
        ResultOutcome.SUCCEEDED.value: _("succeeded"),
        ResultOutcome.CANCELLED.value: _("cancelled"),
    }.get(result.outcome, result.outcome)


def paused_label(until: datetime | None, now: datetime) -> SafeString | str:
    """Return whether a queue is paused, and until when."""
    if until is None or until <= now:
        return _("no")
    if until >= FOREVER:
        return _("until it is resumed")
    return showing.moment(until)
