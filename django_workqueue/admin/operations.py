"""Requeue, discard and cancel: one or many, asked about first, POST only, in bounded batches."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from django.db import DatabaseError, transaction
from django.utils.translation import gettext_lazy, ngettext_lazy

from .. import notifying
from ..exceptions import UniqueKeyTaken
from ..store import BaseStore, CancelAnswer

MOST_JOBS: Final = 5_000
"""Jobs of one confirmation. A request must end before the server in front of it gives up."""

BATCH: Final = 100
"""Jobs of one transaction: how long SQLite's only write lock, and row locks, are held."""


class Answer(Enum):
    """What became of one job."""

    DONE = "done"
    ASKED = "asked"
    NOTHING = "nothing"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A job that stays dead, and the live job whose unique key is in its way."""

    job_id: uuid.UUID
    holder_id: uuid.UUID | None


@dataclass(slots=True)
class Report:
    """What became of the jobs of one operation."""

    counts: dict[Answer, int] = field(default_factory=lambda: dict.fromkeys(Answer, 0))
    refusals: list[Refusal] = field(default_factory=list)
    changed: list[uuid.UUID] = field(default_factory=list)

    def add(self, job_id: uuid.UUID, answer: Answer | Refusal) -> None:
        if isinstance(answer, Refusal):
            self.refusals.append(answer)
            answer = Answer.REFUSED
        elif answer is not Answer.NOTHING:
            self.changed.append(job_id)
        self.counts[answer] += 1


Change = Callable[[BaseStore, uuid.UUID], Answer | Refusal]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One verb of the operator: its permission, its words and the store's method it calls."""

    name: str
    permission: str
    change: Change
    label: Any  # translated when it is shown, as are all the words below
    question: Any  # a plural that is chosen by its count
    consequence: Any
    confirm: Any
    messages: dict[Answer, Any]
    logged: str
    is_destructive: bool = False


def apply(
    operation: Operation, store: BaseStore, ids: Sequence[uuid.UUID]
) -> Iterator[tuple[Sequence[uuid.UUID], Report]]:
    """Change the jobs *ids*, a batch a transaction; yield what became of each batch.

    What was committed stays committed whatever happens to a later batch. A job that another
    person or a worker changed meanwhile is left alone and counted.
    """
    for start in range(0, len(ids), BATCH):
        batch = ids[start : start + BATCH]
        yield batch, _apply_batch(operation, store, batch)


def _apply_batch(operation: Operation, store: BaseStore, ids: Sequence[uuid.UUID]) -> Report:
    try:
        with transaction.atomic(using=store.alias):
            return _report(operation, store, ids)
    except DatabaseError as error:
        # Only a lost race is tried again, job by job: then each is a transaction of the store's
        # own, which it repeats by itself.
        if store.connection.in_atomic_block or not store.is_conflict(error):
            raise
        return _report(operation, store, ids)


def _report(operation: Operation, store: BaseStore, ids: Iterable[uuid.UUID]) -> Report:
    report = Report()
    for job_id in ids:
        report.add(job_id, operation.change(store, job_id))
    return report


def requeue(store: BaseStore, job_id: uuid.UUID, *, payload: str | None = None) -> Answer | Refusal:
    """Make a dead job ready again; say who is in its way where its unique key is taken."""
    try:
        is_requeued = store.requeue(job_id, payload=payload)
    except UniqueKeyTaken as error:
        return Refusal(job_id, error.holder_id)
    if not is_requeued:
        return Answer.NOTHING
    notifying.notify(store)
    return Answer.DONE


def discard(store: BaseStore, job_id: uuid.UUID) -> Answer | Refusal:
    return Answer.DONE if store.discard(job_id) else Answer.NOTHING


def cancel(store: BaseStore, job_id: uuid.UUID) -> Answer | Refusal:
    return {
        CancelAnswer.CANCELLED: Answer.DONE,
        CancelAnswer.ASKED: Answer.ASKED,
        CancelAnswer.NOTHING: Answer.NOTHING,
    }[store.cancel(job_id)]


REQUEUE: Final = Operation(
    name="requeue",
    permission="requeue_deadjob",
    change=requeue,
    label=gettext_lazy("Requeue"),
    question=ngettext_lazy("Requeue %(count)d dead job?", "Requeue %(count)d dead jobs?", "count"),
    consequence=gettext_lazy(
        "Each becomes ready again under the same id, with the same queue, priority and arguments, "
        "a new budget of attempts and no expiry. A worker may start it at once."
    ),
    confirm=ngettext_lazy("Requeue %(count)d job", "Requeue %(count)d jobs", "count"),
    messages={
        Answer.DONE: ngettext_lazy(
            "%(count)d job was requeued.", "%(count)d jobs were requeued.", "count"
        ),
        Answer.NOTHING: ngettext_lazy(
            "%(count)d job was not dead any more: nothing was done to it.",
            "%(count)d jobs were not dead any more: nothing was done to them.",
            "count",
        ),
        Answer.REFUSED: ngettext_lazy(
            "%(count)d job stays dead, because its unique key is taken:",
            "%(count)d jobs stay dead, because their unique keys are taken:",
            "count",
        ),
    },
    logged="Requeued.",
)

DISCARD: Final = Operation(
    name="discard",
    permission="discard_deadjob",
    change=discard,
    label=gettext_lazy("Discard"),
    question=ngettext_lazy("Discard %(count)d dead job?", "Discard %(count)d dead jobs?", "count"),
    consequence=gettext_lazy(
        "Each is deleted with its arguments and errors, and will never run. "
        "This cannot be taken back."
    ),
    confirm=ngettext_lazy("Discard %(count)d job", "Discard %(count)d jobs", "count"),
    messages={
        Answer.DONE: ngettext_lazy(
            "%(count)d job was discarded.", "%(count)d jobs were discarded.", "count"
        ),
        Answer.NOTHING: ngettext_lazy(
            "%(count)d job was not dead any more: nothing was done to it.",
            "%(count)d jobs were not dead any more: nothing was done to them.",
            "count",
        ),
    },
    logged="Discarded.",
    is_destructive=True,
)

CANCEL: Final = Operation(
    name="cancel",
    permission="cancel_livejob",
    change=cancel,
    label=gettext_lazy("Cancel"),
    question=ngettext_lazy("Cancel %(count)d live job?", "Cancel %(count)d live jobs?", "count"),
    consequence=gettext_lazy(
        "A job that waits will not start. One that runs is asked to stop: it ends as cancelled "
        "where its task heeds that, and a success that comes first stays a success."
    ),
    confirm=ngettext_lazy("Cancel %(count)d job", "Cancel %(count)d jobs", "count"),
    messages={
        Answer.DONE: ngettext_lazy(
            "%(count)d job was cancelled.", "%(count)d jobs were cancelled.", "count"
        ),
        Answer.ASKED: ngettext_lazy(
            "%(count)d job is running: its worker was asked to cancel it.",
            "%(count)d jobs are running: their workers were asked to cancel them.",
            "count",
        ),
        Answer.NOTHING: ngettext_lazy(
            "%(count)d job was not live any more, or its cancel was asked before: "
            "nothing was done to it.",
            "%(count)d jobs were not live any more, or their cancel was asked before: "
            "nothing was done to them.",
            "count",
        ),
    },
    logged="Cancelled.",
    is_destructive=True,
)
