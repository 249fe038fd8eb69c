"""G14: a claim reads the same whatever else is in the tables; an idle look, next to nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, transaction

from django_workqueue.states import Lane
from django_workqueue.store import BaseStore
from tests import factories
from tests.factories import at

pytestmark = pytest.mark.django_db(transaction=True)

CROWD = 1500


class Cost:
    """What the statements of a block read: rows, or on SQLite hundreds of its machine's steps."""

    amount = 0


@contextmanager
def counted() -> Iterator[Cost]:
    cost = Cost()
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            # A table as small as these is read whole, rightly; a large one is not.
            cursor.execute("SET LOCAL enable_seqscan = off")
    before = reads()
    if connection.vendor == "sqlite":

        def step() -> int:
            cost.amount += 1
            return 0

        connection.connection.set_progress_handler(step, 100)
        yield cost
        connection.connection.set_progress_handler(None, 100)
        return
    yield cost
    cost.amount = reads() - before


def reads() -> int:
    """Return how many rows this connection, on PostgreSQL this transaction, has read."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0) "
                "FROM pg_stat_xact_user_tables WHERE relname LIKE 'workqueue%'"
            )
            return int(cursor.fetchone()[0])
        if connection.vendor == "mysql":
            cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
            return sum(int(value) for _, value in cursor.fetchall())
    return 0


def insert_many(store: BaseStore, **options: Any) -> None:
    store.insert([factories.new_job(**options) for _ in range(CROWD)], now=at(0))


def future(store: BaseStore) -> None:
    insert_many(store, delay_seconds=1000)


def backlog(store: BaseStore) -> None:
    insert_many(store, priority=-50)


def paused(store: BaseStore) -> None:
    insert_many(store, queue_name="paused")
    store.pause("paused")


def payloads(store: BaseStore) -> None:
    insert_many(store, lane=Lane.PAYLOAD)


def running(store: BaseStore) -> None:
    insert_many(store, queue_name="busy")
    factories.claim(store, queue_name="busy", limit=CROWD, now=at(0), lease_seconds=1e5)


def dead(store: BaseStore) -> None:
    insert_many(store, queue_name="expired", expires_seconds=1)
    while store.expire(now=at(5)):
        pass


CROWDS: dict[str, Callable[[BaseStore], None]] = {
    crowd.__name__: crowd for crowd in (future, backlog, paused, payloads, running, dead)
}


def analyze() -> None:
    """Let the planner know how many rows there are, as a server does by itself in time."""
    statements = {
        "postgresql": "ANALYZE workqueue_livejob",
        "mysql": "ANALYZE TABLE workqueue_livejob",
        "sqlite": "ANALYZE workqueue_livejob",
    }
    with connection.cursor() as cursor:
        cursor.execute(statements[connection.vendor])
        if cursor.description:
            cursor.fetchall()


def claim_cost(store: BaseStore) -> int:
    """Return what it reads to look for queues and claim ten ready jobs."""
    for _ in range(10):
        factories.insert(store, now=at(0), priority=50)
    analyze()
    with transaction.atomic(), counted() as cost:
        assert factories.QUEUE in store.look(Lane.TASK, now=at(10))[0]
        assert len(factories.claim(store, now=at(10), limit=10)) == 10
    return cost.amount


def idle_cost(store: BaseStore) -> int:
    """Return what it reads to see that nothing is to be done."""
    analyze()
    with transaction.atomic(), counted() as cost:
        store.look(Lane.OUTBOX, now=at(10))
    return cost.amount


@pytest.mark.parametrize("crowd", CROWDS)
def test_g14_a_claim_of_ten_costs_the_same_beside_a_crowd(crowd: str, store: BaseStore) -> None:
    """Case O 10, in small."""
    alone = claim_cost(store)
    CROWDS[crowd](store)
    assert claim_cost(store) <= alone + 30


@pytest.mark.parametrize("crowd", CROWDS)
def test_g14_an_idle_look_costs_next_to_nothing_beside_a_crowd(
    crowd: str, store: BaseStore
) -> None:
    CROWDS[crowd](store)
    assert idle_cost(store) <= 30


def test_g14_control_what_reads_the_crowd_costs_as_much_as_it_is_large(store: BaseStore) -> None:
    future(store)
    with transaction.atomic(), counted() as cost:
        store.live().filter(task="shop.tasks.not_here").count()
    assert cost.amount > CROWD / 100 > 0
    if connection.vendor != "sqlite":
        assert cost.amount >= CROWD
