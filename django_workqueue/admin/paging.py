"""Lists of tables of any size: no count and no page reads more than a bounded part of one."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from django.contrib.admin.views.main import PAGE_VAR, ChangeList
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest

if TYPE_CHECKING:
    PaginatorBase = Paginator[Any]
else:
    PaginatorBase = Paginator

COUNTED_ROWS: Final = 1_000
"""Rows that are counted on the first pages of a list."""

PAGES_AHEAD: Final = 10
"""On later pages the count goes on for as many pages."""

REACHED_ROWS: Final = 20_000
"""Where paging ends: an OFFSET reads all that it leaves out. Filters and search lead further."""


class BoundedPaginator(PaginatorBase):
    """A paginator whose count stops; *has_more* tells that it did."""

    def __init__(self, *args: Any, page_number: int = 1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        ahead = (page_number + PAGES_AHEAD) * self.per_page
        self.counted_rows = min(max(COUNTED_ROWS, ahead), REACHED_ROWS)

    @cached_property
    def _seen(self) -> int:
        rows: Any = self.object_list
        # LIMIT inside, COUNT outside; without an order, so that any index will do.
        return int(rows.order_by().values("pk")[: self.counted_rows + 1].count())

    @cached_property
    def count(self) -> int:
        return min(self._seen, self.counted_rows)

    @property
    def has_more(self) -> bool:
        return self._seen > self.counted_rows


def page_number(request: HttpRequest) -> int:
    """Return the page of a list that *request* asks for, 1 where it makes no sense."""
    text = request.GET.get(PAGE_VAR, "")
    return max(int(text), 1) if text.isdecimal() and len(text) < 9 else 1


class BoundedChangeList(ChangeList):
    """A list that loads no large column of its rows and counts no whole table."""

    has_more = False

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> QuerySet[Model]:
        rows = super().get_queryset(request, *args, **kwargs)
        return rows.defer(*self.model_admin.large_fields)  # type: ignore[attr-defined]

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.has_more = getattr(self.paginator, "has_more", False)
        page = list(self.result_list)
        self.model_admin.complete_page(page)  # type: ignore[attr-defined]
        self.result_list: Any = page
