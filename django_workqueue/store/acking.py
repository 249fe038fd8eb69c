"""ack: a success is kept as a result. The job's facts move within the database, not through here.

Groups of jobs are settled together, in as few statements as the database can: what a statement
costs is shared by all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from ..models import Result
from ..models.fields import to_database
from ..states import ResultOutcome
from .claiming import Claiming
from .core import compiled, statement, transition
from .records import Ack, Hold

ACKS_PER_STATEMENT: Final = 200
ACK_CHARACTERS: Final = 4_000_000
"""Of values in one statement: servers have a largest packet, 16 MB where it is small."""

MOVED: Final = (
    "id",
    "lane",
    "queue_name",
    "task",
    "kind",
    "backend",
    "payload",
    "rank",
    "errors",
    "run_after",
    "enqueued_at",
    "token",
)
"""Columns that a live job and its result share."""


class Acking(Claiming):
    """The good end of a claim."""

    def ack(self, acks: Sequence[Ack], *, now: datetime | None = None) -> set[Hold]:
        """Finish succeeded jobs and keep their results; return the holds that were settled.

        A hold that is missing no longer held its job: nothing of it is written. All or none of
        the rest.
        """
        groups = list(grouped(acks))
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
        """Return a result's values: from a row *job* of live jobs, and *given* with the outcome.

        Has *now_sql* twice, with its parameters.
        """
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

    def later_sql(self, moment: str, seconds: str) -> str:
        """Return SQL for *moment* plus the number *seconds*; null where that is null."""
        raise NotImplementedError  # pragma: no cover

    @property
    def result_table(self) -> str:
        return self.quote(Result._meta.db_table)

    def given_json(self, acks: Sequence[Ack]) -> str:
        """Return *acks* as one JSON text: arrays of id, token, value and start."""
        vendor = self.connection.vendor
        rows = [
            (
                str(self.dump_uuid(ack.claim.id)),
                str(self.dump_uuid(ack.claim.token)),
                ack.value,
                None if ack.started_at is None else str(to_database(ack.started_at, vendor)),
            )
            for ack in acks
        ]
        return json.dumps(rows, ensure_ascii=False)


def grouped(acks: Sequence[Ack]) -> Iterator[Sequence[Ack]]:
    """Yield *acks* by id, one for each hold, so that extender and settler lock in one order."""
    by_hold = {ack.claim.hold: ack for ack in acks}
    group: list[Ack] = []
    characters = 0
    for ack in sorted(by_hold.values(), key=lambda ack: ack.claim.id.int):
        characters += len(ack.value)
        if group and (len(group) == ACKS_PER_STATEMENT or characters > ACK_CHARACTERS):
            yield group
            group, characters = [], len(ack.value)
        group.append(ack)
    if group:
        yield group
