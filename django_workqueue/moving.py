"""A job on its way from the outbox of the data's database to the queue's, under one id.

It is first a row of the data's transaction, whose payload is the whole job. A relay inserts the
job in the queue's database together with a `Moved` row of its id, in one transaction, and then
deletes the row it came from. Whoever tries again, because it died in between or was thought dead,
finds the `Moved` row and inserts nothing.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import fields, replace
from datetime import datetime
from typing import Any, Final

from django.db import DataError, IntegrityError, transaction
from django.db.models import Q

from . import conf, notifying, payload, results
from .enqueueing import OnConflict, place
from .exceptions import WorkQueueError
from .models import Moved
from .models.fields import EncodedJSON
from .states import Lane, OutboxKind, Place, State
from .store import BaseStore, Claim, ErrorRecord, Inserted, NewJob, get_store, outbox_aliases
from .store.core import delete_rows, transition
from .store.records import with_error
from .transactions import reopen

QUEUE_NAME: Final = f"outbox:{OutboxKind.MOVE.value}"

KEEP_SECONDS: Final = 86_400.0
PURGE_BATCH: Final = 500

REFUSED: Final = (DataError, IntegrityError, WorkQueueError, KeyError, TypeError, ValueError)
"""What is wrong with one row, and not with the database: edited, say, or written by newer code."""

# Those of the outbox's row itself, and those kept as JSON beside the rest.
_APART: Final = frozenset({"id", "lane", "payload", "headers", "order_key", "seq"})
_FACTS: Final = tuple(each.name for each in fields(NewJob) if each.name not in _APART)
_MOMENTS: Final = ("run_after", "scheduled_for")

# What a relay does with the row is no run of the job.
_WAITING: Final[dict[str, Any]] = {
    "state": State.READY.value,
    "reason": "",
    "attempt": 0,
    "worker_ids": [],
    "errors": [],
    "claimed_at": None,
    "worker_id": None,
}


def leave(alias: str, job: NewJob, on_conflict: OnConflict) -> Inserted:
    """Write *job* into the outbox of *alias*, in the caller's transaction."""
    store = get_store(alias)
    (written,) = store.insert([wrapped(job, on_conflict)])
    notifying.notify(store)
    return written


def arrive(claim: Claim, source: str = "") -> bool:
    """Insert the job of a claimed row in the queue's database; False if it was there already.

    *source* is the alias of the outbox that the row is in.

    Commits there. A unique key that a live job holds: what ``on_conflict`` of the job says, and
    where it does not replace the holder, the job is finished (cancelled) and says who held it.
    """
    job, on_conflict = unwrapped(claim.id, payload.decode(claim.payload))
    if job.expires_seconds is not None and job.run_after is None:
        # From when it was enqueued, and both moments are on the clock of that database.
        waited = (claim.claimed_at - claim.enqueued_at).total_seconds()
        job = replace(job, expires_seconds=job.expires_seconds - waited)
    # Nobody is there any more to be told.
    kept: OnConflict = "replace" if on_conflict == "replace" else "return"
    return transition(_arrive)(get_store(), job, kept, claim, source)


def is_too_large(claim: Claim, error: Exception) -> bool:
    """Tell whether *error* of `arrive` says that the queue's database never takes this job."""
    return get_store().is_too_large(error, [claim.payload, claim.headers])


def _arrive(
    store: BaseStore, job: NewJob, on_conflict: OnConflict, claim: Claim, source: str
) -> bool:
    if not _note_moved(store, job.id, source):
        return False
    placed = place(store, job, on_conflict)
    if not isinstance(placed, Inserted):
        _keep_refused(store, job, placed.id, claim)
    notifying.notify(store)
    return True


def _note_moved(store: BaseStore, job_id: uuid.UUID, source: str) -> bool:
    rows = Moved._base_manager.using(store.alias)
    try:
        # Waits for another relay's transaction that has inserted it.
        with transaction.atomic(using=store.alias):
            rows.bulk_create([Moved(id=job_id, moved_at=store.moment(None), source=source)])
    except IntegrityError:
        if not store.current(rows.filter(pk=job_id)).exists():
            # Some other rule of the table, of a newer schema say: the job is not there.
            raise
        return False
    return True


