"""When a new job becomes visible: with the caller's transaction, and nothing in between (G1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from django.db import transaction
from django.db.models import Q

from . import conf, notifying, results
from .exceptions import UniqueKeyTaken
from .states import State
from .store import BaseStore, Inserted, NewJob, get_store, queue_alias
from .store.newrows import unique_hash
from .transactions import warn_of_other

CONFLICT_ROUNDS: Final = 5

OnConflict = Literal["return", "raise", "replace"]


Placed = Inserted | results.Found
"""What became of a new job: it was written, or the job that has its unique key."""


def enqueue(job: NewJob, on_conflict: OnConflict, settings: conf.Settings) -> Placed:
    """Write one job, in the caller's transaction if there is one.

    Where a live job has its unique key, *on_conflict* decides: "return" that job, "raise"
    UniqueKeyTaken, or "replace" it, which never happens to one that runs.
    """
    store = get_store(queue_alias(settings))
    if store.connection.in_atomic_block:
        written = store.insert([job])
        notifying.notify(store)
    else:
        warn_of_other(store.alias, job.task)
        written = store.insert([job], wake=settings.notify)
    return written[0] if written else _conflict(store, job, on_conflict)


def place(store: BaseStore, job: NewJob, on_conflict: OnConflict) -> Placed:
    """Write one job in the caller's transaction, or do what *on_conflict* says of its key."""
    written = store.insert([job])
    return written[0] if written else _conflict(store, job, on_conflict)


def enqueue_many(
    jobs: Sequence[NewJob], on_conflict: OnConflict, settings: conf.Settings
) -> list[Placed]:
    """Write *jobs* in bounded statements, all or none; return what became of each, in order."""
    store = get_store(queue_alias(settings))
    if jobs and not store.connection.in_atomic_block:
        warn_of_other(store.alias, jobs[0].task)
    with transaction.atomic(using=store.alias):
        notifying.notify(store)
        rows = store.insert(jobs)
        if len(rows) == len(jobs):
            return [*rows]
        written = {row.id: row for row in rows}
        return [written.get(job.id) or _conflict(store, job, on_conflict) for job in jobs]


def _conflict(store: BaseStore, job: NewJob, on_conflict: OnConflict) -> Placed:
    assert job.unique_key is not None
    taken = unique_hash(job.queue_name, job.task, job.unique_key)
    for _ in range(CONFLICT_ROUNDS):
        # As it is now: an older snapshot of the caller's shows no holder, or one that is gone.
        holder = results.live(store.current(store.live().filter(unique_hash=taken)))
        if holder is not None and on_conflict == "raise":
            raise UniqueKeyTaken(
                f"The unique key {job.unique_key!r:.80} of {job.task} must be free, and job "
                f'{holder.id} holds it. Wait for it, cancel it, or use on_conflict="return".',
                holder_id=holder.id,
            )
        gives_way = (
            on_conflict == "replace" and holder is not None and holder.state != State.RUNNING
        )
        if holder is not None and not gives_way:
            return holder
        # The holder is gone, or gives way: try again, in one transaction with its going.
        with transaction.atomic(using=store.alias):
            if holder is not None and gives_way:
                # It may have begun to run since: then it is not even asked to stop.
                store.cancel(holder.id, where=~Q(state=State.RUNNING))
            written = store.insert([job])
        if written:
            return written[0]
    raise UniqueKeyTaken(
        f"The unique key {job.unique_key!r:.80} of {job.task} changed hands {CONFLICT_ROUNDS} "
        "times while a job was enqueued. Enqueue it again.",
    )
