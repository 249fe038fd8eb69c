"""Filters whose choices are constants, or names read from an index: never a DISTINCT."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..models import DeadJob
from ..states import DeathReason, State
from ..store import get_store
from ..store.names import names_in
from .showing import visible

NAMES_SHOWN: Final = 50
NAMES_READ: Final = 500

HOUR: Final = 3_600
DAY: Final = 24 * HOUR


class NameFilter(admin.SimpleListFilter):
    """A filter by an indexed name; its choices are what the table holds, and the one chosen."""

    column: ClassVar[str]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        names = dead_names(request, self.column)[:NAMES_SHOWN]
        chosen = self.value()
        if chosen and chosen not in names:
            names = [chosen, *names]
        return [(name, visible(name) or _("(no task)")) for name in names]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        name = self.value()
        return queryset if name is None else queryset.filter(**{self.column: name})


class QueueFilter(NameFilter):
    title = gettext_lazy("queue")
    parameter_name = "queue"
    column = "queue_name"


class TaskFilter(NameFilter):
    title = gettext_lazy("task")
    parameter_name = "task"
    column = "task"


class ReasonFilter(admin.SimpleListFilter):
    title = gettext_lazy("reason")
    parameter_name = "reason"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(reason.value, reason_label(reason.value)) for reason in DeathReason]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset if self.value() is None else queryset.filter(reason=self.value())


class DiedFilter(admin.SimpleListFilter):
    """A filter by the moment of death, by the database's clock."""

    title = gettext_lazy("died")
    parameter_name = "died"
    newer: Final = {"hour": HOUR, "day": DAY, "week": 7 * DAY, "month": 30 * DAY}

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            ("hour", _("in the past hour")),
            ("day", _("in the past 24 hours")),
            ("week", _("in the past 7 days")),
            ("month", _("in the past 30 days")),
            ("older", _("more than 30 days ago")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        chosen = self.value()
        if chosen == "older":
            return queryset.filter(died_at__lt=get_store().moment(None, -30 * DAY))
        if chosen in self.newer:
            return queryset.filter(died_at__gte=get_store().moment(None, -self.newer[chosen]))
        return queryset


class StateFilter(admin.SimpleListFilter):
    """A filter by a live job's state; each choice walks the partial index of its state."""

    title = gettext_lazy("state")
    parameter_name = "state"
    lapsed: Final = "lapsed"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            (State.SCHEDULED, _("scheduled")),
            (State.READY, _("ready")),
            (State.RUNNING, _("running")),
            (self.lapsed, _("running, lease lapsed")),
            (State.HELD, _("held")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        chosen = self.value()
        if chosen == self.lapsed:
            now = get_store().moment(None)
            return queryset.filter(Q(state=State.RUNNING.value, lease_expires_at__lt=now))
        return queryset if chosen is None else queryset.filter(state=chosen)

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        for choice in super().choices(changelist):
            yield {**choice, "display": capfirst(choice["display"])}


def dead_names(request: HttpRequest, column: str) -> list[str]:
    """Return the different names in a column of the dead jobs, read once a request."""
    known: dict[str, list[str]] = request.__dict__.setdefault("_workqueue_dead_names", {})
    if column not in known:
        known[column] = names_in(DeadJob, column, alias=get_store().alias, limit=NAMES_READ)
    return known[column]


REASON_LABELS: Final[dict[str, Any]] = {
    DeathReason.EXHAUSTED: gettext_lazy("attempts exhausted"),
    DeathReason.TERMINAL: gettext_lazy("terminal error"),
    DeathReason.LOST: gettext_lazy("lost with its worker"),
    DeathReason.TIMEOUT: gettext_lazy("timed out"),
    DeathReason.EXPIRED: gettext_lazy("expired"),
    DeathReason.UNKNOWN_TASK: gettext_lazy("unknown task"),
    DeathReason.BAD_ARGUMENTS: gettext_lazy("bad arguments"),
    DeathReason.UNSTORABLE_RESULT: gettext_lazy("result not storable"),
}


def reason_label(reason: str) -> str:
    """Return a reason of death in words; one that this code does not know as it is stored."""
    return str(REASON_LABELS.get(reason, reason))
