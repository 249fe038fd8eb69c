"""promote, unhold: what may be taken, and the look for it that comes before a claim."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

from django.db.models import Q
from django.db.models.functions import Coalesce

from ..models import LiveJob, Queue
from ..models.fields import from_database
from ..states import HeldReason, Lane, State
from .columns import Columns
from .core import statement

BATCH: Final = 500


class Looking(Columns):
    """The jobs that wait, ready or for their moment."""

    def seconds_to_due(self, *, now: datetime | None = None) -> float | None:
        """Return the seconds until the next scheduled job is due, 0.0 if one is; None: no job.

        Reads the first entry of workqueue_live_scheduled.
        """
        # Not the ORM: it would order by what it selects, which on PostgreSQL is not the column.
        now_sql, now_params = self.now_sql(now)
        due = self.quote("run_after")
        sql = (
            f"SELECT {self.read_moment_sql(due)}, {self.read_moment_sql(now_sql)} "
            f"FROM {self.live_table} WHERE {self.quote('state')} = 'scheduled' "
            f"ORDER BY {due} LIMIT 1"
        )
        with self.connection.cursor() as cursor:
            cursor.execute(sql, now_params)
            return seconds_between(cursor.fetchone())

    def look(self, lane: Lane, *, now: datetime | None = None) -> tuple[list[str], float | None]:
        """Make ready what is due; return ``ready_queues`` and ``seconds_to_due``, as they are then.

        All that a worker asks before it claims, and while it is idle.
        """
        seconds = self.seconds_to_due(now=now)
        if seconds == 0.0:
            self.promote(now=now)
            seconds = self.seconds_to_due(now=now)
        return self.ready_queues(lane, now=now), seconds

    def promote(self, *, limit: int = BATCH, now: datetime | None = None) -> int:
        """Make scheduled jobs that are due ready, the earliest first; return how many.

        Walks workqueue_live_scheduled. Part of every claim pass: nothing is late by a sweep.
        """
        due = Q(run_after__lte=self.moment(now))
        return self.make_ready(self._waiting(State.SCHEDULED, due, limit), State.SCHEDULED, due)

    def unhold(
        self, reason: HeldReason, tasks: Collection[str], *, now: datetime | None = None
    ) -> int:
        """Make jobs of *tasks*, held for *reason* until now, ready; return how many.

        Walks workqueue_live_held. A job of a task that nobody here knows stays held, so that no
        claim has to step over it (G14).
        """
        due = Q(held_reason=reason, run_after__lte=self.moment(now), task__in=list(tasks))
        return self.make_ready(self._waiting(State.HELD, due, BATCH), State.HELD, due)

    @statement
    def hold_ready(
        self,
        reason: HeldReason,
        tasks: Collection[str],
        delay_seconds: float,
        *,
        now: datetime | None = None,
    ) -> int:
        """Hold ready jobs of *tasks* that nobody here knows; return how many, at most a batch.

        ``unknown_since`` keeps the moment of the first time.
        """
        theirs = Q(task__in=list(tasks))
        ready = self.live().filter(theirs, state=State.READY)
        ids = sorted(ready.values_list("pk", flat=True)[:BATCH])
        if not ids:
            return 0
        with self.together():
            self.lock(LiveJob, ids)
            return (
                self.live()
                .filter(self.still(ids, State.READY), theirs)
                .update(
                    state=State.HELD,
                    held_reason=reason,
                    run_after=self.moment(now, delay_seconds),
                    unknown_since=Coalesce("unknown_since", self.moment(now)),
                )
            )

    def _waiting(self, state: State, due: Q, limit: int) -> list[Any]:
        """Return the ids of the first jobs in *state* that are *due*."""
        rows = self.live().filter(due, state=state).order_by("run_after")
        return list(rows.values_list("pk", flat=True)[:limit])

    @statement
    def make_ready(self, ids: Collection[Any], state: State, due: Q) -> int:
        """Make jobs ready that were seen in *state* and *due*, where they still are; count them."""
        # Not one statement with the look: MySQL cannot update a table it selects from, and a LIMIT
        # in a subquery may be evaluated again for each row on PostgreSQL.
        if not ids:
            return 0
        with self.together():
            # Every claim pass comes here, and must not wait for one that vanished in between.
            free = self.lock(LiveJob, sorted(ids), skip_locked=True)
            found = self.live().filter(self.still(free, state), due)
            return found.update(state=State.READY, held_reason="")

    def still(self, ids: Collection[Any], state: State) -> Q:
        """Return the condition of jobs that were seen in *state*, and are: rows found by *ids*."""
        return Q(pk__in=ids, state=state)

    def ready_queues(self, lane: Lane, *, now: datetime | None = None) -> list[str]:
        """Return the names of queues that have a ready job and are not paused, in order.

        Reads one entry of workqueue_live_ready for each queue, however many rows it has: a
        DISTINCT would read them all. Of all queues: those of a worker may be any of them.
        """
        sql, params = self.ready_queues_sql(lane, now)
        with self.connection.cursor() as cursor:
            cursor.execute(sql, params)
            return sorted(row[0] for row in cursor.fetchall())

    def ready_queues_sql(self, lane: Lane, now: datetime | None) -> tuple[str, list[Any]]:
        """Return the statement of ``ready_queues``."""
        live, name = self.live_table, self.quote("queue_name")
        paused, paused_params = self.paused_queues_sql(now)
        # Not MIN(): a planner whose statistics are old, as after a burst of new jobs, reads all
        # that is ready for it (seen: 7 ms a look at 12,000 jobs, and 2). From the end: claims take
        # from the front, and what they leave there is stepped over while an old snapshot is held.
        ready = (
            f"SELECT {name} FROM {live} "
            f"WHERE {self.quote('state')} = 'ready' AND {self.quote('lane')} = %s"
        )
        last = f"ORDER BY {name} DESC LIMIT 1"
        sql = (
            f"WITH RECURSIVE names (name) AS (SELECT ({ready} {last}) UNION ALL "
            f"SELECT ({ready} AND {name} < names.name {last}) "
            f"FROM names WHERE names.name IS NOT NULL) "
            f"SELECT names.name FROM names WHERE names.name IS NOT NULL "
            f"AND names.name NOT IN ({paused})"
        )
        return sql, [lane.value, lane.value, *paused_params]

    def paused_queues_sql(self, now: datetime | None) -> tuple[str, list[Any]]:
        """Return the statement of the names of queues that are paused."""
        now_sql, now_params = self.now_sql(now)
        sql = (
            f"SELECT {self.quote('name')} FROM {self.quote(Queue._meta.db_table)} "
            f"WHERE {self.quote('paused_until')} > {now_sql}"
        )
        return sql, now_params


def seconds_between(row: Sequence[Any] | None) -> float | None:
    """Return the seconds from the second to the first moment of *row*; None: there is none."""
    if row is None or row[0] is None:
        return None
    due, current = map(from_database, row)
    assert due is not None
    assert current is not None
    return max((due - current).total_seconds(), 0.0)
