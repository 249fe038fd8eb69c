"""extend: what happens to a job while it runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from ..models import LiveJob
from ..models.fields import EncodedJSON
from ..states import State
from .columns import Columns
from .core import statement
from .records import Claim, Hold

PAIRS_PER_STATEMENT: Final = 200


class Keeping(Columns):
    """The stay of a job at its worker."""

    def extend(
        self, claims: Iterable[Claim], lease_seconds: float, *, now: datetime | None = None
    ) -> dict[Hold, bool]:
        """Move the end of the leases of *claims* to *lease_seconds* from now.

        Returns for each claim that still holds its job whether a cancel was asked; one that is
        missing lost it. A holder that is late, but whose job nobody took, still holds it.
        Touches no indexed column but the lease's.
        """
        return self._extend([claim.hold for claim in claims], lease_seconds, now)

    def extend_all(
        self, worker_id: str, lease_seconds: float, *, now: datetime | None = None
    ) -> dict[Hold, bool]:
        """Extend all leases of a worker whose own threads do not get to.

        Returns for each of its jobs whether a cancel was asked, as ``extend`` does.
        """
        rows = self.live().filter(state=State.RUNNING, worker_id=worker_id)
        asked = {
            (job_id, token): at is not None
            for job_id, token, at in rows.values_list("pk", "token", "cancel_asked_at")
            if token is not None
        }
        answers = self._extend(asked, lease_seconds, now)
        return {hold: asked[hold] or answer for hold, answer in answers.items()}

    def _extend(
        self, holds: Iterable[Hold], lease_seconds: float, now: datetime | None
    ) -> dict[Hold, bool]:
        end_sql, end_params = self.now_sql(now, lease_seconds)
        changes = f"{self.quote('lease_expires_at')} = {end_sql}"
        answers: dict[Hold, bool] = {}
        for batch in batches(holds):
            # A row that is being settled now is passed over; it is extended the next time. Whoever
            # has it locked may be a process that stands still, and the others must not wait for it.
            for row in self.update_held(
                changes, end_params, batch, ("cancel_asked_at",), skip_locked=True
            ):
                answers[self.load_uuid(row[0]), self.load_uuid(row[1])] = row[2] is not None
            answers |= dict.fromkeys(self.still_held(set(batch) - answers.keys()), False)
        return answers

    def still_held(self, holds: Collection[Hold]) -> set[Hold]:
        """Return those of *holds* that are running under their token, as far as is committed."""
        rows = self.live().filter(state=State.RUNNING, pk__in=[hold[0] for hold in holds])
        return set(holds) & set(rows.values_list("pk", "token")) if holds else set()

    def mark_started(self, claims: Iterable[Claim], *, now: datetime | None = None) -> set[Hold]:
        """Write that the bodies of *claims* are about to run; return the claims that still hold.

        Asked for where a lapsed job that never started must be told from one that did.
        """
        now_sql, now_params = self.now_sql(now)
        changes = f"{self.quote('started_at')} = {now_sql}"
        started: set[Hold] = set()
        for holds in batches(claim.hold for claim in claims):
            for row in self.update_held(changes, now_params, holds):
                started.add((self.load_uuid(row[0]), self.load_uuid(row[1])))
        return started

    @statement
    def note_progress(self, claim: Claim, progress: str) -> bool:
        """Show how far a running job is; *progress* is JSON text. False if the claim lost it."""
        rows = self.live().filter(pk=claim.id, token=claim.token, state=State.RUNNING)
        with self.together():
            self.lock(LiveJob, [claim.id])
            return bool(rows.update(progress=EncodedJSON(progress)))

    @statement
    def update_held(
        self,
        changes: str,
        params: Sequence[Any],
        holds: Sequence[Hold],
        returning: Sequence[str] = (),
        *,
        skip_locked: bool = False,
    ) -> list[tuple[Any, ...]]:
        """Change running rows that *holds* still hold; return their id, token and *returning*.

        With *skip_locked*, rows that another transaction has locked are passed over.
        """
        where, where_params = self.held_sql(holds, skip_locked=skip_locked)
        columns = ", ".join(map(self.quote, ("id", "token", *returning)))
        with self.connection.cursor() as cursor:
            cursor.execute(
                f"UPDATE {self.live_table} SET {changes} WHERE {where} RETURNING {columns}",
                [*params, *where_params],
            )
            return list(cursor.fetchall())

    def held_sql(
        self, holds: Sequence[Hold], *, skip_locked: bool = False
    ) -> tuple[str, list[Any]]:
        """Return the condition under which a row is running under one of *holds*.

        The ids once more by themselves, since no planner looks for a primary key in pairs.
        *skip_locked* is for databases that lock rows.
        """
        ids, pairs = ", ".join(["%s"] * len(holds)), ", ".join(["(%s, %s)"] * len(holds))
        sql = (
            f"{self.quote('id')} IN ({ids}) AND {self.quote('state')} = 'running' "
            f"AND ({self.quote('id')}, {self.quote('token')}) IN (VALUES {pairs})"
        )
        params = [self.dump_uuid(job_id) for job_id, _ in holds]
        return sql, params + [self.dump_uuid(part) for hold in holds for part in hold]


def batches(holds: Iterable[Hold]) -> Iterable[Sequence[Hold]]:
    """Yield *holds* by id, so that extender and settler lock in one order."""
    ordered = sorted(holds)
    for start in range(0, len(ordered), PAIRS_PER_STATEMENT):
        yield ordered[start : start + PAIRS_PER_STATEMENT]
