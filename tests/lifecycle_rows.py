"""Rows of the model of the life cycle: dicts of columns, and the rules that need no other row.

A row has the columns of its table but ``unique_hash``, for which ``constrains`` stands, and of
errors ERROR_PARTS only; ``shown`` brings a stored row into that form.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from django_workqueue.store import ErrorRecord
from tests.sound import Row

FOREVER: Final = datetime(9999, 12, 31, tzinfo=UTC)
ERRORS_KEPT: Final = 25
ERROR_PARTS: Final = ("attempt", "worker", "started", "ended", "outcome")
UNHELD: Final = {"token": None, "worker_id": None, "lease_expires_at": None}
NEW: Final = {
    "attempt": 0,
    "claimed_at": None,
    "started_at": None,
    "suspect": False,
    "deaths": 0,
    "held_reason": "",
    "cancel_asked_at": None,
    "unknown_since": None,
    **UNHELD,
}


def shown(row: Row) -> Row:
    """Return a stored row in the model's form."""
    row = dict(row)
    if "unique_hash" in row:
        row["constrains"] = row.pop("unique_hash") is not None
    return row | {"errors": [{part: each[part] for part in ERROR_PARTS} for each in row["errors"]]}


def after(moment: datetime, seconds: float) -> datetime:
    return moment + timedelta(seconds=seconds)


def past(moment: datetime | None, now: datetime) -> bool:
    """A moment exactly equal to now is past: due, lapsed and expired (O12)."""
    return moment is not None and moment <= now


def batch(rows: Iterable[Row], column: str, limit: int, taken: Collection[uuid.UUID]) -> list[Row]:
    """Return the rows *taken*, which must be a first *limit* of *rows* by *column*."""
    candidates = {row["id"]: row for row in rows}
    assert set(taken) <= candidates.keys(), "a batch took what it may not take"
    assert len(taken) == min(limit, len(candidates)), "a batch left what it could take"
    last = max((candidates[job_id][column] for job_id in taken), default=None)
    left = [row[column] for job_id, row in candidates.items() if job_id not in taken]
    assert last is None or all(last <= each for each in left), "a batch began in the middle"
    return [candidates[job_id] for job_id in taken]


def with_error(row: Row, error: ErrorRecord | Row, *, replace: bool = False) -> list[Row]:
    """Return the row's errors with one more; a repeated hold for one cause is one error."""
    record = error.as_json() if isinstance(error, ErrorRecord) else error
    known = list(row["errors"])
    if replace and known and known[-1]["outcome"] == record["outcome"]:
        known.pop()
    known.append({part: record[part] for part in ERROR_PARTS})
    return known if len(known) <= ERRORS_KEPT else [known[0], *known[1 - ERRORS_KEPT :]]
