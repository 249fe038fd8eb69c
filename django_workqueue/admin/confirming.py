"""The way of an operation through the admin: chosen, asked about, done, reported, logged."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from django.contrib import messages
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.admin.views.main import ERROR_FLAG, PAGE_VAR
from django.core.exceptions import PermissionDenied
from django.db import connections, transaction
from django.db.models import QuerySet
from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseBadRequest,
    HttpResponseNotAllowed,
    HttpResponseRedirect,
    QueryDict,
)
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..store import get_store
from .base import ReadOnlyAdmin, as_uuid
from .jobpage import name_of
from .operations import MOST_JOBS, Answer, Operation, Refusal, Report, apply
from .showing import visible

SAMPLE_ROWS: Final = 10
REFUSALS_SHOWN: Final = 10

LEVELS: Final = {
    Answer.DONE: messages.SUCCESS,
    Answer.ASKED: messages.INFO,
    Answer.NOTHING: messages.WARNING,
    Answer.REFUSED: messages.WARNING,
}


class OperatedAdmin(ReadOnlyAdmin):
    """Jobs that an operator may do something to.

    Every way leads through one view for each operation. It takes POST only: without ``confirmed``
    it asks, stating the count, and with it does what it asked about: the very ids, whatever
    matches the filters by then.
    """

    operations: ClassVar[Sequence[Operation]] = ()

    def get_urls(self) -> list[Any]:
        return [self._operation_url(each) for each in self.operations] + super().get_urls()

    def _operation_url(self, operation: Operation) -> URLPattern:
        view: Callable[..., Any] = self.admin_site.admin_view(
            partial(self.operation_view, operation=operation)
        )
        for alias in connections:
            # With ATOMIC_REQUESTS all batches would be one transaction.
            view = transaction.non_atomic_requests(using=alias)(view)
        return path(f"{operation.name}/", view, name=self._url_name(operation))

    def _url_name(self, operation: Operation) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_{operation.name}"

    def operation_url(self, operation: Operation) -> str:
        return reverse(f"admin:{self._url_name(operation)}", current_app=self.admin_site.name)

    def allowed_operations(self, request: HttpRequest) -> list[Operation]:
        return [each for each in self.operations if self.may(request, each.permission)]

    # From the list

    def ask_about(
        self, request: HttpRequest, operation: Operation, queryset: QuerySet[Any]
    ) -> HttpResponse:
        """Ask about the rows that were chosen in the list, at most MOST_JOBS of them."""
        ids = list(queryset.values_list("pk", flat=True)[: MOST_JOBS + 1])
        filters = request.GET.urlencode()
        has_more = len(ids) > MOST_JOBS
        return self.ask(request, operation, ids[:MOST_JOBS], filters, has_more=has_more)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if request.method == "POST":
            self._judge_posted_action(request)
        response = super().changelist_view(request, extra_context)
        context = getattr(response, "context_data", None)
        if context and getattr(context.get("cl"), "has_more", False):
            context["selection_note_all"] = _("All that match are selected")
            context["module_name"] = _("%(jobs)s and all others that match") % {
                "jobs": self.opts.verbose_name_plural
            }
        return response

    def _judge_posted_action(self, request: HttpRequest) -> None:
        """Refuse an action that the user may not do: Django would only ignore its name."""
        allowed = {each.name for each in self.allowed_operations(request)}
        known = {each.name for each in self.operations}
        if not allowed or (known & set(request.POST.getlist("action"))) - allowed:
            raise PermissionDenied
        if any(as_uuid(text) is None for text in request.POST.getlist("_selected_action")):
            raise PermissionDenied

    # Asked about, and done

    def operation_view(self, request: HttpRequest, operation: Operation) -> HttpResponse:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not self.may(request, operation.permission):
            raise PermissionDenied
        ids = posted_ids(request)
        if ids is None:
            return HttpResponseBadRequest("ids must be job ids, each on a line.")
        filters = request.POST.get("filters", "")
        if request.POST.get("confirmed") != "yes":
            return self.ask(request, operation, ids, filters)
        self.tell(request, operation, self.do(request, operation, ids))
        return self.back_to_list(filters)

    def ask(
        self,
        request: HttpRequest,
        operation: Operation,
        ids: Sequence[uuid.UUID],
        filters: str,
        *,
        has_more: bool = False,
    ) -> HttpResponse:
        """Return the page that states how many jobs it is about; change nothing."""
        rows = self.get_queryset(request).defer(*self.large_fields).filter(pk__in=ids)
        there = set(rows.order_by().values_list("pk", flat=True))
        asked = [pk for pk in ids if pk in there]
        if not asked:
            nothing = Report()
            nothing.counts[Answer.NOTHING] = len(ids)
            self.tell(request, operation, nothing)
            return self.back_to_list(filters)
        count = {"count": len(asked)}
        sample = [(name_of(row), visible(row.queue_name), row.pk) for row in rows[:SAMPLE_ROWS]]
        return self.page(
            request,
            "confirm.html",
            str(operation.question % count),
            operation=operation,
            action_url=self.operation_url(operation),
            confirm_label=operation.confirm % count,
            ids="\n".join(map(str, asked)),
            filters=filters,
            back_url=self.list_url(filters),
            sample=sample,
            unlisted_count=len(asked) - len(sample),
            has_more=has_more,
            most_jobs=MOST_JOBS,
        )

    def do(self, request: HttpRequest, operation: Operation, ids: Sequence[uuid.UUID]) -> Report:
        """Change the jobs, and log each that was changed with the user who did it."""
        total = Report()
        store = get_store()
        names = {
            row.pk: row
            for row in self.get_queryset(request).defer(*self.large_fields).filter(pk__in=ids)
        }
        for _batch, report in apply(operation, store, ids):
            self.log(request, operation, [names[pk] for pk in report.changed if pk in names])
            for answer, count in report.counts.items():
                total.counts[answer] += count
            total.refusals += report.refusals
            total.changed += report.changed
        return total

    def log(self, request: HttpRequest, operation: Operation, rows: Any) -> None:
        """Keep who did *operation* to *rows*, in the admin's own log."""
        if not rows:
            return
        user: Any = request.user
        flag = DELETION if operation.name == "discard" else CHANGE
        LogEntry.objects.log_actions(user.pk, rows, flag, operation.logged)

    # Reported

    def tell(self, request: HttpRequest, operation: Operation, report: Report) -> None:
        """Add a message for each kind of answer."""
        for answer, count in report.counts.items():
            if count:
                text: Any = operation.messages[answer] % {"count": count}
                if answer is Answer.REFUSED:
                    text = format_html("{} {}", text, self._refusals(report.refusals))
                self.message_user(request, text, LEVELS[answer])

    def _refusals(self, refusals: Sequence[Refusal]) -> SafeString:
        shown = refusals[:REFUSALS_SHOWN]
        lines = format_html_join("; ", "{}", ([self._refusal(refusal)] for refusal in shown))
        left_out = len(refusals) - len(shown)
        if left_out:
            more = _("and %(count)d more") % {"count": left_out}
            return format_html("{}; {}.", lines, more)
        return format_html("{}.", lines)

    def _refusal(self, refusal: Refusal) -> SafeString:
        return format_html(
            _("{job} waits for live job {holder}"),
            job=job_link("deadjob", refusal.job_id),
            holder=job_link("livejob", refusal.holder_id),
        )

    def list_url(self, filters: str) -> str:
        """Return the list's address with its filters and without what belongs to one visit."""
        query = QueryDict(filters, mutable=True)
        for passing in (PAGE_VAR, ERROR_FLAG):
            query.pop(passing, None)
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist"
        url = reverse(name, current_app=self.admin_site.name)
        return f"{url}?{query.urlencode()}" if query else url

    def back_to_list(self, filters: str) -> HttpResponseRedirect:
        return HttpResponseRedirect(self.list_url(filters))


def posted_ids(request: HttpRequest) -> list[uuid.UUID] | None:
    """Return the ids that were posted, each once; None where there are none, or too many."""
    texts = dict.fromkeys(request.POST.get("ids", "").split())
    ids = [as_uuid(text) for text in texts]
    if not ids or len(ids) > MOST_JOBS:
        return None
    known = [found for found in ids if found is not None]
    return known if len(known) == len(ids) else None


def job_link(model_name: str, job_id: uuid.UUID | None) -> SafeString:
    """Return a job's id as a link to its page, where the model is in the admin."""
    try:
        url = reverse(f"admin:workqueue_{model_name}_change", args=[job_id])
    except NoReverseMatch:
        return format_html("{}", job_id)
    return format_html('<a href="{}">{}</a>', url, job_id)
