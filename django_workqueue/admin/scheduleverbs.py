"""What people do to schedules: add, edit, pause, resume, run now, delete; each by POST alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from django.contrib import messages
from django.contrib.admin.models import ADDITION, CHANGE, DELETION, LogEntry
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from .. import conf, cron, notifying
from ..models import Schedule
from ..scheduler import planning, writing
from ..store import BaseStore, get_store
from ..store.scheduling import SOURCE_ADMIN
from . import schedulepage, showing
from .confirming import job_link
from .others import NamedAdmin
from .scheduleform import ScheduleForm

CHANGE_PERMISSION: Final = "change_schedule"


class OperatedSchedules(NamedAdmin):
    """The views that change a schedule, and what all views of one share."""

    def has_add_permission(self, request: HttpRequest, *args: Any) -> bool:
        return self.may(request, "add_schedule")

    def get_urls(self) -> list[Any]:
        verbs: dict[str, Callable[..., HttpResponse]] = {
            "edit": self.edit_view,
            "pause": partial(self.verb_view, verb=self._pause),
            "resume": partial(self.verb_view, verb=self._resume),
            "run": partial(self.verb_view, verb=self._run),
            "remove": self.remove_view,
        }
        own = [
            path(
                f"<path:object_id>/{verb}/",
                self.admin_site.admin_view(view),
                name=f"{self.opts.app_label}_{self.opts.model_name}_{verb}",
            )
            for verb, view in verbs.items()
        ]
        return own + super().get_urls()

    # Adding and editing

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if not self.has_add_permission(request):
            raise PermissionDenied
        return self._form(request, None)

    def edit_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        schedule = self._changeable(request, object_id)
        if isinstance(schedule, HttpResponse):
            return schedule
        if schedule.source != SOURCE_ADMIN:
            raise PermissionDenied("A schedule of code is changed in code.")
        return self._form(request, schedule)

    def _form(self, request: HttpRequest, schedule: Any) -> HttpResponse:
        form = ScheduleForm(schedule, request.POST if request.method == "POST" else None)
        preview: dict[str, Any] = {}
        if request.method == "POST" and form.is_valid():
            saves = "_save" in request.POST
            if saves and (name := self._write(request, form)) is not None:
                return HttpResponseRedirect(self.url("change", name))
            if not form.errors:
                preview = self._preview(form)
        title = _("Add a schedule") if schedule is None else _("Edit %(name)s") % {"name": schedule}
        back = self.url("changelist") if schedule is None else self.url("change", schedule.pk)
        return self.page(
            request,
            "scheduleform.html",
            showing.visible(title),
            form=form,
            schedule=schedule,
            schedule_url=back,
            **preview,
        )

    def _planned(self, form: ScheduleForm, now: Any) -> Schedule:
        """Return the row as it will be, unsaved; the form's own schedule is left as it is."""
        assert form.definition is not None
        row = writing.new_row(form.definition, now, source=SOURCE_ADMIN)
        if form.schedule is not None:
            changes = writing.changes_to(form.schedule, form.definition, now)
            row.next_fire_at = changes.get("next_fire_at", form.schedule.next_fire_at)
        return row

    def _preview(self, form: ScheduleForm) -> dict[str, Any]:
        now = get_store().now()
        row = self._planned(form, now)
        return {
            "is_preview": True,
            "words": cron.describe(row.expression),
            "timezone": row.timezone,
            "ticks": schedulepage.next_ticks(row, now),
            "warnings": schedulepage.cautions(row.expression),
        }

    def _write(self, request: HttpRequest, form: ScheduleForm) -> str | None:
        """Write what the form says; return the name. None: the form has an error now."""
        assert form.definition is not None
        store, name = get_store(), form.definition.name
        now = store.now()
        if form.schedule is None:
            row = writing.new_row(form.definition, now, source=SOURCE_ADMIN)
            if not store.add_schedule(row):
                form.add_error("name", _("There is a schedule of this name."))
                return None
        else:
            changes = writing.changes_to(form.schedule, form.definition, now)
            if changes and not store.edit_schedule(form.schedule, changes):
                form.add_error(None, _("Somebody else changed it just now. Open it again."))
                return None
        notifying.tell_schedulers(store)
        self._log(request, name, ADDITION if form.schedule is None else CHANGE, "Saved.")
        self.message_user(request, _("The schedule was saved."), messages.SUCCESS)
        return name

    # Pause, resume, run now, remove

    def verb_view(
        self, request: HttpRequest, object_id: str, verb: Callable[..., str | SafeString]
    ) -> HttpResponse:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        schedule = self._changeable(request, object_id)
        if isinstance(schedule, HttpResponse):
            return schedule
        self.message_user(request, verb(request, get_store(), schedule))
        return HttpResponseRedirect(self.url("change", schedule.pk))

    def _pause(self, request: HttpRequest, store: BaseStore, schedule: Schedule) -> str:
        if not store.pause_schedule(schedule.pk):
            return _("It was paused already.")
        self._log(request, schedule.pk, CHANGE, "Paused.")
        return _("Paused: its ticks make no jobs until it is resumed.")

    def _resume(self, request: HttpRequest, store: BaseStore, schedule: Schedule) -> str:
        if not store.resume_schedule(schedule.pk):
            return _("It was not paused.")
        notifying.tell_schedulers(store)
        self._log(request, schedule.pk, CHANGE, "Resumed.")
        return _("Resumed: its policy decides about the ticks that passed.")

    def _run(self, request: HttpRequest, store: BaseStore, schedule: Schedule) -> SafeString:
        job_id = store.run_now(planning.job_of(schedule, None, conf.current()))
        if job_id is None:
            return format_html("{}", _("No job was made: its unique key is taken by a live job."))
        notifying.notify(store)
        self._log(request, schedule.pk, CHANGE, f"Run now: job {job_id}.")
        return format_html(
            _("Job {} was made; the ticks stay as they are."), job_link("livejob", job_id)
        )

    def remove_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        if not self.may(request, "delete_schedule"):
            raise PermissionDenied
        schedule = self.found(request, object_id)
        if isinstance(schedule, HttpResponse):
            return schedule
        if request.POST.get("confirmed") != "yes":
            title = _("Delete the schedule %(name)s?") % {"name": schedule}
            return self.page(
                request,
                "scheduleremove.html",
                showing.visible(title),
                action_url=self.url("remove", schedule.pk),
                back_url=self.url("change", schedule.pk),
            )
        if get_store().remove_schedule(schedule.pk):
            self._log(request, schedule.pk, DELETION, "Deleted.")
            self.message_user(request, _("The schedule was deleted."), messages.SUCCESS)
        else:
            self.message_user(request, _("Code declares it: it stays."), messages.WARNING)
        return HttpResponseRedirect(self.url("changelist"))

    # Helping

    def found(self, request: HttpRequest, object_id: str) -> Any:
        """Return the row, or the answer that says it is not there."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        name = unquote(object_id)
        row = self.get_queryset(request).filter(pk=name).first()
        if row is None:
            return self._not_there(request, name)
        if not schedulepage.read_json([row], self.alias):
            text = _("The arguments of %(name)s are no JSON: correct its row in the database.")
            self.message_user(request, text % {"name": name}, messages.ERROR)
            return HttpResponseRedirect(self.url("changelist"))
        return row

    def _changeable(self, request: HttpRequest, object_id: str) -> Any:
        if not self.may(request, CHANGE_PERMISSION):
            raise PermissionDenied
        return self.found(request, object_id)

    def url(self, verb: str, name: str | None = None) -> str:
        args = [] if name is None else [quote(name)]
        url = f"admin:{self.opts.app_label}_{self.opts.model_name}_{verb}"
        return reverse(url, args=args, current_app=self.admin_site.name)

    def _log(self, request: HttpRequest, name: str, flag: int, text: str) -> None:
        user: Any = request.user
        LogEntry.objects.log_actions(user.pk, [Schedule(name=name)], flag, text, single_object=True)
