"""A project that listens to every model's signals changes nothing of what the store deletes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from django.db import connection
from django.db.models.signals import post_delete, pre_delete
from django.test.utils import CaptureQueriesContext

from django_workqueue.states import DeathReason
from django_workqueue.store import BaseStore
from tests.factories import at, dead, error, finished, insert, running


@pytest.fixture(autouse=True)
def _listening() -> Iterator[None]:
    """Listen as an audit log or a search index does: to all models."""

    def receiver(**_: Any) -> None:
        pass

    pre_delete.connect(receiver)
    post_delete.connect(receiver)
    yield
    pre_delete.disconnect(receiver)
    post_delete.disconnect(receiver)


def _bury(store: BaseStore) -> Callable[[], Any]:
    taken = running(store)
    return lambda: store.bury(taken, DeathReason.TERMINAL, error(taken), now=at(1))


def _bury_cancelled(store: BaseStore) -> Callable[[], Any]:
    taken = running(store)
    store.cancel(taken.id, now=at(0))
    return lambda: store.release(taken, now=at(1))


def _reclaim(store: BaseStore) -> Callable[[], Any]:
    taken = running(store, max_attempts=1, lease_seconds=1)
    store.mark_started([taken], now=at(0))
    return lambda: store.reclaim(now=at(1))


def _expire(store: BaseStore) -> Callable[[], Any]:
    insert(store, expires_seconds=1)
    return lambda: store.expire(now=at(1))


def _cancel(store: BaseStore) -> Callable[[], Any]:
    job_id = insert(store)
    return lambda: store.cancel(job_id, now=at(1))


def _requeue(store: BaseStore) -> Callable[[], Any]:
    taken = dead(store)
    return lambda: store.requeue(taken.id, now=at(1))


def _discard(store: BaseStore) -> Callable[[], Any]:
    taken = dead(store)
    return lambda: store.discard(taken.id)


def _purge(store: BaseStore) -> Callable[[], Any]:
    dead(store)
    finished(store, result_ttl=1.0)
    return lambda: store.purge(1, now=at(1))


MOVES: Final[dict[str, tuple[Callable[[BaseStore], Callable[[], Any]], str]]] = {
    "bury": (_bury, "token"),
    "end of a cancelled run": (_bury_cancelled, "token"),
    "reclaim": (_reclaim, "lease_expires_at"),
    "expire": (_expire, "expires_at"),
    "cancel": (_cancel, "fence"),
    "requeue": (_requeue, "died_at"),
    "discard": (_discard, "id"),
    "purge": (_purge, "expires_at"),
}


@pytest.mark.parametrize("move", MOVES)
def test_a_delete_restates_its_condition_whoever_listens(store: BaseStore, move: str) -> None:
    # I9: QuerySet.delete() would read the rows, tell the listeners, and delete by id alone.
    make, condition = MOVES[move]
    call = make(store)
    with CaptureQueriesContext(connection) as queries:
        call()
    deletes = [each["sql"] for each in queries if each["sql"].startswith("DELETE")]
    assert deletes
    for sql in deletes:
        assert condition in sql or "died_at" in sql
