"""A machine that lives many lives of jobs at once, beside the model, on the store it is given.

After every turn all stored rows are compared whole, and the invariants asserted on them.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta

import hypothesis.strategies as st
from hypothesis.stateful import invariant

from django_workqueue.exceptions import UniqueKeyTaken
from django_workqueue.models import LiveJob
from django_workqueue.states import Lane
from django_workqueue.store import Swept
from tests import sound
from tests.lifecycle_choices import (
    DEAD_TTL,
    EVERYTHING,
    QUEUES,
    UNKNOWN_GRACE,
    dead_jobs,
    dry_runs,
    limits,
    moments,
    ready_jobs,
    running_jobs,
    turn,
)
from tests.lifecycle_holders import Holders
from tests.lifecycle_rows import FOREVER, batch, shown


class LifecycleMachine(Holders):
    """The turns of sweepers and operators, the clock, and the look at every row after each turn."""

    # Sweeps

    @turn(dry_run=dry_runs)
    def sweep(self, dry_run: bool) -> None:
        # Also where nothing is to be done: it takes no more than that.
        for sweep in (self._expire, self._reclaim, self._bury_unknown, self._bury_spent):
            sweep(EVERYTHING, dry_run)

    @turn(4, when=lambda self: self.model.lapsed(self.now), limit=limits, dry_run=dry_runs)
    def reclaim(self, limit: int, dry_run: bool) -> None:
        # By itself, so that a lapsed job past its end may also be taken back first.
        self._reclaim(limit, dry_run)

    @turn(3, when=lambda self: self.model.ending(self.now), limit=limits, dry_run=dry_runs)
    def bury(self, limit: int, dry_run: bool) -> None:
        self._expire(limit, dry_run)
        self._bury_unknown(limit, dry_run)

    def _expire(self, limit: int, dry_run: bool) -> None:
        swept = self.store.expire(limit=limit, now=self.now, dry_run=dry_run)
        expired = batch(self.model.expired(self.now), "expires_at", limit, ids_of(swept))
        self._swept(swept, expired, "expire", dry_run)

    def _reclaim(self, limit: int, dry_run: bool) -> None:
        swept = self.store.reclaim(limit=limit, now=self.now, dry_run=dry_run)
        lapsed = batch(self.model.lapsed(self.now), "lease_expires_at", limit, ids_of(swept))
        self._swept(swept, lapsed, "reclaim", dry_run)

    def _bury_spent(self, limit: int, dry_run: bool) -> None:
        swept = self.store.bury_spent(limit=limit, now=self.now, dry_run=dry_run)
        spent = batch(self.model.spent(self.now), "id", limit, ids_of(swept))
        self._swept(swept, spent, "bury_spent", dry_run)

    def _bury_unknown(self, limit: int, dry_run: bool) -> None:
        swept = self.store.bury_unknown(UNKNOWN_GRACE, limit=limit, now=self.now, dry_run=dry_run)
        unknown = self.model.unknown(UNKNOWN_GRACE, self.now)
        unknown = batch(unknown, "run_after", limit, ids_of(swept))
        self._swept(swept, unknown, "bury_unknown", dry_run)

    def _swept(
        self,
        swept: Sequence[Swept],
        rows: Sequence[sound.Row],
        move: str,
        dry_run: bool,
    ) -> None:
        # A dry run says how each job would end, and ends none.
        model = copy.deepcopy(self.model) if dry_run else self.model
        for each, row in zip(swept, rows, strict=True):
            before = (row["task"], row["queue_name"], row["worker_id"] or "", row["attempt"])
            assert (each.task, each.queue_name, each.worker_id, each.attempt) == before
            end = getattr(model, move)(model.live[each.id], self.now)
            assert (each.outcome, each.reason) == end

    @turn(
        when=lambda self: self.model.dead or self.model.finished,
        limit=limits,
        keep_dead=st.booleans(),
        dry_run=dry_runs,
    )
    def purge(self, limit: int, keep_dead: bool, dry_run: bool) -> None:
        ttl = None if keep_dead else DEAD_TTL
        counts = self.store.purge(ttl, limit=limit, now=self.now, dry_run=dry_run)
        stored = sound.rows()
        wanted = {"finished": "results"} | ({} if keep_dead else {"dead": "dead"})
        assert set(counts) == {"locks", *wanted.values()}
        for table, name in wanted.items():
            rows, old = self.model.tables()[table], self.model.old(table, DEAD_TTL, self.now)
            assert counts[name] == min(limit, len(old))
            gone = rows.keys() - stored[table].keys()
            assert gone <= old
            assert len(gone) == (0 if dry_run else counts[name])
            for job_id in gone:
                del rows[job_id]

    # What people ask for

    @turn(2, when=lambda self: self.current(), number=running_jobs)
    def cancel(self, number: int) -> None:
        job_id = self.ids[number]
        assert self.store.cancel(job_id, now=self.now) == self.model.cancel(job_id, self.now)

    @turn(4, when=lambda self: self.model.dead, number=dead_jobs)
    def requeue(self, number: int) -> None:
        job_id = self.ids[number]
        answer: bool | uuid.UUID | None
        try:
            answer = self.store.requeue(job_id, now=self.now)
        except UniqueKeyTaken as error:
            answer = error.holder_id
        assert answer == self.model.requeue(job_id, self.now)

    @turn(when=lambda self: self.model.dead, number=dead_jobs)
    def discard(self, number: int) -> None:
        job_id = self.ids[number]
        assert self.store.discard(job_id) == self.model.discard(job_id)

    @turn(
        when=lambda self: self.current() and not any(self.model.paused_until.values()),
        queue_name=st.sampled_from(QUEUES[::-1]),
        seconds=st.sampled_from([2.5, 10.0, None]),
    )
    def pause(self, queue_name: str, seconds: float | None) -> None:
        until = None if seconds is None else self.now + timedelta(seconds=seconds)
        self.store.pause(queue_name, until)
        self.model.paused_until[queue_name] = until or FOREVER

    @turn(
        2,
        when=lambda self: any(self.model.paused_until.values()),
        queue_name=st.sampled_from(QUEUES),
    )
    def resume(self, queue_name: str) -> None:
        paused = self.model.paused_until.get(queue_name) is not None
        assert self.store.resume(queue_name) == paused
        self.model.paused_until[queue_name] = None

    @turn(when=lambda self: self.model.where(state="ready"), number=ready_jobs)
    def spend_by_hand(self, number: int) -> None:
        # L8: no claim returns such a row, and the sweep buries it.
        row = self.model.live.get(self.ids[number])
        if row is not None and row["state"] == "ready":
            row["attempt"] = row["max_attempts"]
            LiveJob._base_manager.filter(pk=row["id"]).update(attempt=row["attempt"])
            sound.forget()

    # The clock, and what a worker is told of it

    @turn(6, moment=moments)
    def wait(self, moment: datetime) -> None:
        self.now = moment

    @turn(lane=st.sampled_from(Lane))
    def look(self, lane: Lane) -> None:
        assert self.store.seconds_to_due(now=self.now) == self.seconds_to_due()
        assert self.store.ready_queues(lane, now=self.now) == self.ready_queues(lane)

    # After every step

    @invariant()
    def the_stored_rows_are_sound_and_as_the_model_has_them(self) -> None:
        self.stored = sound.rows()
        sound.assert_all_sound(stored=self.stored)
        for table, expected in self.model.tables().items():
            found = {job_id: shown(row) for job_id, row in self.stored[table].items()}
            assert found == expected, f"{table} at {self.now}"


def ids_of(swept: Iterable[Swept]) -> Collection[uuid.UUID]:
    return [each.id for each in swept]
