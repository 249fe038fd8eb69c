"""What `Queue.enqueue` writes: options checked, content encoded, unique keys looked up."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from .. import arguments, conf
from .. import payload as payloads
from ..compat import TASK_MAX_PRIORITY, TASK_MIN_PRIORITY
from ..exceptions import UniqueKeyTaken
from ..states import Lane
from .claims import DELAY_HINT

if TYPE_CHECKING:
    from ..store import BaseStore, NewJob

CONFLICT_ROUNDS: Final = 5
KEY_MAX_BYTES: Final = 8_192


def new_job(
    queue_name: str,
    payload: Any,
    *,
    root: str,
    priority: int,
    delay: float | None,
    run_after: datetime | None,
    expires: float | None,
    max_attempts: int | None,
    kind: str,
    unique_key: str | None,
    headers: Mapping[str, Any] | None,
) -> NewJob:
    """Return the job that these arguments ask for. Raises ValueError for the first that is wrong.

    *root* is what a refusal calls the payload.
    """
    from ..store import NewJob

    settings = conf.current()
    if headers is not None and not isinstance(headers, Mapping):
        raise arguments.refusal("headers", "a mapping", headers, "Leave it out for none.")
    return NewJob(
        lane=Lane.PAYLOAD,
        queue_name=queue_name,
        payload=encoded(payload, root),
        kind=arguments.name("kind", kind, may_be_empty=True),
        priority=_priority(priority),
        run_after=_run_after(run_after, delay),
        delay_seconds=_delay(delay),
        expires_seconds=_expires(expires),
        max_attempts=_max_attempts(max_attempts, settings.max_attempts),
        unique_key=_unique_key(unique_key),
        result_ttl=settings.result_ttl_seconds,
        headers=encoded(dict(headers or {}), "headers"),
    )


def insert(store: BaseStore, jobs: Sequence[NewJob]) -> list[uuid.UUID]:
    """Write *jobs*; return their ids, or those of the live jobs that hold their unique keys."""
    from ..store import finding
    from ..store.newrows import unique_hash

    ids: dict[uuid.UUID, uuid.UUID] = {}
    missing = list(jobs)
    for _ in range(CONFLICT_ROUNDS):
        ids |= {row.id: row.id for row in store.insert(missing)}
        keys = {
            job.id: unique_hash(job.queue_name, job.task, job.unique_key)
            for job in missing
            if job.id not in ids and job.unique_key is not None
        }
        holders = finding.holders(store, keys.values()) if keys else {}
        ids |= {job_id: holders[key] for job_id, key in keys.items() if key in holders}
        # A holder that was settled between the two statements: its key is free, so insert again.
        missing = [job for job in missing if job.id not in ids]
        if not missing:
            return [ids[job.id] for job in jobs]
    raise UniqueKeyTaken(
        f"A unique key must be free or held by a live job, and {missing[0].unique_key!r:.80} "
        f"changed hands {CONFLICT_ROUNDS} times while it was looked up. Enqueue it again; under "
        "REPEATABLE READ, in a new transaction."
    )


def encoded(value: Any, root: str) -> str:
    """Return *value* as JSON within the settings' limit; *root* is what a refusal calls it."""
    limit = conf.current().payload_max_bytes
    return payloads.encode(value, max_bytes=limit, root=root, what=root)


def _priority(value: object) -> int:
    least, most = TASK_MIN_PRIORITY, TASK_MAX_PRIORITY
    hint = "Higher is claimed first."
    return arguments.whole("priority", value, least=least, most=most, hint=hint)


def _run_after(value: object, delay: object) -> datetime | None:
    # A delay wins, one of 0 too. The store reads the delay only where there is no moment.
    if value is None:
        return None
    moment = arguments.moment("run_after", value, hint="Or give a delay, in seconds.")
    return moment if delay is None else None


def _delay(value: object) -> float:
    return 0.0 if value is None else arguments.seconds("delay", value, hint=DELAY_HINT)


def _expires(value: object) -> float | None:
    hint = "Use None for a job that never expires."
    if value is None:
        return None
    return arguments.seconds("expires", value, may_be_zero=False, hint=hint)


def _max_attempts(value: object, default: int) -> int:
    most, hint = conf.MAX_MAX_ATTEMPTS, "1 means that it is never tried again."
    if value is None:
        return default
    return arguments.whole("max_attempts", value, least=1, most=most, hint=hint)


def _unique_key(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        hint = "Build one from what must not be queued twice."
        raise arguments.refusal("unique_key", "a string that is not empty", value, hint)
    payloads.encode(value, max_bytes=KEY_MAX_BYTES, root="unique_key", what="unique key")
    return value
