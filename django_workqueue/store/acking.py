"""ack: a success is kept as a result. The job's facts move within the database, not through here.

Groups of jobs are settled together, in as few statements as the database can: what a statement
costs is shared by all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from ..models import Result
from ..states import ResultOutcome
from .claiming import Claiming
from .columns import bounded, most_bytes
from .core import compiled, statement, transition
from .records import Ack, Hold

HOLD_COLUMNS: Final[tuple[str, ...]] = ("id", "token")
ACK_COLUMNS: Final = (*HOLD_COLUMNS, "value", "started_at")
SHARED: Final = (
    "id",
    "lane",
    "queue_name",
    "task",
    "kind",
    "backend",
    "payload",
    "rank",
    "schedule",
    "scheduled_for",
    "errors",
    "run_after",
    "enqueued_at",
)
"""Columns that a result has as the job had them."""
MOVED: Final = (*SHARED, "token")


class Acking(Claiming):
    """The good end of a claim."""

    def ack(self, acks: Sequence[Ack], *, now: datetime | None = None) -> set[Hold]:
        """Finish succeeded jobs and keep their results; return the holds that were settled.

        A hold that is missing no longer held its job: nothing of it is written. All or none of
        the rest.
        """
        groups = groups_of(acks)
        if len(groups) == 1:
            return self._ack_group(groups[0], now)
        return self._ack_groups(groups, now)

    @transition
    def _ack_groups(self, groups: Sequence[Sequence[Ack]], now: datetime | None) -> set[Hold]:
        return {hold for group in groups for hold in self._ack_group(group, now)}

    @statement
    def _ack_group(self, acks: Sequence[Ack], now: datetime | None) -> set[Hold]:
        keeps = any(ack.claim.result_ttl != 0 for ack in acks)
        rows = self.ack_rows(acks, now, keep_results=keeps)
        if len(rows) == len(acks):
            return {ack.claim.hold for ack in acks}
        return {(self.load_uuid(row[0]), self.load_uuid(row[1])) for row in rows}

    # The statements

    def ack_rows(
        self, acks: Sequence[Ack], now: datetime | None, *, keep_results: bool
    ) -> list[tuple[Any, ...]]:
        """Move running rows that *acks* still hold to the results; return their ids and tokens.

        In one transaction. With *keep_results* False none of them keeps one.
        """
        raise NotImplementedError  # pragma: no cover

    @compiled
    def result_columns_sql(self) -> str:
        """Return the columns of a result in the order of `result_values_sql`."""
        names = (*MOVED, "attempts", "worker_ids", "outcome", "value", "started_at")
        return ", ".join(map(self.quote, (*names, "finished_at", "expires_at")))

    @compiled
    def result_values_sql(self, job: str, given: str, now_sql: str) -> str:
        """Return a result's values: from a row *job* of live jobs, and *given* with the outcome."""
        q = self.quote
        values = [
            *(f"{job}.{q(name)}" for name in MOVED),
            f"{job}.{q('attempt')}",
            self.appended_sql(f"{job}.{q('worker_ids')}", f"{job}.{q('worker_id')}"),
            f"'{ResultOutcome.SUCCEEDED.value}'",
            f"{given}.{q('value')}",
            f"{given}.{q('started_at')}",
            now_sql,
            # Null for a result that is kept for ever.
            self.later_sql(now_sql, f"{job}.{q('result_ttl')}"),
        ]
        return ", ".join(values)

    def appended_sql(self, array: str, item: str) -> str:
        """Return SQL for the JSON text *array* with the text *item* at its end."""
        raise NotImplementedError  # pragma: no cover

    @property
    def result_table(self) -> str:
        return self.quote(Result._meta.db_table)

    def ack_columns(self, acks: Sequence[Ack]) -> dict[str, list[Any]]:
        """Return what a result takes from its ack, by column."""
        return {
            "id": self.dump_uuids(ack.claim.id for ack in acks),
            "token": self.dump_uuids(ack.claim.token for ack in acks),
            "value": [ack.value for ack in acks],
            "started_at": self.dump_moments(ack.started_at for ack in acks),
        }


def groups_of(acks: Sequence[Ack]) -> list[Sequence[Ack]]:
    """Return *acks* by id, one for each hold, so that extender and settler lock in one order."""
    # By numbers, which hash and compare in C.
    by_hold = {(ack.claim.id.int, ack.claim.token.int): ack for ack in acks}
    ordered = [by_hold[numbers] for numbers in sorted(by_hold)]
    return list(bounded(ordered, [most_bytes(ack.value) for ack in ordered]))
