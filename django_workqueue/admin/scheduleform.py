"""The form of a schedule that is kept in the admin, judged by the rules that code is judged by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from django import forms
from django.conf import settings as django_settings
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import cron, payload, registry
from ..arguments import NAME_LENGTH
from ..binding import bind
from ..compat import InvalidTask
from ..exceptions import ArgumentsError, CronError, PayloadError, ScheduleError
from ..models import Schedule
from ..schedules.definition import CATCH_UP, DEFAULT_MAX_CATCH_UP, OVERLAP, Definition, define
from . import showing
from .redaction import HiddenValueMoved, is_call, restored
from .schedulepage import shown_call

NO_ARGUMENTS: Final[dict[str, Any]] = {"args": [], "kwargs": {}}

CATCH_UP_LABELS: Final = {
    "skip": gettext_lazy("skip: none of them gets a job"),
    "latest": gettext_lazy("latest: the newest gets a job"),
    "all": gettext_lazy("all: each gets a job, up to the number below"),
}
OVERLAP_LABELS: Final = {
    "allow": gettext_lazy("allow: another job while the last one is live"),
    "skip": gettext_lazy("skip: no job while the last one is live"),
}


def number(label: Any, help_text: Any, **options: Any) -> forms.FloatField:
    return forms.FloatField(label=label, help_text=help_text, required=False, **options)


class ScheduleForm(forms.Form):
    """``definition`` is what the form says, once it is valid."""

    name = forms.CharField(label=gettext_lazy("Name"), max_length=NAME_LENGTH, strip=False)
    task = forms.ChoiceField(label=gettext_lazy("Task"))
    arguments = forms.CharField(
        label=gettext_lazy("Arguments"),
        strip=False,
        help_text=gettext_lazy("JSON, of each job."),
        widget=forms.Textarea(attrs={"rows": 5, "cols": 80, "spellcheck": "false"}),
    )
    expression = forms.CharField(
        label=gettext_lazy("When"),
        max_length=1000,
        help_text=gettext_lazy(
            "Minute, hour, day of month, month, day of week: “0 3 * * *” is every day at 03:00. "
            "Or @hourly, @daily, @every 90s."
        ),
    )
    timezone = forms.CharField(
        label=gettext_lazy("Time zone"),
        max_length=64,
        help_text=gettext_lazy("A region and city, such as Europe/Paris, or UTC."),
    )
    catch_up = forms.ChoiceField(
        label=gettext_lazy("Missed ticks"),
        choices=[(each, CATCH_UP_LABELS[each]) for each in CATCH_UP],
    )
    max_catch_up = forms.IntegerField(
        label=gettext_lazy("At most"),
        help_text=gettext_lazy("With “all”: jobs that are made up at once."),
    )
    deadline = number(
        gettext_lazy("Missed after"), gettext_lazy("Seconds; empty: as the policy above says.")
    )
    overlap = forms.ChoiceField(
        label=gettext_lazy("Overlap"), choices=[(each, OVERLAP_LABELS[each]) for each in OVERLAP]
    )
    expires = number(
        gettext_lazy("Jobs expire after"),
        gettext_lazy("Seconds from the tick; empty: as the task says."),
    )
    jitter = number(
        gettext_lazy("Jitter"), gettext_lazy("Seconds by which jobs are spread after the tick.")
    )
    queue_name = forms.CharField(
        label=gettext_lazy("Queue"),
        max_length=NAME_LENGTH,
        required=False,
        help_text=gettext_lazy("Empty: the task’s."),
    )
    priority = forms.IntegerField(
        label=gettext_lazy("Priority"),
        required=False,
        help_text=gettext_lazy("-100 to 100, higher first; empty: the task’s."),
    )
    # An edit by somebody else raises it; a tick does not.
    version = forms.IntegerField(widget=forms.HiddenInput)

    def __init__(self, schedule: Schedule | None, data: Any = None) -> None:
        self.schedule = schedule
        self.definition: Definition | None = None
        self.shown = NO_ARGUMENTS if schedule is None else shown_call(schedule)
        super().__init__(data, initial=self._initial())
        registry.discover()
        known = registry.paths()
        if schedule is not None:
            # Its name is its key, and what its jobs carry.
            self.fields["name"].disabled = True
            if schedule.task not in known:
                known = [schedule.task, *known]
        task: Any = self.fields["task"]
        task.choices = [(each, each) for each in known]

    def _initial(self) -> dict[str, Any]:
        row = self.schedule
        text = showing.as_json(self.shown)
        if row is None:
            return {
                "arguments": text,
                "timezone": django_settings.TIME_ZONE,
                "catch_up": "latest",
                "max_catch_up": DEFAULT_MAX_CATCH_UP,
                "overlap": "allow",
                "version": 0,
            }
        names = "name task expression timezone catch_up max_catch_up overlap queue_name priority"
        return {
            **{name: getattr(row, name) for name in (*names.split(), "version")},
            "arguments": text,
            "deadline": row.deadline_seconds,
            "expires": row.expires_seconds,
            "jitter": row.jitter_seconds or None,
        }

    def clean_version(self) -> int:
        version: int = self.cleaned_data["version"]
        if self.schedule is not None and version != self.schedule.version:
            raise ValidationError(
                _(
                    "The schedule was changed by somebody else since this form was opened. Open "
                    "it again."
                )
            )
        return version

    def clean_arguments(self) -> Any:
        try:
            edited = payload.decode(self.cleaned_data["arguments"])
        except PayloadError as error:
            raise ValidationError(
                _("The arguments must be JSON: %(problem)s."), params={"problem": error.__cause__}
            ) from error
        if not is_call(edited):
            raise ValidationError(
                _('The arguments must be an object with "args", a list, and "kwargs", an object.')
            )
        stored = self.shown
        if self.schedule is not None:
            stored = {"args": self.schedule.args, "kwargs": self.schedule.kwargs}
        try:
            call = restored(edited, self.shown, stored)
        except HiddenValueMoved as error:
            raise ValidationError(
                _(
                    "%(path)s must be written out: the mask stands for a hidden value only in "
                    "the place where it was shown."
                ),
                params={"path": error.path},
            ) from error
        # Here as well as in the definition, so that every field with a mistake is told at once.
        task = registry.find(self.cleaned_data.get("task", ""))
        if task is not None:
            told(bind, task, call["args"], call["kwargs"])
        return call

    def clean_expression(self) -> str:
        text: str = self.cleaned_data["expression"]
        told(cron.check, text)
        return text

    def clean_timezone(self) -> str:
        name: str = self.cleaned_data["timezone"]
        told(cron.check_timezone, name)
        return name

    def clean(self) -> dict[str, Any]:
        given = super().clean() or self.cleaned_data
        if self.errors:
            return given
        task = registry.find(given["task"])
        if task is None:
            self.add_error(
                "task", _("This process does not know the task: it cannot be edited here.")
            )
            return given
        try:
            self.definition = self._defined(task, given)
        except (PayloadError, ArgumentsError) as error:
            self.add_error("arguments", visible(error))
        except ScheduleError as error:
            self.add_error(error.option if error.option in self.fields else None, visible(error))
        except (InvalidTask, TypeError, ValueError) as error:
            self.add_error(None, visible(error))
        return given

    def _defined(self, task: Any, given: dict[str, Any]) -> Definition:
        changes = {
            name: given[name]
            for name in ("queue_name", "priority")
            if given[name] not in (None, "")
        }
        return define(
            given["name"],
            task.using(**changes) if changes else task,
            cron=given["expression"],
            timezone=given["timezone"],
            args=given["arguments"]["args"],
            kwargs=given["arguments"]["kwargs"],
            catch_up=given["catch_up"],
            max_catch_up=given["max_catch_up"],
            deadline=given["deadline"],
            overlap=given["overlap"],
            expires=given["expires"],
            jitter=given["jitter"] or 0,
        )


def told(judge: Callable[..., Any], *given: Any) -> None:
    """Let a rule of the package judge; what it refuses is said at the form's field."""
    try:
        judge(*given)
    except (ArgumentsError, CronError) as error:
        raise ValidationError(visible(error)) from error


def visible(error: Exception) -> str:
    return showing.visible(str(error))
