"""The form in which a dead job's arguments are corrected."""

from __future__ import annotations

import inspect
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import conf, payload
from ..binding import bind
from ..exceptions import ArgumentsError, PayloadError
from ..models import DeadJob
from ..states import Lane
from . import showing
from .jobpage import shown_payload, task_of
from .redaction import HiddenValueMoved, is_call, restored


class CorrectionForm(forms.Form):
    """The arguments as JSON, checked as an enqueue checks them.

    ``cleaned_data["payload"]`` is the JSON text to store: it passed the limits and, where this
    process knows the task, fits its signature. Hidden values that were left alone are the stored
    ones again.
    """

    payload = forms.CharField(
        label=gettext_lazy("Arguments"),
        strip=False,
        widget=forms.Textarea(
            attrs={"rows": 20, "cols": 100, "spellcheck": "false", "class": "vLargeTextField"}
        ),
    )
    # The fence rises at every claim: an edit of what has run since is an edit of something else.
    fence = forms.IntegerField(widget=forms.HiddenInput)

    def __init__(self, job: DeadJob, data: Any = None) -> None:
        self.job = job
        self.task = task_of(job)
        self.shown = shown_payload(job)
        text = showing.as_json(self.shown)
        super().__init__(data, initial={"payload": text, "fence": job.fence})

    @property
    def signature(self) -> str:
        """The parameters of the task, where this process knows it."""
        return "" if self.task is None else str(inspect.signature(self.task.func))

    def clean_fence(self) -> int:
        fence: int = self.cleaned_data["fence"]
        if fence != self.job.fence:
            raise ValidationError(
                _(
                    "The job was requeued and died again since this form was opened. Open it "
                    "again, and look at its newest error."
                )
            )
        return fence

    def clean_payload(self) -> str:
        try:
            return self._stored_text(self._restored(self.cleaned_data["payload"]))
        except (PayloadError, ArgumentsError) as error:
            raise ValidationError(showing.visible(str(error))) from error

    def _restored(self, text: str) -> Any:
        try:
            edited = payload.decode(text)
        except PayloadError as error:
            # Of the parser: what is wrong and where, in the text that stands below.
            raise ValidationError(
                _("The arguments must be JSON: %(problem)s."), params={"problem": error.__cause__}
            ) from error
        try:
            return restored(edited, self.shown, self.job.payload)
        except HiddenValueMoved as error:
            raise ValidationError(
                _(
                    "%(path)s must be written out: the mask stands for a hidden value only in "
                    "the place where it was shown."
                ),
                params={"path": error.path},
            ) from error

    def _stored_text(self, value: Any) -> str:
        limit = conf.current().payload_max_bytes
        if self.job.lane != Lane.TASK:
            return payload.encode(value, max_bytes=limit, root="payload", what="payload")
        if not is_call(value):
            raise ValidationError(
                _('The arguments must be an object with "args", a list, and "kwargs", an object.')
            )
        if self.task is not None:
            bind(self.task, value["args"], value["kwargs"])
        return payload.encode_call(value["args"], value["kwargs"], max_bytes=limit)
