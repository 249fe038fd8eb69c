"""Tables beside the jobs: locks, schedules, queues, workers, and what the outbox needs."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from .fields import ExactCharField, JSONTextField, MomentField
from .jobs import NAME_LENGTH


class Lock(models.Model):
    """A named lock with an end; *token* rises at every acquisition."""

    name = ExactCharField(max_length=NAME_LENGTH, primary_key=True)
    owner = ExactCharField(max_length=NAME_LENGTH)
    token = models.BigIntegerField()
    expires_at = MomentField()

    class Meta:
        verbose_name = _("lock")
        verbose_name_plural = _("locks")
        default_permissions: ClassVar = ("view",)
        indexes: ClassVar = [models.Index(fields=["expires_at"], name="workqueue_lock_expires")]

    def __str__(self) -> str:
        return self.name


class Schedule(models.Model):
    """A rule that makes jobs at its ticks. *next_fire_at* moves in the job's transaction (I7)."""

    name = ExactCharField(max_length=NAME_LENGTH, primary_key=True)
    task = ExactCharField(max_length=NAME_LENGTH)
    args = JSONTextField(default=list)
    kwargs = JSONTextField(default=dict)
    # Cron, or "@every 90s" anchored at creation.
    expression = models.CharField(max_length=1000)
    timezone = models.CharField(max_length=64, default="UTC")
    queue_name = ExactCharField(max_length=NAME_LENGTH, default="default")
    priority = models.SmallIntegerField(default=0)
    expires_seconds = models.FloatField(null=True, blank=True)
    max_attempts = models.PositiveIntegerField(null=True, blank=True)
    # The code's switch, and the operator's.
    enabled = models.BooleanField(default=True)
    paused = models.BooleanField(default=False)
    catch_up = models.CharField(max_length=8, default="latest")
    max_catch_up = models.PositiveIntegerField(default=64)
    deadline_seconds = models.FloatField(null=True, blank=True)
    overlap = models.CharField(max_length=8, default="allow")
    jitter_seconds = models.FloatField(default=0)
    next_fire_at = MomentField(null=True)
    last_fire_at = MomentField(null=True)
    last_job_id = models.UUIDField(null=True)
    fire_count = models.BigIntegerField(default=0)
    missed_count = models.BigIntegerField(default=0)
    version = models.BigIntegerField(default=0)
    declared_at = MomentField(null=True)
    source = models.CharField(max_length=8, default="code")
    # The module that declares it: only who has loaded that may say that it is declared no more.
    module = models.CharField(max_length=NAME_LENGTH, blank=True, default="")
    # What else a job of the task must carry, so that a scheduler without the code can make one.
    options: JSONTextField[Any, Any] = JSONTextField(default=dict)
    error = models.TextField(blank=True, default="")

    class Meta:
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        indexes: ClassVar = [
            models.Index(fields=["next_fire_at"], name="workqueue_schedule_next"),
            # What may fire, by its next tick: neither disabled nor paused rows are stepped over.
            models.Index(
                fields=["enabled", "paused", "next_fire_at"], name="workqueue_schedule_due"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Queue(models.Model):
    """What an operator decided about a queue. A queue without a row is open."""

    name = ExactCharField(max_length=NAME_LENGTH, primary_key=True)
    paused_until = MomentField(null=True)
    reason = models.TextField(blank=True, default="")

    class Meta:
        verbose_name = _("queue")
        verbose_name_plural = _("queues")
        default_permissions: ClassVar = ("view",)

    def __str__(self) -> str:
        return self.name


class Worker(models.Model):
    """A worker process, for people to look at; never the source of a promise."""

    id = ExactCharField(max_length=NAME_LENGTH, primary_key=True)
    host = models.CharField(max_length=NAME_LENGTH)
    pid = models.PositiveBigIntegerField()
    queues: JSONTextField[Any, Any] = JSONTextField(default=list)
    started_at = MomentField()
    last_seen_at = MomentField()
    running = models.PositiveIntegerField(default=0)
    version = models.CharField(max_length=64, default="")

    class Meta:
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        default_permissions: ClassVar = ("view",)
        indexes: ClassVar = [models.Index(fields=["last_seen_at"], name="workqueue_worker_seen")]

    def __str__(self) -> str:
        return self.id


class OutboxKey(models.Model):
    """The last number of a key; the lock on its row makes numbers follow commits.

    Numbers begin anew at 1 once every message of the key has left: only the first is not held.
    """

    # The name of the destination's queue.
    destination = ExactCharField(max_length=NAME_LENGTH)
    key = ExactCharField(max_length=NAME_LENGTH)
    last_seq = models.BigIntegerField(default=0)

    class Meta:
        verbose_name = _("outbox key")
        verbose_name_plural = _("outbox keys")
        default_permissions: ClassVar = ("view",)
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["destination", "key"], name="workqueue_outbox_key")
        ]

    def __str__(self) -> str:
        return f"{self.destination} {self.key}"


class Moved(models.Model):
    """An outbox row that reached the queue's database: moved once, whoever tries again."""

    id = models.UUIDField(primary_key=True)
    moved_at = MomentField()
    # The alias of the outbox it left. A default of the database's: older code does not name it.
    source = models.CharField(max_length=NAME_LENGTH, default="", db_default="")

    class Meta:
        verbose_name = _("moved outbox row")
        verbose_name_plural = _("moved outbox rows")
        default_permissions: ClassVar = ("view",)
        indexes: ClassVar = [models.Index(fields=["moved_at"], name="workqueue_moved_at")]

    def __str__(self) -> str:
        return str(self.id)


class Seen(models.Model):
    """A message that a receiver has taken in, written with what it did."""

    consumer = ExactCharField(max_length=NAME_LENGTH)
    message_id = ExactCharField(max_length=NAME_LENGTH)
    seen_at = MomentField()

    class Meta:
        verbose_name = _("seen message")
        verbose_name_plural = _("seen messages")
        default_permissions: ClassVar = ("view",)
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["consumer", "message_id"], name="workqueue_seen_message"
            )
        ]
        indexes: ClassVar = [models.Index(fields=["seen_at"], name="workqueue_seen_at")]

    def __str__(self) -> str:
        return f"{self.consumer} {self.message_id}"
