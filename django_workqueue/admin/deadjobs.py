"""Dead jobs: what died, why, and what to do next."""

from __future__ import annotations

import uuid
from typing import Any, ClassVar

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.urls import path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..models import DeadJob, LiveJob
from ..store import get_store
from ..store.newrows import unique_hash
from . import advice, attempts, jobpage, showing
from .confirming import OperatedAdmin, job_link
from .correcting import CorrectionForm
from .filters import DiedFilter, QueueFilter, ReasonFilter, TaskFilter, dead_names, reason_label
from .operations import DISCARD, REQUEUE, Report, requeue
from .redaction import MASK


@admin.register(DeadJob)
class DeadJobAdmin(OperatedAdmin):
    """The list of dead jobs, a page for each, and three ways out: requeue, correct, discard."""

    operations = (REQUEUE, DISCARD)
    actions = ("requeue", "discard")
    list_display = ("what", "queue", "why", "last_error", "died")
    list_filter = (ReasonFilter, DiedFilter, QueueFilter, TaskFilter)
    sortable_by: ClassVar = ("died",)
    ordering = ("-died_at", "-id")
    search_fields = ("id",)
    search_help_text = gettext_lazy("A job’s exact id, or part of a task’s name.")
    large_fields: ClassVar = (
        "payload",
        "headers",
        "errors",
        "worker_ids",
        "progress",
        "unique_key",
    )

    # The list

    @admin.display(description=gettext_lazy("task or kind"))
    def what(self, job: DeadJob) -> SafeString:
        return showing.name(jobpage.name_of(job))

    @admin.display(description=gettext_lazy("queue"))
    def queue(self, job: DeadJob) -> str:
        return showing.visible(job.queue_name)

    @admin.display(description=gettext_lazy("reason"))
    def why(self, job: DeadJob) -> str:
        return reason_label(job.reason)

    @admin.display(description=gettext_lazy("last error"))
    def last_error(self, job: DeadJob) -> SafeString:
        line = getattr(job, "last_error_line", "")
        if not line:
            return showing.EMPTY
        return format_html('<span class="workqueue-error">{}</span>', line)

    @admin.display(description=gettext_lazy("died"), ordering="died_at")
    def died(self, job: DeadJob) -> SafeString:
        return showing.age(job.died_at, job.now)  # type: ignore[attr-defined]  # an annotation

    def complete_page(self, rows: list[DeadJob]) -> None:
        lines = attempts.last_errors(self.alias, [job.pk for job in rows])
        for job in rows:
            job.last_error_line = lines.get(job.pk, "")  # type: ignore[attr-defined]  # as above

    def search_text(
        self, request: HttpRequest, queryset: QuerySet[Any], term: str
    ) -> QuerySet[Any]:
        # No LIKE over the table: the tasks' names come from the index, and so do their rows.
        part = term.casefold()
        tasks = [name for name in dead_names(request, "task") if part in name.casefold()]
        return queryset.filter(task__in=[*tasks, term])

    # Permissions and actions, by the names that admin.action looks for

    def has_requeue_permission(self, request: HttpRequest) -> bool:
        return self.may(request, REQUEUE.permission)

    def has_discard_permission(self, request: HttpRequest) -> bool:
        return self.may(request, DISCARD.permission)

    @admin.action(description=REQUEUE.label, permissions=["requeue"])
    def requeue(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse:
        return self.ask_about(request, REQUEUE, queryset)

    @admin.action(description=DISCARD.label, permissions=["discard"])
    def discard(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse:
        return self.ask_about(request, DISCARD, queryset)

    # The page

    def get_urls(self) -> list[Any]:
        correct = self.admin_site.admin_view(self.correct_view)
        name = "workqueue_deadjob_correct"
        return [path("<uuid:job_id>/correct/", correct, name=name), *super().get_urls()]

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
        may_requeue = self.has_requeue_permission(request)
        return self.page(
            request,
            "deadjob.html",
            _("Dead job %(name)s") % {"name": jobpage.name_of(job)},
            **jobpage.sections(job),
            reason=reason_label(job.reason),
            next_step=advice.next_step(job),
            task_warning=advice.unknown_task(job, jobpage.task_of(job)),
            holder=self._holder(job),
            buttons=[(each, self.operation_url(each)) for each in self.allowed_operations(request)],
            correct_url=reverse("admin:workqueue_deadjob_correct", args=[job.pk])
            if may_requeue
            else "",
            filters=self._list_filters(request),
        )

    def _holder(self, job: DeadJob) -> SafeString | str:
        """Return a link to the live job that would refuse a requeue, or nothing."""
        if not job.unique_key or not job.unique_while:
            return ""
        key = unique_hash(job.queue_name, job.task, job.unique_key)
        live = LiveJob._default_manager.using(self.alias).filter(unique_hash=key)
        holder_id = live.values_list("pk", flat=True).first()
        return "" if holder_id is None else job_link("livejob", holder_id)

    # Correct and requeue

    def correct_view(self, request: HttpRequest, job_id: uuid.UUID) -> HttpResponse:
        """Show the form of a dead job's arguments; on POST, requeue it with what is right."""
        if not self.has_requeue_permission(request):
            raise PermissionDenied
        job = self.object_or_redirect(request, str(job_id))
        if isinstance(job, HttpResponse):
            return job
        form = CorrectionForm(job, request.POST if request.method == "POST" else None)
        if form.is_valid():
            return self._requeue_corrected(request, job, form.cleaned_data["payload"])
        return self.page(
            request,
            "correct.html",
            _("Correct and requeue %(name)s") % {"name": jobpage.name_of(job)},
            form=form,
            hides_values=MASK in form.initial["payload"],
            job=job,
            job_name=jobpage.name_of(job),
            signature=form.signature,
            task_warning=advice.unknown_task(job, form.task),
            last_error=next(iter(attempts.attempts_of(job.errors)), None),
            holder=self._holder(job),
            job_url=reverse("admin:workqueue_deadjob_change", args=[job.pk]),
        )

    def _requeue_corrected(self, request: HttpRequest, job: DeadJob, text: str) -> HttpResponse:
        report = Report()
        report.add(job.pk, requeue(get_store(), job.pk, payload=text))
        if report.changed:
            self.log(request, REQUEUE, [job])
        self.tell(request, REQUEUE, report)
        return self.back_to_list("")

    def _list_filters(self, request: HttpRequest) -> str:
        """Return the filters of the list that the page was reached from."""
        return request.GET.get("_changelist_filters", "")
