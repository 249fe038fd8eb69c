"""Tables of jobs: live, dead and finished. The same id is the primary key in all three.

Within one database an id is in at most one of them (I1): only ``store`` writes here.
"""

from __future__ import annotations

import uuid
from typing import Any, ClassVar

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from ..compat import TASK_MAX_PRIORITY, TASK_MIN_PRIORITY
from ..ids import new_id
from ..states import (
    DeathReason,
    HeldReason,
    Lane,
    ResultOutcome,
    State,
    UniqueWhile,
)
from .conditions import ShortCheck
from .fields import ExactCharField, JSONTextField, MomentField, NumberedIndex, StateIndex
from .indexes import SetIndex, SetUniqueConstraint

NAME_LENGTH = 255


def choices(names: Any) -> list[tuple[str, str]]:
    """Return the members of a StrEnum as Django choices."""
    return [(name.value, name.value.replace("_", " ")) for name in names]


class JobFacts(models.Model):
    """What is known of a job wherever it is: live or dead."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    lane = ExactCharField(max_length=8, choices=choices(Lane), default=Lane.TASK.value)
    queue_name = ExactCharField(_("queue"), max_length=NAME_LENGTH)
    # Dotted path; blank outside lane task.
    task = ExactCharField(max_length=NAME_LENGTH, blank=True, default="")
    kind = ExactCharField(max_length=NAME_LENGTH, blank=True, default="")
    backend = ExactCharField(max_length=NAME_LENGTH, blank=True, default="")
    payload = JSONTextField()
    # Minus the priority, so that the claim's index ascends (MariaDB below 10.8 ignores DESC).
    rank = models.SmallIntegerField(default=0)
    run_after = MomentField()
    expires_at = MomentField(null=True)
    # Counts are no PositiveIntegerField, whose CHECK PostgreSQL would read for each statement.
    attempt = models.IntegerField(default=0)
    max_attempts = models.IntegerField()
    fence = models.BigIntegerField(default=0)
    claimed_at = MomentField(null=True)
    started_at = MomentField(null=True)
    enqueued_at = MomentField()
    worker_ids = JSONTextField(default=list)
    suspect = models.BooleanField(default=False)
    deaths = models.IntegerField(default=0)
    unique_key = models.TextField(blank=True, default="")
    unique_while = ExactCharField(
        max_length=8, choices=choices(UniqueWhile), blank=True, default=""
    )
    order_key = ExactCharField(max_length=NAME_LENGTH, blank=True, default="")
    seq = models.BigIntegerField(null=True)
    schedule = ExactCharField(max_length=NAME_LENGTH, blank=True, default="")
    scheduled_for = MomentField(null=True)
    # Seconds; what any process must know without the task's code.
    timeout = models.FloatField(null=True)
    result_ttl = models.FloatField(null=True)
    dead_letter = models.BooleanField(default=True)
    atomic = models.BooleanField(default=False)
    headers = JSONTextField(default=dict)
    errors: JSONTextField[Any, Any] = JSONTextField(default=list)
    progress = JSONTextField(null=True)

    class Meta:
        abstract = True

    @property
    def priority(self) -> int:
        """Django's priority: higher is claimed first."""
        return -self.rank


