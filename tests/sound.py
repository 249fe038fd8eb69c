"""What must hold of every stored job, after every step of a test.

I1  an id is in at most one of live, dead and finished
I2  token, worker and lease end are all set when running, all null otherwise
I4  the fence only rises; attempt rises by one at a claim, falls only where one is refunded, and
    is 0 at a requeue
G6  a job is charged at most max_attempts starts
"""

from __future__ import annotations

import uuid
from typing import Any, Final, TypeVar, cast

from django_workqueue.exceptions import WorkQueueError
from django_workqueue.models import DeadJob, JobFacts, LiveJob, Result
from django_workqueue.store import BaseStore

Row = dict[str, Any]

TABLES: Final = {"live": LiveJob, "dead": DeadJob, "finished": Result}
HOLDER: Final = ("token", "worker_id", "lease_expires_at")
FACTS: Final = frozenset(field.attname for field in JobFacts._meta.fields)

_seen: dict[uuid.UUID, tuple[int, int]] = {}


def forget() -> None:
    """Forget the fences and attempts seen so far: of an earlier test, or before an edit by hand."""
    _seen.clear()


def rows(alias: str = "default") -> dict[str, dict[uuid.UUID, Row]]:
    """Return every stored job, whole: table, then id, then column."""
    return {
        table: {row["id"]: row for row in model._base_manager.using(alias).values()}
        for table, model in TABLES.items()
    }


def row(job_id: uuid.UUID) -> Row:
    """Return the whole row of a live job."""
    return rows()["live"][job_id]


def place(job_id: uuid.UUID) -> str | None:
    """Return where a job is: its state while it is live, else dead, finished or None."""
    for table, found in rows().items():
        if job_id in found:
            return cast("str", found[job_id]["state"]) if table == "live" else table
    return None


def changes(before: Row, after: Row) -> Row:
    """Return the columns of *after* that *before* has otherwise, or not at all."""
    return {
        name: value for name, value in after.items() if name not in before or before[name] != value
    }


def assert_sound(job_id: uuid.UUID) -> None:
    """Assert the invariants of the stored rows of one job, against what was last seen of it."""
    _assert_sound(job_id, rows())


def assert_all_sound(
    alias: str = "default", *, stored: dict[str, dict[uuid.UUID, Row]] | None = None
) -> None:
    """Assert the invariants of every stored job; *stored* are the rows, if they are known."""
    if stored is None:
        stored = rows(alias)
    for job_id in {job_id for found in stored.values() for job_id in found}:
        _assert_sound(job_id, stored)


def _assert_sound(job_id: uuid.UUID, stored: dict[str, dict[uuid.UUID, Row]]) -> None:
    tables = [table for table, found in stored.items() if job_id in found]
    assert len(tables) <= 1, f"I1: {job_id} is in {tables}"
    if "live" in tables:
        job = stored["live"][job_id]
        wanted = job["state"] == "running"
        assert all((job[name] is not None) is wanted for name in HOLDER), f"I2: {job}"
    if tables and tables != ["finished"]:
        _assert_counts(job_id, stored[tables[0]][job_id])


def _assert_counts(job_id: uuid.UUID, job: Row) -> None:
    fence, attempt = job["fence"], job["attempt"]
    last_fence, last_attempt = _seen.get(job_id, (fence, attempt))
    starts = fence - last_fence
    assert starts >= 0, f"I4: the fence fell from {last_fence} to {fence}"
    assert 0 <= attempt <= last_attempt + starts, f"I4: attempt {last_attempt} to {attempt}"
    refunded = last_attempt + starts - attempt
    # Between two looks: each claim may have been given back, and one held before them too.
    assert refunded <= starts + 1 or attempt == 0, f"I4: attempt {last_attempt} to {attempt}"
    assert attempt <= job["max_attempts"], f"G6: attempt {attempt} of {job['max_attempts']}"
    _seen[job_id] = fence, attempt


StoreT = TypeVar("StoreT", bound=BaseStore)


class _Watched:
    """A store that looks at every stored job after each of its calls."""

    def __init__(self, store: BaseStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        if name.startswith("_") or not callable(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                answer = value(*args, **kwargs)
            except WorkQueueError:
                assert_all_sound(self._store.alias)
                raise
            # After an error of the database the transaction may take no further statement.
            assert_all_sound(self._store.alias)
            return answer

        return call


def watched(store: StoreT) -> StoreT:
    """Return *store* with the invariants asserted after every call, also a refused one."""
    return cast("StoreT", _Watched(store))
