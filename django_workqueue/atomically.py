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
from .exceptions import LeaseLost, TransactionBroken, TransactionTooLong
from .executor import Job, Verb, clean_connections, execute, failed
from .settler import as_ack
from .store import BaseStore, get_store

logger = logging.getLogger("django_workqueue.atomically")


class _RolledBack(Exception):
    """Ends the transaction of a run that did not succeed; its outcome is written afterwards."""


def execute_atomically(job: Job, settings: conf.Settings, lease_seconds: float) -> None:
    """Run *job* in a transaction of the queue's database and settle it there. Never raises.

    Sets ``job.committed`` where the transaction is known to be committed. Otherwise nothing of
    the run is left, and ``job.outcome`` is what there is to write; None, where the database failed
    at the end of a run that succeeded: then the job goes back uncharged.
    """
    store = get_store()
    started = clock.monotonic()
    try:
        with transaction.atomic(using=store.alias):
            # The first of the hooks: one of the task's own may raise after the commit.
            transaction.on_commit(lambda: _note_commit(job), using=store.alias)
            store.begin_run(lease_seconds, job.claim.timeout)
            with _bounded(store, lease_seconds):
                job.outcome = execute(job, settings, inside=store.alias)
            if job.outcome.verb is not Verb.ACK:
                raise _RolledBack
            _settle_inside(store, job)
    except _RolledBack:
        pass
    except LeaseLost:
        job.lease_lost.set()
    except Exception as error:  # noqa: BLE001  # also what a hook of the task raises
        _on_error(store, job, started, error, settings)
    finally:
        clean_connections()


def _note_commit(job: Job) -> None:
    job.committed = True


def _settle_inside(store: BaseStore, job: Job) -> None:
    if store.connection.needs_rollback:
        raise TransactionBroken(
            "A task with atomic=True must let a database error end it, and this one caught an "
            "error and went on in a transaction that can only be rolled back. Put the statements "
            "whose errors are expected into a transaction.atomic() of their own."
        )
    if not store.ack([as_ack(job)]):
        raise LeaseLost("superseded while it ran; rolled back", job_id=job.claim.id)


def _on_error(
    store: BaseStore, job: Job, started: float, error: Exception, settings: conf.Settings
) -> None:
    """Tell a fault of the database from one of the task, after the transaction ended in *error*."""
    if job.committed:
        logger.error("hook after the commit failed", extra={"job_id": job.claim.id}, exc_info=error)
        return
    if isinstance(error, DatabaseError | InterfaceError) and store.is_outage(error):
        # Committed or not, nobody knows: the settle that follows looks for the result.
        job.outcome = None
        job.settle_retried = True
        return
    task = registry.get(job.claim.task)
    if task is not None:
        job.outcome = failed(job, task, started, error, settings)


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
