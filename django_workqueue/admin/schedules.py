"""Schedules of code and of people, side by side, and the page of one."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import F, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import cron
from ..models import Schedule
from ..store.scheduling import SOURCE_ADMIN
from . import schedulepage, showing
from .scheduleverbs import CHANGE_PERMISSION, OperatedSchedules


@admin.register(Schedule)
class ScheduleAdmin(OperatedSchedules):
    list_display = (
        "shown_name",
        "when",
        "what",
        "kept_in",
        "state",
        "next",
        "last",
        "fired",
        "missed",
    )
    list_display_links = ("shown_name",)
    ordering: ClassVar[Any] = (F("next_fire_at").asc(nulls_last=True), "name")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        # One row that nobody can read must not take the list of all others along (N10).
        return super().get_queryset(request).defer(*schedulepage.JSON_COLUMNS)

    def complete_page(self, rows: list[Any]) -> None:
        schedulepage.read_json(rows, self.alias)

    @admin.display(description=gettext_lazy("name"))
    def shown_name(self, schedule: Schedule) -> SafeString:
        return showing.name(showing.visible(schedule.name))

    @admin.display(description=gettext_lazy("kept in"))
    def kept_in(self, schedule: Schedule) -> str:
        return _("the admin") if schedule.source == SOURCE_ADMIN else _("code")

    @admin.display(description=gettext_lazy("when"))
    def when(self, schedule: Schedule) -> SafeString:
        words = cron.describe(schedule.expression)
        shown = showing.first_line(schedule.expression)
        below = (
            f"{shown} · {schedule.timezone}" if words != schedule.expression else schedule.timezone
        )
        return format_html(
            '{}<br><span class="workqueue-quiet">{}</span>', showing.visible(words), below
        )

    @admin.display(description=gettext_lazy("task"))
    def what(self, schedule: Schedule) -> SafeString:
        if schedulepage.is_unread(schedule):
            return showing.name(showing.visible(schedule.task))
        call = showing.first_line(showing.inline_call(schedulepage.shown_call(schedule)))
        name = showing.name(showing.visible(schedule.task))
        return format_html("{}({})", name, call)

    @admin.display(description=gettext_lazy("state"))
    def state(self, schedule: Schedule) -> SafeString:
        told = schedulepage.verdict(schedule)
        if schedule.error:
            error = showing.first_line(schedule.error)
            return format_html('{}<br><span class="workqueue-error">{}</span>', told, error)
        return format_html("{}", told)

    @admin.display(description=gettext_lazy("next tick"))
    def next(self, schedule: Any) -> SafeString:
        if schedule.error:
            return showing.EMPTY
        return showing.age(schedule.next_fire_at, schedule.now)

    @admin.display(description=gettext_lazy("last tick"))
    def last(self, schedule: Any) -> SafeString:
        return showing.age(schedule.last_fire_at, schedule.now)

    @admin.display(description=gettext_lazy("fired"))
    def fired(self, schedule: Schedule) -> int:
        return schedule.fire_count

    @admin.display(description=gettext_lazy("missed"))
    def missed(self, schedule: Schedule) -> int:
        return schedule.missed_count

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
        schedule = self.found(request, object_id)
        if isinstance(schedule, HttpResponse):
            return schedule
        may_change = self.may(request, CHANGE_PERMISSION)
        is_removable = schedule.source == SOURCE_ADMIN or not schedule.enabled
        may_remove = is_removable and self.may(request, "delete_schedule")
        return self.page(
            request,
            "schedule.html",
            showing.visible(schedule.name),
            schedule=schedule,
            verdict=schedulepage.verdict(schedule),
            words=cron.describe(schedule.expression),
            next_tick=showing.age(schedule.next_fire_at, schedule.now),
            warnings=schedulepage.warnings(schedule),
            ticks=schedulepage.next_ticks(schedule, schedule.now),
            jobs=schedulepage.last_jobs(schedule, self.alias, schedule.now),
            arguments=showing.pretty(schedulepage.shown_call(schedule)),
            hides_values=schedulepage.hides_values(schedule),
            facts=schedulepage.facts(schedule),
            is_code=schedule.source != SOURCE_ADMIN,
            may_change=may_change,
            may_edit=may_change and schedule.source == SOURCE_ADMIN,
            may_remove=may_remove,
            urls={
                verb: self.url(verb, schedule.pk)
                for verb in ("edit", "pause", "resume", "run", "remove")
            },
        )