def _keep_refused(store: BaseStore, job: NewJob, holder_id: uuid.UUID, claim: Claim) -> None:
    told = f"the unique key {job.unique_key!r:.80} is held by job {holder_id}: it was not made"
    record = ErrorRecord(
        attempt=0, worker="", started=None, ended=None, outcome="unique_key", message=told
    )
    facts = {
        "id": job.id,
        "lane": job.lane,
        "queue_name": job.queue_name,
        "task": job.task,
        "kind": job.kind,
        "backend": job.backend,
        "payload": EncodedJSON(job.payload),
        "rank": -job.priority,
        "worker_ids": [],
        "errors": with_error([], record),
        "run_after": job.run_after or store.moment(None),
        "enqueued_at": claim.enqueued_at,
        "schedule": job.schedule,
        "scheduled_for": job.scheduled_for,
        "attempt": 0,
        "result_ttl": job.result_ttl,
    }
    store.keep_cancelled(facts, None)


def purge_moved(store: BaseStore, *, limit: int = PURGE_BATCH, dry_run: bool = False) -> int:
    """Delete up to *limit* `Moved` rows of the queue's database that nobody can ask for any more.

    They are a day old, and the rows they came from are gone: a relay that is so late with its
    insert has lost its claim for a day. Where an outbox cannot be asked, none is deleted; those of
    one that is relayed no more are kept, since it may be relayed again, with the rows it had.
    """
    rows = Moved._base_manager.using(store.alias)
    # Older code has named no source.
    asked = Q(source__in=["", *outbox_aliases()])
    old = asked & Q(moved_at__lte=store.moment(None, -KEEP_SECONDS))
    ids = set(rows.filter(old).order_by("moved_at").values_list("pk", flat=True)[:limit])
    if not ids:
        return 0
    for alias in outbox_aliases():
        reopen(alias)
        source = get_store(alias)
        for there in (source.live(), source.dead()):
            ids -= set(there.filter(pk__in=ids).values_list("pk", flat=True))
    return len(ids) if dry_run else delete_rows(rows.filter(old, pk__in=ids))


def find(job_id: uuid.UUID) -> results.Found | None:
    """Return the job if it is in an outbox, on its way to the queue's database."""
    for alias in outbox_aliases():
        found = results.find(alias, job_id)
        if found is not None and found.lane == Lane.OUTBOX and found.kind == OutboxKind.MOVE:
            job, _ = unwrapped(found.id, found.payload)
            known = replace(
                found,
                lane=job.lane.value,
                queue_name=job.queue_name,
                task=job.task,
                kind=job.kind,
                backend=job.backend,
                payload=json.loads(job.payload),
                rank=-job.priority,
                run_after=job.run_after or found.run_after,
            )
            return known if found.state == Place.DEAD else replace(known, **_WAITING)
    return None


def wrapped(job: NewJob, on_conflict: OnConflict) -> NewJob:
    """Return the outbox's row for *job*: its id, and a payload that is all of it."""
    facts = {name: getattr(job, name) for name in _FACTS}
    facts |= {name: facts[name] and facts[name].isoformat() for name in _MOMENTS}
    content = {
        "job": facts,
        "call": json.loads(job.payload),
        "headers": json.loads(job.headers),
        "on_conflict": on_conflict,
    }
    return NewJob(
        id=job.id,
        lane=Lane.OUTBOX,
        queue_name=QUEUE_NAME,
        kind=OutboxKind.MOVE.value,
        payload=_text(content),
        # A move that fails is tried again for years: the job is committed.
        max_attempts=conf.MAX_MAX_ATTEMPTS,
        result_ttl=0,
    )


def unwrapped(job_id: uuid.UUID, content: Any) -> tuple[NewJob, OnConflict]:
    """Return the job, and what to do about its unique key, that `wrapped` was given."""
    facts = dict(content["job"])
    for name in _MOMENTS:
        facts[name] = facts[name] and datetime.fromisoformat(facts[name])
    job = NewJob(
        id=job_id, payload=_text(content["call"]), headers=_text(content["headers"]), **facts
    )
    return job, content["on_conflict"]


def _text(value: Any) -> str:
    # It came from JSON, so that no refusal is possible; the form is that of the payload's encoder.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
