"""A deadlock in a transaction of the store is tried again, whole; in a caller's it is theirs.

A deadlock rolls back the whole transaction on MariaDB: a statement repeated after it would commit
without the caller's earlier ones (O1).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_workqueue.models import LiveJob
from django_workqueue.states import DeathReason
from django_workqueue.store import Ack, BaseStore, get_store
from django_workqueue.store.core import OWN_RETRIES
from tests import sound
from tests.factories import at, claim, dead, error, insert, new_job, running
from tests.jobs import app
from tests.threads import in_thread
from tests.timescale import PATIENCE_SECONDS

pytestmark = pytest.mark.django_db(transaction=True)


class Deadlock(OperationalError):
    """What this test's statements fail with."""


class Failing:
    """Fails the first *count* writes of a block, and counts them all."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.seen = 0

    def __call__(
        self, execute: Callable[..., Any], sql: str, params: Any, many: Any, context: Any
    ) -> Any:
        if sql.startswith(("SELECT", "SAVEPOINT", "ROLLBACK", "RELEASE")):
            return execute(sql, params, many, context)
        self.seen += 1
        if self.seen <= self.count:
            raise Deadlock("deadlock")
        return execute(sql, params, many, context)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> BaseStore:
    sound.forget()
    store = get_store()
    conflict = lambda self, raised: isinstance(raised, Deadlock)  # noqa: E731
    monkeypatch.setattr(type(store), "is_conflict", conflict)
    return sound.watched(store)


def _insert(store: BaseStore) -> Callable[[], Any]:
    return lambda: store.insert([new_job()], now=at(0))


def _insert_many(store: BaseStore) -> Callable[[], Any]:
    jobs = [new_job() for _ in range(501)]
    return lambda: store.insert(jobs, now=at(0))


def _promote(store: BaseStore) -> Callable[[], Any]:
    insert(store, run_after=at(1))
    return lambda: store.promote(now=at(1))


def _claim(store: BaseStore) -> Callable[[], Any]:
    insert(store)
    return lambda: claim(store)


def _extend(store: BaseStore) -> Callable[[], Any]:
    taken = running(store)
    return lambda: store.extend([taken], 30, now=at(1))


def _ack(store: BaseStore) -> Callable[[], Any]:
    taken = running(store)
    return lambda: store.ack([Ack(claim=taken, value="1")], now=at(1))


def _retry(store: BaseStore) -> Callable[[], Any]:
    taken = running(store)
    return lambda: store.retry(taken, 1, error(taken), now=at(1))


def _bury(store: BaseStore) -> Callable[[], Any]:
    taken = running(store)
    return lambda: store.bury(taken, DeathReason.TERMINAL, error(taken), now=at(1))


def _reclaim(store: BaseStore) -> Callable[[], Any]:
    running(store, lease_seconds=1)
    return lambda: store.reclaim(now=at(1))


def _lose(store: BaseStore) -> Callable[[], Any]:
    taken = running(store)
    return lambda: store.lose(taken.worker_id, "ended by signal 9", now=at(1))


def _cancel(store: BaseStore) -> Callable[[], Any]:
    job_id = insert(store)
    return lambda: store.cancel(job_id, now=at(1))


def _requeue(store: BaseStore) -> Callable[[], Any]:
    taken = dead(store)
    return lambda: store.requeue(taken.id, now=at(1))


def _purge(store: BaseStore) -> Callable[[], Any]:
    dead(store)
    return lambda: store.purge(1, now=at(1))


def _discard(store: BaseStore) -> Callable[[], Any]:
    taken = dead(store)
    return lambda: store.discard(taken.id)


def _pause(store: BaseStore) -> Callable[[], Any]:
    return lambda: (store.pause("default"), store.resume("default"))[1]


CALLS: Final[dict[str, Callable[[BaseStore], Callable[[], Any]]]] = {
    "insert": _insert,
    "insert of many": _insert_many,
    "promote": _promote,
    "claim": _claim,
    "extend": _extend,
    "ack": _ack,
    "retry": _retry,
    "bury": _bury,
    "reclaim": _reclaim,
    "lose": _lose,
    "cancel": _cancel,
    "requeue": _requeue,
    "purge": _purge,
    "discard": _discard,
    "pause": _pause,
}


@pytest.mark.parametrize("call", CALLS)
def test_a_deadlock_in_autocommit_is_tried_again(store: BaseStore, call: str) -> None:
    act = CALLS[call](store)
    failing = Failing(OWN_RETRIES)
    with connection.execute_wrapper(failing):
        assert act()
    assert failing.seen > OWN_RETRIES


@pytest.mark.parametrize("call", CALLS)
def test_a_deadlock_that_does_not_end_is_the_callers_after_a_few_tries(
    store: BaseStore, call: str
) -> None:
    act = CALLS[call](store)
    before = sound.rows()
    failing = Failing(99)
    with connection.execute_wrapper(failing), pytest.raises(Deadlock):
        act()
    assert failing.seen == OWN_RETRIES + 1
    assert sound.rows() == before


@pytest.mark.parametrize("call", CALLS)
def test_a_deadlock_in_a_callers_transaction_is_the_callers_at_once(
    store: BaseStore, call: str
) -> None:
    act = CALLS[call](store)
    failing = Failing(1)
    with (
        pytest.raises(Deadlock),
        transaction.atomic(),
        connection.execute_wrapper(failing),
    ):
        act()
    assert failing.seen == 1


def test_many_jobs_are_written_together_or_not_at_all(store: BaseStore) -> None:
    jobs = [new_job() for _ in range(501)]
    jobs[-1] = new_job(id=jobs[0].id)
    with pytest.raises(IntegrityError):
        store.insert(jobs, now=at(0))
    assert sound.rows()["live"] == {}


@pytest.mark.vendor("mysql")
# A discard names nothing but the primary key; the others begin with an INSERT.
@pytest.mark.parametrize(
    "call", sorted(CALLS.keys() - {"insert", "insert of many", "pause", "discard"})
)
def test_on_mariadb_rows_are_locked_by_primary_key_before_they_are_written(
    store: BaseStore, call: str
) -> None:
    act = CALLS[call](store)
    with CaptureQueriesContext(connection) as captured:
        act()
    statements = [query["sql"] for query in captured]
    written = next(n for n, sql in enumerate(statements) if sql.startswith(("UPDATE", "DELETE")))
    # What a claim locks is chosen within the statement that writes.
    locked = [sql for sql in statements[: written + 1] if "FOR UPDATE" in sql]
    assert locked
    assert all("FORCE INDEX (PRIMARY)" in sql for sql in locked)


class FailingTake:
    """Fails the second statement that takes rows."""

    seen = 0

    def __call__(
        self, execute: Callable[..., Any], sql: str, params: Any, many: Any, context: Any
    ) -> Any:
        if sql.startswith("UPDATE (SELECT"):
            self.seen += 1
            if self.seen == 2:
                raise Deadlock("deadlock")
        return execute(sql, params, many, context)


@pytest.mark.vendor("mysql")
def test_on_mariadb_a_deadlock_costs_a_claim_nothing_that_it_has_taken(store: BaseStore) -> None:
    ids = [insert(store, now=None) for _ in range(3)]
    other = connection.copy()
    failing = FailingTake()
    try:
        with other.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute(
                f"SELECT id FROM {LiveJob._meta.db_table} WHERE id = %s FOR UPDATE",
                [store.dump_uuid(ids[0])],
            )
            with connection.execute_wrapper(failing):
                # The first is locked, and the third was to come in its place.
                taken = claim(store, now=None, limit=2)
    finally:
        other.close()
    assert failing.seen == 2
    assert [each.id for each in taken] == ids[1:2]
    assert store.live().filter(state="running").count() == 1
    assert [each.id for each in claim(store, now=None, limit=9)] == [ids[0], ids[2]]


@pytest.mark.vendor("mysql")
@pytest.mark.parametrize("number", [1205, 1213])
def test_a_drivers_error_is_told_by_its_number_beside_any_sqlstate(number: int) -> None:
    # PyMySQL's errors have a SQLSTATE since 1.2, mysqlclient's have none.
    store = get_store()
    for sqlstate in (None, "40001", "HY000"):
        raised, cause = OperationalError(number, "deadlock"), Exception(number, "deadlock")
        raised.__cause__ = cause
        if sqlstate is not None:
            cause.sqlstate = sqlstate  # type: ignore[attr-defined]  # as the driver does
        assert store.is_conflict(raised)


@pytest.mark.vendor("postgresql")
@pytest.mark.parametrize("name", ["sqlstate", "pgcode"])
def test_a_drivers_error_is_told_by_its_sqlstate_whatever_the_driver_calls_it(name: str) -> None:
    # Seen with psycopg2, which calls it pgcode: no deadlock was tried again, and a server that
    # could not be written to was taken for a fault of the task.
    raised, cause = OperationalError("deadlock"), Exception("deadlock")
    raised.__cause__ = cause
    setattr(cause, name, "40P01")
    assert get_store().is_conflict(raised)
    setattr(cause, name, "25006")
    assert get_store().is_outage(raised)


@pytest.mark.vendor("mysql")
def test_a_real_deadlock_takes_the_callers_row_with_the_job() -> None:
    """Case O1: both rows or neither, and the caller sees the error."""
    keyed = app.echo.using(unique_key="k")
    Group.objects.create(name="wanted by both")
    has_the_key, has_the_row = threading.Event(), threading.Event()

    def rewrite() -> None:
        Group.objects.filter(name="wanted by both").update(name="wanted by both.")

    def heavier() -> str:
        """Write so much more that InnoDB makes the other one the victim."""
        with transaction.atomic():
            Group.objects.bulk_create([Group(name=f"order {n}") for n in range(200)])
            job_id: str = keyed.enqueue("heavier").id
            has_the_key.set()
            assert has_the_row.wait(PATIENCE_SECONDS)
            rewrite()
        return job_id

    other = in_thread(heavier)
    with pytest.raises(OperationalError) as caught, transaction.atomic():
        Group.objects.create(name="mine")
        rewrite()
        has_the_row.set()
        assert has_the_key.wait(PATIENCE_SECONDS)
        keyed.enqueue("mine")

    assert caught.value.args[0] == 1213
    job_id = other()
    assert [str(each) for each in sound.rows()["live"]] == [job_id]
    assert not Group.objects.filter(name="mine").exists()
    assert Group.objects.filter(name="wanted by both.").exists()
