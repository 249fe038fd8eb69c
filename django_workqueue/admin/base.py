"""What every page shares: the queue's database, nothing to add or change, bounded lists."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Model, Q, QuerySet
from django.db.models.functions import Lower
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.text import capfirst, format_lazy
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..store import get_store, queue_alias
from .paging import BoundedChangeList, BoundedPaginator, page_number

if TYPE_CHECKING:
    ModelAdminBase = admin.ModelAdmin[Any]
else:
    ModelAdminBase = admin.ModelAdmin

SEARCHED_ROWS: Final = 20_000
"""The newest rows of a table without an index on its tasks that a search looks at."""

SEARCH_NEWEST_HELP: Final = format_lazy(
    gettext_lazy("A job’s exact id, or part of a task, kind or queue among the newest {count}."),
    count=f"{SEARCHED_ROWS:,}",
)


class ReadOnlyAdmin(ModelAdminBase):
    """A list, and where there is one a page, of rows that only the store writes."""

    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    list_max_show_all = 0
    sortable_by: ClassVar[Any] = ()

    large_fields: ClassVar[Sequence[str]] = ()
    """Columns that a list leaves in the database."""

    empty_note: Any = ""
    """What the list says where it has no row."""

    class Media:
        css: ClassVar = {"all": ["workqueue/admin.css"]}

    # Rows

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return all rows of the queue's database, each with that database's *now*."""
        store = get_store()
        rows: QuerySet[Any] = self.model._default_manager.using(store.alias)
        # In the same statement: one clock decides how old a row is, and it costs no query.
        rows = rows.annotate(now=store.moment(None))
        return rows.order_by(*self.get_ordering(request))

    def complete_page(self, rows: list[Any]) -> None:
        """Add to the rows of one list page what is not in their columns."""

    @property
    def alias(self) -> str:
        return queue_alias()

    # Lists

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[BoundedChangeList]:
        return BoundedChangeList

    def get_paginator(
        self, request: HttpRequest, queryset: Any, per_page: int, *args: Any, **kwargs: Any
    ) -> BoundedPaginator:
        page = page_number(request)
        return BoundedPaginator(queryset, per_page, *args, page_number=page, **kwargs)

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Allow the filters' own parameters: others could probe hidden arguments, or scan."""
        filters: Iterable[Any] = self.list_filter
        return lookup in {getattr(each, "parameter_name", None) for each in filters}

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        job_id = as_uuid(term)
        found = queryset.filter(pk=job_id) if job_id else self.search_text(request, queryset, term)
        return found, False

    def search_text(
        self, request: HttpRequest, queryset: QuerySet[Any], term: str
    ) -> QuerySet[Any]:
        """Narrow *queryset* to the rows that *term*, which is no id, speaks of."""
        raise NotImplementedError  # pragma: no cover

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        context = {"title": capfirst(str(self.opts.verbose_name_plural)), **(extra_context or {})}
        return super().changelist_view(request, context)

    # Permissions: only "view" is ever Django's own

    def has_add_permission(self, request: HttpRequest, *args: Any) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def may(self, request: HttpRequest, permission: str) -> bool:
        """Tell whether the user may see this model's rows and holds *permission* of the app."""
        user: Any = request.user
        name = f"{self.opts.app_label}.{permission}"
        return self.has_view_permission(request) and bool(user.has_perm(name))

    # Pages

    def object_or_redirect(self, request: HttpRequest, object_id: str) -> Any:
        """Return the row that a page is about, or the answer that says it is not there."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        job_id = as_uuid(object_id)
        obj = self.get_object(request, str(job_id)) if job_id else None
        if obj is None:
            return self._not_there(request, object_id)
        return obj

    def _not_there(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Say that the job is not in this table (any more), and lead to the list."""
        text = _("There is no %(name)s %(id)s. It may have been requeued, finished or discarded.")
        name = str(self.opts.verbose_name)
        self.message_user(request, text % {"name": name, "id": object_id}, messages.WARNING)
        url = reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist")
        return HttpResponseRedirect(url)

    def page(
        self, request: HttpRequest, template: str, title: str, **context: Any
    ) -> TemplateResponse:
        """Return a page of ours within the admin's frame."""
        request.current_app = self.admin_site.name
        return TemplateResponse(
            request,
            f"admin/workqueue/{template}",
            {
                **self.admin_site.each_context(request),
                "title": title,
                "opts": self.opts,
                "media": self.media,
                "preserved_filters": self.get_preserved_filters(request),
                **context,
            },
        )


def as_uuid(text: str) -> uuid.UUID | None:
    """Return the id that *text* is, in any of the forms people copy it in; else None."""
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


def newest_with_text(
    rows: QuerySet[Any], term: str, columns: Sequence[str], alias: str
) -> QuerySet[Any]:
    """Narrow *rows* to those with *term* in one of *columns*, among the table's newest.

    The table has no index on them. Ids rise with time, so the primary key tells what is newest.
    """
    table = rows.model._default_manager.using(alias).order_by("-pk").values_list("pk", flat=True)
    oldest = next(iter(table[SEARCHED_ROWS : SEARCHED_ROWS + 1]), None)
    if oldest is not None:
        rows = rows.filter(pk__gt=oldest)
    return containing(rows, term, columns)


def containing(rows: QuerySet[Any], term: str, columns: Sequence[str]) -> QuerySet[Any]:
    """Narrow *rows* to those with *term*, in any case, in one of *columns*.

    Not ``icontains``: MariaDB compares these columns exactly, and finds "Key" under "Key" only.
    """
    found = Q()
    for column in columns:
        rows = rows.alias(**{f"lower_{column}": Lower(column)})
        found |= Q(**{f"lower_{column}__contains": term.lower()})
    return rows.filter(found)
