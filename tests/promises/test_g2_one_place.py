"""G2: a committed job is never lost and never in two places; every move is one transaction."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final
from unittest import mock

import pytest
from django.db import DatabaseError, connection

from django_workqueue.states import DeathReason
from django_workqueue.store import Ack, BaseStore
from tests import driver_faults, factories
from tests.driver_faults import Moment
from tests.sound import place

pytestmark = pytest.mark.django_db(transaction=True)


def new_queue() -> str:
    """Return a queue with nothing in it: a move that broke may leave its job ready."""
    return uuid.uuid4().hex


def finish(store: BaseStore) -> tuple[uuid.UUID, Callable[[], Any]]:
    taken = factories.running(store, now=None, queue_name=new_queue())
    return taken.id, lambda: store.ack([Ack(claim=taken, value="1")])


def bury(store: BaseStore) -> tuple[uuid.UUID, Callable[[], Any]]:
    taken = factories.running(store, now=None, queue_name=new_queue())
    return taken.id, lambda: store.bury(taken, DeathReason.TERMINAL, factories.error(taken))


def cancel(store: BaseStore) -> tuple[uuid.UUID, Callable[[], Any]]:
    job_id = factories.insert(store, now=None, queue_name=new_queue())
    return job_id, lambda: store.cancel(job_id)


def requeue(store: BaseStore) -> tuple[uuid.UUID, Callable[[], Any]]:
    taken = factories.dead(store, now=None, queue_name=new_queue())
    return taken.id, lambda: store.requeue(taken.id)


def reclaim(store: BaseStore) -> tuple[uuid.UUID, Callable[[], Any]]:
    taken = factories.running(store, now=factories.at(-1e9), max_attempts=1, queue_name=new_queue())
    store.mark_started([taken])
    return taken.id, store.reclaim


def expire(store: BaseStore) -> tuple[uuid.UUID, Callable[[], Any]]:
    job_id = factories.insert(store, now=factories.at(-1e9), expires_seconds=1)
    return job_id, store.expire


MOVES: Final = {move.__name__: move for move in (finish, bury, cancel, requeue, reclaim, expire)}

Prepare = Callable[[BaseStore], tuple[uuid.UUID, Callable[[], Any]]]


def broken_moves(
    store: BaseStore, prepare: Prepare, moment: Moment
) -> Iterator[tuple[str | None, str | None, str]]:
    """Break a move at each of its statements; yield where the job was and is, and the statement."""
    for number in range(20):
        job_id, move = prepare(store)
        before = place(job_id)
        with (
            driver_faults.driver(driver_faults.at(number, moment)) as driver,
            contextlib.suppress(DatabaseError),
        ):
            move()
        if not driver.hit:
            return
        connection.close()
        yield before, place(job_id), str(driver.hit[0])
    pytest.fail("a move has no more than twenty statements")


@pytest.mark.parametrize("moment", list(Moment))
@pytest.mark.parametrize("name", MOVES)
def test_g2_a_move_that_breaks_anywhere_happened_whole_or_not_at_all(
    name: str, moment: Moment, store: BaseStore
) -> None:
    job_id, move = MOVES[name](store)
    start = place(job_id)
    move()
    end = place(job_id)
    assert start != end
    found = list(broken_moves(store, MOVES[name], moment))
    # One statement in autocommit finishes a job on PostgreSQL, and is its own transaction.
    at_least = 1 if name == "finish" and connection.vendor == "postgresql" else 3
    assert len(found) >= at_least, "a move has at least a delete, an insert and a COMMIT"
    for before, after, statement in found:
        assert before == start
        assert after in {start, end}, statement


def test_g2_control_moves_in_two_transactions_lose_the_job(store: BaseStore) -> None:
    def autocommit(
        using: str | None = None, **options: Any
    ) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    with mock.patch("django_workqueue.store.core.transaction.atomic", autocommit):
        found = [after for _, after, _ in broken_moves(store, bury, Moment.AFTER)]
    assert None in found
