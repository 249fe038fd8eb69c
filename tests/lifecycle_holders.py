"""What producers and holders do in the life cycle, on the store and on the model.

Every turn makes a transition on both and compares the answers.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import hypothesis.strategies as st
from hypothesis import note
from hypothesis.stateful import initialize

from django_workqueue.exceptions import LeaseLost
from django_workqueue.states import DeathReason, HeldReason, Lane
from django_workqueue.store import Ack, Claim, ErrorRecord, NewJob
from django_workqueue.store.records import CLAIM_COLUMNS
from tests import sound
from tests.lifecycle_choices import (
    DEFAULTS,
    EVERYTHING,
    QUEUES,
    TASKS,
    WORKERS,
    Choices,
    claim_groups,
    claims,
    delays,
    lanes,
    leases,
    limits,
    new_jobs,
    queues,
    stale_claims,
    turn,
)
from tests.lifecycle_model import LOST
from tests.lifecycle_rows import shown

SETTLES: Final = (
    "retry",
    "release",
    "bury",
    "hold_as_unknown",
    "hold_as_unfit",
    "hold_for_a_limit",
)


class Holders(Choices):
    """The turns of a job's life from insert to its settling."""

    # insert

    @initialize(options=st.lists(new_jobs(), min_size=2, max_size=5))
    def begin(self, options: list[dict[str, Any]]) -> None:
        self._insert([self._job(each) for each in options])

    @turn(2, options=st.lists(new_jobs(), min_size=1, max_size=3), first=st.integers(0, 3))
    def insert(self, options: list[dict[str, Any]], first: int) -> None:
        # Ids rise within a process, not between them.
        self._insert([self._job(each, first) for each in options])

    def _job(self, options: dict[str, Any], first: int = 0) -> NewJob:
        self.ids.append(uuid.UUID(int=first << 100 | len(self.ids) + 1))
        facts = DEFAULTS | options
        due = facts.pop("due_in")
        run_after = None if due is None else self.now + timedelta(seconds=due)
        return NewJob(id=self.ids[-1], run_after=run_after, **facts)

    def _insert(self, new: list[NewJob]) -> None:
        note(f"jobs {len(self.ids) - len(new)} to {len(self.ids) - 1} at {self.now}")
        written = self.store.insert(new, now=self.now)
        assert [each.id for each in written] == self.model.insert(new, self.now)
        for each in written:
            assert each.enqueued_at == self.model.live[each.id]["enqueued_at"]

    # promote, unhold, claim

    @turn(when=lambda self: self.model.where(state="scheduled"), limit=limits)
    def promote(self, limit: int) -> None:
        count = self.store.promote(limit=limit, now=self.now)
        assert count == self._promoted(limit)

    def _promoted(self, limit: int) -> int:
        """Promote the same in the model as the store did; return how many."""
        live = sound.rows()["live"]
        scheduled = [row["id"] for row in self.model.where(state="scheduled")]
        taken = [job_id for job_id in scheduled if live[job_id]["state"] == "ready"]
        self.model.promote(limit, self.now, taken)
        return len(taken)

    @turn(
        when=lambda self: self.model.where(state="held"),
        reason=st.sampled_from([HeldReason.UNKNOWN, HeldReason.LIMIT]),
        tasks=st.sampled_from([TASKS, TASKS[:1], ("",), ()]),
    )
    def unhold(self, reason: HeldReason, tasks: tuple[str, ...]) -> None:
        count = self.store.unhold(reason, tasks, now=self.now)
        assert count == self.model.unhold(reason, tasks, self.now)

    @turn(
        when=lambda self: self.model.where(state="ready"),
        tasks=st.sampled_from([TASKS[:1], TASKS[1:], ()]),
        delay_seconds=delays,
    )
    def hold_ready(self, tasks: tuple[str, ...], delay_seconds: float) -> None:
        count = self.store.hold_ready(HeldReason.UNKNOWN, tasks, delay_seconds, now=self.now)
        assert count == self.model.hold_ready(tasks, delay_seconds, self.now)

    @turn(
        when=lambda self: self.model.where(state="ready"),
        lane=lanes,
        queue_name=queues,
        worker_id=st.sampled_from(WORKERS),
        limit=st.sampled_from([1, 2, 5, 0]),
        lease_seconds=leases,
        exclude=st.sampled_from([(), (), (), TASKS[:1]]),
        kind=st.sampled_from([None, None, None, "big", ""]),
    )
    def claim(
        self,
        *,
        lane: Lane,
        queue_name: str,
        worker_id: str,
        limit: int,
        lease_seconds: float,
        exclude: tuple[str, ...],
        kind: str | None,
    ) -> None:
        def may(row: sound.Row) -> bool:
            asked = row["lane"] == lane and row["queue_name"] == queue_name
            return asked and row["task"] not in exclude and kind in {None, row["kind"]}

        hold: dict[str, Any] = {
            "worker_id": worker_id,
            "token": uuid.UUID(int=len(self.claims) + 1),
        }
        taken = self.store.claim(
            lane,
            queue_name,
            **hold,
            limit=limit,
            lease_seconds=lease_seconds,
            exclude_tasks=exclude,
            kind=kind,
            now=self.now,
        )
        self._claimed(taken, self.model.claim(may, hold, limit, lease_seconds, self.now))

    @turn(
        6,
        when=lambda self: self.model.live,
        worker_id=st.sampled_from(WORKERS),
        limit=st.sampled_from([2, 5]),
        lease_seconds=leases,
    )
    def pass_of_a_worker(self, worker_id: str, limit: int, lease_seconds: float) -> None:
        # What is due is promoted in every claim pass, so a claim after it sees all of it.
        looked = self.store.look(Lane.TASK, now=self.now)
        self._promoted(EVERYTHING)
        assert looked == (self.ready_queues(Lane.TASK), self.seconds_to_due())
        for queue_name in QUEUES:
            self.claim(
                lane=Lane.TASK,
                queue_name=queue_name,
                worker_id=worker_id,
                limit=limit,
                lease_seconds=lease_seconds,
                exclude=(),
                kind=None,
            )

    def seconds_to_due(self) -> float | None:
        """Return it as the model has it."""
        due = [row["run_after"] for row in self.model.where(state="scheduled")]
        return max((min(due) - self.now).total_seconds(), 0.0) if due else None

    def ready_queues(self, lane: Lane) -> list[str]:
        """Return them as the model has them."""
        names = {row["queue_name"] for row in self.model.where(state="ready", lane=lane)}
        return [name for name in sorted(names) if self.model.open(name, self.now)]

    def _claimed(self, taken: Sequence[Claim], rows: Sequence[sound.Row]) -> None:
        assert [each.id for each in taken] == [row["id"] for row in rows], "the order of claims"
        for each, row in zip(taken, rows, strict=True):
            note(f"claim {len(self.claims)} of job {self.ids.index(each.id)}")
            self.claims.append(each)
            claimed = {name: getattr(each, name) for name in CLAIM_COLUMNS}
            for name in ("payload", "headers", "worker_ids", "errors"):
                claimed[name] = json.loads(claimed[name])
            assert shown(claimed) == {name: row[name] for name in CLAIM_COLUMNS}

    # What a holder does

    @turn(when=lambda self: self.current(), group=claim_groups, lease_seconds=leases)
    def extend(self, group: list[int], lease_seconds: float) -> None:
        taken = [self.claims[number] for number in group]
        answer = self.store.extend(taken, lease_seconds, now=self.now)
        holds = [each.hold for each in taken]
        assert answer == self.model.extend(holds, lease_seconds, self.now)

    @turn(when=lambda self: self.current(), group=claim_groups)
    def mark_started(self, group: list[int]) -> None:
        taken = [self.claims[number] for number in group]
        answer = self.store.mark_started(taken, now=self.now)
        assert answer == self.model.mark_started([each.hold for each in taken], self.now)

    @turn(when=lambda self: self.current(), group=claim_groups)
    def ack(self, group: list[int]) -> None:
        acks = {
            each.hold: Ack(claim=each, value=str(number), started_at=each.claimed_at)
            for number, each in ((number, self.claims[number]) for number in group)
        }
        answer = self.store.ack(list(acks.values()), now=self.now)
        ends = {
            hold: {"value": json.loads(each.value), "started_at": each.started_at}
            for hold, each in acks.items()
        }
        assert answer == self.model.ack(ends, self.now)

    @turn(
        8,
        when=lambda self: self.current(),
        number=claims,
        how=st.sampled_from(SETTLES),
        delay_seconds=delays,
    )
    def settle(self, number: int, how: str, delay_seconds: float) -> None:
        getattr(self, f"_{how}")(self.claims[number], delay_seconds)

    def _retry(self, taken: Claim, delay_seconds: float) -> None:
        error = self._error(taken, "failed")
        self._settled(
            taken,
            lambda: self.store.retry(taken, delay_seconds, error, now=self.now),
            self.model.retry(taken.hold, delay_seconds, error, self.now),
        )

    def _bury(self, taken: Claim, delay_seconds: float) -> None:
        error = self._error(taken, "failed")
        self._settled(
            taken,
            lambda: self.store.bury(taken, DeathReason.TERMINAL, error, now=self.now),
            self.model.bury(taken.hold, "terminal", error, self.now),
        )

    def _release(self, taken: Claim, delay_seconds: float) -> None:
        self._settled(
            taken,
            lambda: self.store.release(taken, delay_seconds=delay_seconds, now=self.now),
            self.model.release(taken.hold, delay_seconds, self.now),
        )

    def _hold_for_a_limit(self, taken: Claim, delay_seconds: float) -> None:
        self._hold(taken, delay_seconds, HeldReason.LIMIT, "limit")

    def _hold_as_unknown(self, taken: Claim, delay_seconds: float) -> None:
        self._hold(taken, delay_seconds, HeldReason.UNKNOWN, "unknown_task")

    def _hold_as_unfit(self, taken: Claim, delay_seconds: float) -> None:
        self._hold(taken, delay_seconds, HeldReason.UNKNOWN, "bad_arguments")

    def _hold(self, taken: Claim, delay_seconds: float, reason: HeldReason, outcome: str) -> None:
        error = self._error(taken, outcome)
        self._settled(
            taken,
            lambda: self.store.hold(taken, reason, delay_seconds, error, now=self.now),
            self.model.hold(taken.hold, reason, delay_seconds, error, self.now),
        )

    def _error(self, taken: Claim, outcome: str) -> ErrorRecord:
        return ErrorRecord(
            attempt=taken.attempt,
            worker=taken.worker_id,
            started=taken.claimed_at,
            ended=self.now,
            outcome=outcome,
        )

    def _settled(self, taken: Claim, settle: Callable[[], str], expected: str) -> None:
        row = self.stored["live"].get(taken.id)
        holds = row is not None and row["token"] == taken.token
        try:
            answer = settle()
        except LeaseLost as error:
            answer = LOST if error.job_id == taken.id else f"{LOST}: another job"
        assert answer == expected
        assert holds or answer == LOST, "I3: a claim without the current token settled"

    @turn(4, when=lambda self: self.stale(), number=stale_claims)
    def speak_up_late(self, number: int) -> None:
        # Every call of a holder that has lost its job.
        self.extend([number], 10.0)
        self.mark_started([number])
        self.ack([number])
        for how in SETTLES:
            self.settle(number, how, 1.0)
        assert sound.rows() == self.stored, "I3: a call without the current token wrote"

    @turn(
        when=lambda self: self.current(), worker_id=st.sampled_from(WORKERS), numbers=claim_groups
    )
    def release_strays(self, worker_id: str, numbers: list[int]) -> None:
        known = {self.claims[number].hold for number in numbers}
        count = self.store.release_strays(worker_id, known, now=self.now)
        assert count == self.model.release_strays(worker_id, known, self.now)
