"""Schedules: declared, edited, fired, paused. A tick and its job are one transaction (I7)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db import IntegrityError
from django.db.models import F, Q, QuerySet

from ..models import Schedule
from ..models.fields import EncodedJSON, from_database
from .core import delete_rows, statement, transition
from .operating import Operating
from .records import NewJob

SOURCE_CODE: Final = "code"
SOURCE_ADMIN: Final = "admin"

MAY_FIRE: Final = Q(enabled=True, paused=False, error="", next_fire_at__isnull=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Firing:
    """What a scheduler decided about a schedule whose tick is due: the jobs of its ticks, oldest
    first, how many ticks get none, and its next one. None: it has no next tick.
    """

    jobs: Sequence[NewJob] = ()
    missed_count: int = 0
    next_fire_at: datetime | None


@dataclass(frozen=True, slots=True)
class Fired:
    """What was written: the jobs, and how many ticks got none, by their policy or otherwise."""

    jobs: Sequence[NewJob]
    missed_count: int = 0
    # Of those: while the last job was live, and while another held the unique key.
    overlap_count: int = 0
    taken_count: int = 0


class Scheduling(Operating):
    """The life of a schedule's row. *schedule* is a row as it was read: its version and its next
    tick are conditions of every write, so that two that read the same row cannot both write.
    """

    def schedules(self) -> QuerySet[Schedule]:
        return Schedule._base_manager.using(self.alias)

    def add_schedule(self, schedule: Schedule, *, now: datetime | None = None) -> bool:
        """Write a new schedule; False if there is one of its name."""
        setattr(schedule, "declared_at", self.moment(now))  # noqa: B010  # an expression
        try:
            with self.own():
                self.schedules().bulk_create([schedule])
        except IntegrityError:
            if not self.schedules().filter(pk=schedule.pk).exists():
                raise
            return False
        return True

    @transition
    def edit_schedule(
        self, schedule: Schedule, changes: Mapping[str, Any], *, now: datetime | None = None
    ) -> bool:
        """Write *changes* of the definition; False if somebody edited it meanwhile.

        A tick that fired meanwhile is no edit: where *changes* leave ``next_fire_at`` alone, it
        stays what that tick made it.
        """
        self.lock(Schedule, [schedule.pk])
        rows = self.schedules().filter(pk=schedule.pk, version=schedule.version)
        return bool(rows.update(**changes, version=F("version") + 1, declared_at=self.moment(now)))

    @statement
    def touch_schedules(self, names: Collection[str], *, now: datetime | None = None) -> int:
        """Note that schedules of code are still declared; return how many."""
        if not names:
            return 0
        rows = self.schedules().filter(pk__in=sorted(names), source=SOURCE_CODE)
        with self.together():
            self.lock(Schedule, names)
            return rows.update(declared_at=self.moment(now))

    @transition
    def disable_undeclared(
        self,
        modules: Collection[str],
        declared: Collection[str],
        after_seconds: float,
        *,
        now: datetime | None = None,
    ) -> list[str]:
        """Disable schedules of *modules* that were not declared for so long; return their names."""
        gone = Q(
            source=SOURCE_CODE,
            enabled=True,
            module__in=sorted(modules),
            declared_at__lt=self.moment(now, -after_seconds),
        )
        names = sorted(self.schedules().filter(gone).values_list("pk", flat=True))
        disabled = []
        for name in set(names) - set(declared):
            self.lock(Schedule, [name])
            count = (
                self.schedules()
                .filter(gone, pk=name)
                .update(enabled=False, next_fire_at=None, version=F("version") + 1)
            )
            disabled += [name] * count
        return sorted(disabled)

    # Its ticks

    def seconds_to_tick(self, *, now: datetime | None = None) -> float | None:
        """Return the seconds until the next tick of any schedule, 0.0 if one is due; None: none.

        Reads the first entry of workqueue_schedule_due.
        """
        # Not the ORM: it would order by what it selects, which on PostgreSQL is not the column.
        now_sql, now_params = self.now_sql(now)
        moment = self.quote("next_fire_at")
        where, params = self._may_fire_sql()
        sql = (
            f"SELECT {self.read_moment_sql(moment)}, {self.read_moment_sql(now_sql)} "
            f"FROM {self.quote(Schedule._meta.db_table)} "
            f"WHERE {where} AND {moment} IS NOT NULL ORDER BY {moment} LIMIT 1"
        )
        with self.connection.cursor() as cursor:
            cursor.execute(sql, [*now_params, *params])
            found = cursor.fetchone()
        if found is None:
            return None
        next_fire_at, current = map(from_database, found)
        assert next_fire_at is not None
        assert current is not None
        return max((next_fire_at - current).total_seconds(), 0.0)

    def due_names(self, *, limit: int, now: datetime | None = None) -> list[str]:
        """Return the names of schedules with a due tick, the earliest first.

        Walks workqueue_schedule_due: what is not due, paused or disabled is not looked at.
        """
        moment = self.quote("next_fire_at")
        now_sql, now_params = self.now_sql(now)
        where, params = self._may_fire_sql()
        sql = (
            f"SELECT {self.quote('name')} FROM {self.quote(Schedule._meta.db_table)} "
            f"WHERE {where} AND {moment} <= {now_sql} ORDER BY {moment} LIMIT {limit:d}"
        )
        with self.connection.cursor() as cursor:
            cursor.execute(sql, [*params, *now_params])
            return [row[0] for row in cursor.fetchall()]

    def _may_fire_sql(self) -> tuple[str, list[Any]]:
        """Return MAY_FIRE, but for the moment, so that the index serves it.

        The ORM's bare ``enabled AND NOT paused`` is no comparison to SQLite's planner.
        """
        q = self.quote
        where = f"{q('enabled')} = %s AND {q('paused')} = %s AND {q('error')} = ''"
        return where, [True, False]

    def read_schedule(self, name: str, *, now: datetime | None = None) -> tuple[Any, datetime]:
        """Return the row and the database's now; a row of None is gone.

        Raises ValueError for one that nobody can read.
        """
        row: Any = self.schedules().filter(pk=name).annotate(now=self.moment(now)).first()
        for value in () if row is None else (row.args, row.kwargs, row.options):
            if isinstance(value, EncodedJSON):
                # It is not JSON, and says why.
                json.loads(value)
        return row, (now or self.now() if row is None else row.now)

    @transition
    def fire(
        self, schedule: Schedule, firing: Firing, *, now: datetime | None = None
    ) -> Fired | None:
        """Move the schedule past its due ticks and insert their jobs: both, or neither (I7).

        None: it was fired, edited, paused or disabled since it was read, is being fired now, or is
        not due by the database's clock; nothing is written. With ``overlap="skip"`` no job is
        inserted while the last one is live. Commits.
        """
        if not self._take(schedule) or not self._move(schedule, firing, now):
            return None
        wanted = list(firing.jobs)
        overlapping = 0
        if wanted and schedule.overlap == "skip":
            last = schedule.last_job_id
            is_live = last is not None and self.live().filter(pk=last).exists()
            overlapping = len(wanted) if is_live else len(wanted) - 1
            wanted = [] if is_live else wanted[-1:]
        written = {row.id for row in self.insert(wanted, now=now)}
        jobs = [job for job in wanted if job.id in written]
        if len(jobs) < len(firing.jobs):
            self._correct(schedule, firing, jobs)
        taken = len(wanted) - len(jobs)
        missed = firing.missed_count + overlapping + taken
        return Fired(jobs, missed, overlap_count=overlapping, taken_count=taken)

    def _take(self, schedule: Schedule) -> bool:
        """Lock the row; False if somebody else has.

        Not waited for: a scheduler that was stopped in the middle of a tick, by a host that hangs
        say, must hold up that schedule alone. SQLite has no such lock: the write that follows takes
        the only one there is, and all is under it.
        """
        if not self.connection.features.has_select_for_update_skip_locked:
            return True
        rows = self._as_read(schedule).select_for_update(skip_locked=True)
        return rows.values_list("pk", flat=True).first() is not None

    def _move(self, schedule: Schedule, firing: Firing, now: datetime | None) -> int:
        rows = self._as_read(schedule).filter(MAY_FIRE, next_fire_at__lte=self.moment(now))
        changes: dict[str, Any] = {
            "next_fire_at": firing.next_fire_at,
            "missed_count": F("missed_count") + firing.missed_count,
        }
        if firing.jobs:
            # Whatever became of the clock: a tick that fired, or an earlier one, does not again.
            first = firing.jobs[0].scheduled_for
            rows = rows.filter(Q(last_fire_at__isnull=True) | Q(last_fire_at__lt=first))
            changes |= {
                "last_fire_at": firing.jobs[-1].scheduled_for,
                "last_job_id": firing.jobs[-1].id,
                "fire_count": F("fire_count") + len(firing.jobs),
            }
        return rows.update(**changes)

    def _correct(self, schedule: Schedule, firing: Firing, jobs: Sequence[NewJob]) -> None:
        """Count ticks as missed whose jobs were not inserted, in the same transaction."""
        refused = len(firing.jobs) - len(jobs)
        rows = self.schedules().filter(
            pk=schedule.pk, version=schedule.version, next_fire_at=firing.next_fire_at
        )
        count = rows.update(
            fire_count=F("fire_count") - refused,
            missed_count=F("missed_count") + refused,
            last_job_id=jobs[-1].id if jobs else schedule.last_job_id,
        )
        assert count == 1, "a locked row changed (I9)"

    @transition
    def replan(self, schedule: Schedule, next_fire_at: datetime | None) -> bool:
        """Set another next tick, and clear an error; False if the row changed since it was read."""
        self.lock(Schedule, [schedule.pk])
        rows = self._as_read(schedule)
        return bool(rows.update(next_fire_at=next_fire_at, error="", version=F("version") + 1))

    @transition
    def fail_schedule(self, name: str, error: str) -> bool:
        """Mark a schedule that cannot be planned; it fires no more until it is edited or replanned.

        False if it is marked already, or gone.
        """
        self.lock(Schedule, [name])
        return bool(self.schedules().filter(pk=name, error="").update(error=error))

    # What people ask for

    @transition
    def pause_schedule(self, name: str) -> bool:
        """Let no tick fire until it is resumed; False if it is paused already, or gone."""
        self.lock(Schedule, [name])
        return bool(self.schedules().filter(pk=name, paused=False).update(paused=True))

    @transition
    def resume_schedule(self, name: str) -> bool:
        """Let ticks fire again: its policy decides about those that passed. False: not paused."""
        self.lock(Schedule, [name])
        return bool(self.schedules().filter(pk=name, paused=True).update(paused=False))

    @transition
    def remove_schedule(self, name: str) -> bool:
        """Delete a schedule that no code declares now; its jobs stay. False: there is none."""
        self.lock(Schedule, [name])
        removable = Q(source=SOURCE_ADMIN) | Q(enabled=False)
        return bool(delete_rows(self.schedules().filter(removable, pk=name)))

    def run_now(self, job: NewJob, *, wake: bool = False) -> uuid.UUID | None:
        """Insert a job of a schedule outside of its ticks; None if its unique key is taken."""
        written = self.insert([job], wake=wake)
        return written[0].id if written else None

    def _as_read(self, schedule: Schedule) -> QuerySet[Schedule]:
        return self.schedules().filter(
            pk=schedule.pk, version=schedule.version, next_fire_at=schedule.next_fire_at
        )