class LiveJob(JobFacts):
    """A job that will run, runs, or may not run now."""

    state = ExactCharField(max_length=12, choices=choices(State))
    held_reason = ExactCharField(max_length=12, choices=choices(HeldReason), blank=True, default="")
    worker_id = ExactCharField(max_length=NAME_LENGTH, null=True)
    token = models.UUIDField(null=True)
    lease_expires_at = MomentField(null=True)
    cancel_asked_at = MomentField(null=True)
    unknown_since = MomentField(null=True)
    # Of queue, task and key; null when the key does not constrain (any more).
    unique_hash = ExactCharField(max_length=64, null=True)

    class Meta:
        verbose_name = _("live job")
        verbose_name_plural = _("live jobs")
        default_permissions: ClassVar = ("view",)
        permissions: ClassVar = [("cancel_livejob", "Can cancel live job")]
        constraints: ClassVar = [
            # Not unique=True on the field, which adds a second index for LIKE on PostgreSQL.
            SetUniqueConstraint(name="workqueue_live_unique", fields=["unique_hash"]),
            ShortCheck(
                name="workqueue_live_state",
                condition=Q(state__in=[s.value for s in State]),
                postgresql=f"state = ANY ('{{{','.join(State)}}}'::text[])",
            ),
            # I2: token, worker and lease end are all set when running, all null otherwise.
            ShortCheck(
                name="workqueue_live_holder",
                condition=Q(
                    state=State.RUNNING.value,
                    token__isnull=False,
                    worker_id__isnull=False,
                    lease_expires_at__isnull=False,
                )
                | (
                    ~Q(state=State.RUNNING.value)
                    & Q(
                        token__isnull=True,
                        worker_id__isnull=True,
                        lease_expires_at__isnull=True,
                    )
                ),
                postgresql="num_nonnulls(token, worker_id, lease_expires_at) "
                "= 3 * (state = 'running')::int",
            ),
            ShortCheck(
                name="workqueue_live_rank",
                condition=Q(rank__gte=-TASK_MAX_PRIORITY, rank__lte=-TASK_MIN_PRIORITY),
                postgresql="abs(rank) <= 100",
            ),
        ]
        indexes: ClassVar = [
            # The claim's: only what is ready, in the order of claiming.
            StateIndex(
                fields=["lane", "queue_name", "rank", "run_after", "id"],
                state=State.READY.value,
                name="workqueue_live_ready",
            ),
            StateIndex(
                fields=["run_after"], state=State.SCHEDULED.value, name="workqueue_live_scheduled"
            ),
            # Without the lease's end: an extension touches no indexed column, and PostgreSQL then
            # writes to no index. Who looks for lapsed leases reads all that runs.
            StateIndex(
                fields=["lane", "queue_name"],
                state=State.RUNNING.value,
                name="workqueue_live_running",
            ),
            StateIndex(
                fields=["held_reason", "run_after"],
                state=State.HELD.value,
                name="workqueue_live_held",
            ),
            SetIndex(fields=["expires_at"], name="workqueue_live_expires"),
            # Who is first of a key of the outbox.
            NumberedIndex(
                fields=["queue_name", "order_key", "seq"], name="workqueue_live_numbered"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.task or self.kind or self.lane} {self.id}"


class DeadJob(JobFacts):
    """A job that will not run again unless somebody requeues it."""

    died_at = MomentField()
    reason = ExactCharField(max_length=20, choices=choices(DeathReason))

    class Meta:
        verbose_name = _("dead job")
        verbose_name_plural = _("dead jobs")
        default_permissions: ClassVar = ("view",)
        permissions: ClassVar = [
            ("requeue_deadjob", "Can requeue dead job"),
            ("discard_deadjob", "Can discard dead job"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["died_at", "id"], name="workqueue_dead_died"),
            models.Index(fields=["task", "died_at"], name="workqueue_dead_task"),
            models.Index(fields=["queue_name", "died_at"], name="workqueue_dead_queue"),
            models.Index(fields=["reason", "died_at"], name="workqueue_dead_reason"),
            NumberedIndex(
                fields=["queue_name", "order_key", "seq"], name="workqueue_dead_numbered"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.task or self.kind or self.lane} {self.id}"


class Result(models.Model):
    """A finished job: what it returned, or that it was cancelled."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    lane = ExactCharField(max_length=8, choices=choices(Lane), default=Lane.TASK.value)
    queue_name = ExactCharField(_("queue"), max_length=NAME_LENGTH)
    task = ExactCharField(max_length=NAME_LENGTH, blank=True, default="")
    kind = ExactCharField(max_length=NAME_LENGTH, blank=True, default="")
    backend = ExactCharField(max_length=NAME_LENGTH, blank=True, default="")
    # Django's TaskResult shows the arguments of a finished task too.
    payload = JSONTextField()
    rank = models.SmallIntegerField(default=0)
    outcome = ExactCharField(max_length=12, choices=choices(ResultOutcome))
    value = JSONTextField(null=True)
    attempts = models.PositiveIntegerField(default=0)
    worker_ids = JSONTextField(default=list)
    errors = JSONTextField(default=list)
    schedule = ExactCharField(max_length=NAME_LENGTH, blank=True, default="")
    scheduled_for = MomentField(null=True)
    run_after = MomentField()
    enqueued_at = MomentField()
    started_at = MomentField(null=True)
    finished_at = MomentField()
    # Of the claim that finished it: a settle whose answer was lost can be told from a lost job.
    token = models.UUIDField(null=True)
    expires_at = MomentField(null=True)

    class Meta:
        verbose_name = _("result")
        verbose_name_plural = _("results")
        default_permissions: ClassVar = ("view",)
        indexes: ClassVar = [
            SetIndex(fields=["expires_at"], name="workqueue_result_expires"),
        ]

    def __str__(self) -> str:
        return f"{self.task or self.kind or self.lane} {self.id}"


# Named predicates: the only place where a state is turned into a condition.
SPENT = Q(attempt__gte=F("max_attempts"))
"""The budget is used up: no claim returns such a row."""
