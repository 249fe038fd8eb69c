"""Run a task with ``atomic=True``: its writes and its completion are one transaction (G8).

The completion is the last statement of the transaction, and it is fenced: a run that was
superseded finds no row to settle and rolls back everything it wrote.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import DatabaseError, InterfaceError, transaction

from . import clock, conf, registry
from .connecting import clean_connections
from .exceptions import LeaseLost, TransactionBroken, TransactionTooLong
from .executor import execute
from .job import Job, Outcome, Verb
from .outcomes import failed
from .settler import as_ack
from .store import BaseStore, get_store

logger = logging.getLogger("django_workqueue.atomically")


class _RolledBack(Exception):
    """Ends the transaction of a run that did not succeed; its outcome is written afterwards."""


def execute_atomically(job: Job, settings: conf.Settings, lease_seconds: float) -> Outcome | None:
    """Run *job* in a transaction of the queue's database and settle it there. Never raises.

    Sets ``job.committed`` where the transaction is known to be committed. Otherwise nothing of
    the run is left, and the outcome returned is what there is to write; None, where the database
    failed at the end of a run that succeeded: then the job goes back uncharged.
    """
    outcome: Outcome | None = None
    store = get_store()
    started = clock.monotonic()
    try:
        with transaction.atomic(using=store.alias):
            # The first of the hooks: one of the task's own may raise after the commit.
            transaction.on_commit(lambda: _note_commit(job), using=store.alias)
            store.begin_run(lease_seconds, job.claim.timeout)
            with _bounded(store, lease_seconds):
                outcome = execute(job, settings, inside=store.alias)
            if outcome.verb is not Verb.ACK or job.timed_out:
                raise _RolledBack
            _settle_inside(store, job, outcome)
    except _RolledBack:
        pass
    except LeaseLost:
        job.lease_lost.set()
    except BaseException as error:  # noqa: BLE001  # also what a hook of the task raises
        outcome = _after_error(store, job, started, outcome, error, settings)
    finally:
        clean_connections()
    return outcome


def _note_commit(job: Job) -> None:
    job.committed = True


def _settle_inside(store: BaseStore, job: Job, outcome: Outcome) -> None:
    if store.connection.needs_rollback:
        raise TransactionBroken(
            "A task with atomic=True must let a database error end it, and this one caught an "
            "error and went on in a transaction that can only be rolled back. Put the statements "
            "whose errors are expected into a transaction.atomic() of their own."
        )
    try:
        store.end_run()
    except DatabaseError as error:
        if not store.is_run_broken(error):
            raise
        raise TransactionBroken(
            "A task with atomic=True must let a deadlock end it, and this one caught it and went "
            "on: the database had rolled back everything before it. Let the error pass; the job "
            "is tried again."
        ) from error
    if not store.ack([as_ack(job, outcome)]):
        raise LeaseLost("superseded while it ran; rolled back", job_id=job.claim.id)


def _after_error(  # noqa: PLR0917  # the facts of a run, in its own order
    store: BaseStore,
    job: Job,
    started: float,
    outcome: Outcome | None,
    error: BaseException,
    settings: conf.Settings,
) -> Outcome | None:
    """Return the outcome of a run whose transaction ended in *error*, the database's or its own."""
    if job.committed:
        logger.error("hook after the commit failed", extra=job.claim.log_fields, exc_info=error)
        return outcome
    if isinstance(error, DatabaseError | InterfaceError) and store.is_outage(error):
        # Committed or not, nobody knows: the settle that follows looks for the result.
        job.settle_retried = True
        return None
    task = registry.get(job.claim.task)
    return None if task is None else failed(job, task, started, error, settings)


@contextmanager
def _bounded(store: BaseStore, lease_seconds: float) -> Iterator[None]:
    """Refuse statements of the run once it held a database's only write lock for too long.

    Meanwhile no lease can be extended, this one's and those of the jobs beside it.
    """
    seconds = store.run_bound_seconds(lease_seconds)
    if seconds is None:
        yield
        return
    ends = clock.monotonic() + seconds

    def check() -> None:
        if clock.monotonic() > ends:
            raise TransactionTooLong(
                f"A task with atomic=True must end within half a lease on this database, "
                f"{seconds:g} s, since it holds the only write lock. Make it shorter, or "
                "raise LEASE_SECONDS."
            )

    def execute_within(run: Any, sql: str, params: Any, many: bool, context: Any) -> Any:  # noqa: FBT001
        check()
        return run(sql, params, many, context)

    with store.connection.execute_wrapper(execute_within):
        yield
    check()
