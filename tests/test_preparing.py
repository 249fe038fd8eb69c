"""Prepared statements: where nothing stands between, and never at a job's cost."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from enum import Enum
from importlib.util import find_spec
from typing import Any

import pytest
import pytest_django
from django.core.exceptions import SynchronousOnlyOperation
from django.db import DatabaseError, connection, connections, transaction
from django.test import SimpleTestCase
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_workqueue.exceptions import UniqueKeyTaken
from django_workqueue.ids import new_token
from django_workqueue.models import LiveJob
from django_workqueue.states import Lane
from django_workqueue.store import Claim, get_store
from django_workqueue.store.postgresql import PostgreSQLStore
from django_workqueue.store.preparing import MOST_WITH_CONSTANTS, RUNS_BEFORE, Preparing
from tests.app import tasks as app
from tests.factories import T0, at, insert
from tests.sound import rows

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.vendor("postgresql"),
    pytest.mark.skipif(find_spec("psycopg") is None, reason="with psycopg 2 nothing is prepared"),
]

OWN = {"id", "enqueued_at", "run_after", "payload"}


@pytest.fixture(autouse=True)
def new_connection() -> Iterator[Preparing]:
    connection.close()
    store = get_store()
    assert isinstance(store, PostgreSQLStore)
    # A test before may have had it refused, or filled.
    store.prepares = True
    store._with_constants.clear()
    store._steady.clear()
    yield store
    store.prepares = True
    connection.close()


def statements(act: Callable[[], object]) -> list[str]:
    """Return the beginning of each statement of *act*."""
    with CaptureQueriesContext(connection) as captured:
        act()
    return [each["sql"].split()[0] for each in captured]


def enqueue(count: int) -> None:
    for number in range(count):
        app.echo.enqueue(number)


def waiting() -> list[Any]:
    return [row["payload"]["args"][0] for row in rows()["live"].values()]


def test_an_enqueue_is_prepared_once_a_connection_when_it_has_run_often() -> None:
    expected = ["INSERT"] * RUNS_BEFORE + ["SELECT", "PREPARE", "EXECUTE", "EXECUTE"]
    assert statements(lambda: enqueue(RUNS_BEFORE + 2)) == expected
    connection.close()
    assert statements(lambda: enqueue(RUNS_BEFORE + 2)) == expected


def test_in_a_transaction_that_django_knows_nothing_of_the_text_is_sent() -> None:
    # Where the name meant nothing, the error would end what the caller has begun.
    enqueue(RUNS_BEFORE + 1)
    with connection.cursor() as cursor:
        cursor.execute("DEALLOCATE ALL")
        cursor.execute("BEGIN")
        assert statements(lambda: enqueue(1)) == ["INSERT"]
        cursor.execute("COMMIT")
    assert len(waiting()) == RUNS_BEFORE + 2


def test_a_prepared_row_is_as_any_other() -> None:
    enqueue(RUNS_BEFORE + 3)
    first, *others = rows()["live"].values()
    for other in others:
        assert {name for name in first if first[name] != other[name]} <= OWN
        assert other["run_after"] == other["enqueued_at"]
    assert waiting() == list(range(RUNS_BEFORE + 3))


def test_no_text_ends_the_literal_that_holds_it() -> None:
    texts = ["it's", '"', "\\'", "\\", "%s %(id)s %%", "');--", "é 😀", "\n\t"]
    enqueue(RUNS_BEFORE + 1)
    with CaptureQueriesContext(connection) as captured:
        for text in texts:
            app.echo.enqueue(text)
    assert {each["sql"].split()[0] for each in captured} == {"EXECUTE"}
    assert waiting()[RUNS_BEFORE + 1 :] == texts


@pytest.mark.parametrize("conforming", ["on", "off"])
@pytest.mark.parametrize("encoding", ["UTF8", "BIG5", "EUC_JP", "GBK", "SJIS"])
def test_no_text_ends_its_literal_whatever_the_session_is_set_to(
    encoding: str, conforming: str, new_connection: Preparing
) -> None:
    """In some, the last byte of a letter would take the quote after it along."""
    with connection.cursor() as cursor:
        cursor.execute("SET client_encoding = %s", [encoding])
        cursor.execute("SET standard_conforming_strings = %s", [conforming])
    texts = [*map(str, range(RUNS_BEFORE + 1)), "功'", "能''), ('", "表\\'", "\\", "'"]
    often = app.echo.using(unique_key=lambda text: text)
    for text in texts:
        often.enqueue(text)
    assert waiting() == texts
    assert [row["unique_key"] for row in rows()["live"].values()] == texts
    assert new_connection.prepares


def test_a_cursor_in_use_is_not_used_by_another() -> None:
    enqueue(RUNS_BEFORE + 2)

    ids: list[str] = []

    def between(execute: Callable[..., Any], *given: Any) -> Any:
        if not ids:
            ids.append("begun")
            ids[0] = app.echo.enqueue("inner").id
        return execute(*given)

    with connection.execute_wrapper(between):
        outer = app.echo.enqueue("outer")
    assert outer.id != ids[0]
    assert {outer.id, ids[0]} <= {str(job_id) for job_id in rows()["live"]}
    assert sorted(waiting()[RUNS_BEFORE + 2 :]) == ["inner", "outer"]


def test_a_connection_that_was_closed_is_not_kept(new_connection: Preparing) -> None:
    enqueue(RUNS_BEFORE + 2)
    driver = weakref.ref(connection.connection)
    connection.close()
    enqueue(RUNS_BEFORE + 2)
    gc.collect()
    assert driver() is None
    assert waiting() == [*range(RUNS_BEFORE + 2)] * 2


def test_a_prepared_enqueue_is_refused_in_a_loop_of_coroutines() -> None:
    """As what goes through a cursor of Django's is: it would stop the loop."""
    enqueue(RUNS_BEFORE + 2)

    async def call() -> None:
        app.echo.enqueue(1)

    with pytest.raises(SynchronousOnlyOperation):
        asyncio.run(call())
    assert len(waiting()) == RUNS_BEFORE + 2


def test_a_prepared_enqueue_is_refused_where_tests_shut_the_database_off(
    django_db_blocker: pytest_django.DjangoDbBlocker,
) -> None:
    enqueue(RUNS_BEFORE + 2)
    with django_db_blocker.block(), pytest.raises(RuntimeError, match="not allowed"):
        app.echo.enqueue(1)

    class Simple(SimpleTestCase):
        pass

    Simple.setUpClass()
    try:
        with pytest.raises(AssertionError, match="not allowed"):
            app.echo.enqueue(1)
    finally:
        Simple.doClassCleanups()
    assert len(waiting()) == RUNS_BEFORE + 2


def test_a_prepared_enqueue_is_refused_on_the_connection_of_another_thread() -> None:
    enqueue(RUNS_BEFORE + 2)
    mine, errors = connections["default"], []

    def call() -> None:
        connections["default"] = mine
        try:
            app.echo.enqueue(1)
        except DatabaseError as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert ["created in a thread" in str(error) for error in errors] == [True]
    assert len(waiting()) == RUNS_BEFORE + 2


def test_a_connection_of_a_pool_keeps_what_was_prepared_from_hand_to_hand(
    new_connection: Preparing,
) -> None:
    enqueue(RUNS_BEFORE + 2)
    mine = connections["default"]
    other = mine.copy()
    other.connection, other.autocommit = mine.connection, True
    connections["default"] = other
    try:
        assert statements(lambda: enqueue(1)) == ["EXECUTE"]
    finally:
        connections["default"] = mine
        other.connection = None
    assert statements(lambda: enqueue(1)) == ["EXECUTE"]
    assert new_connection.prepares


def test_every_option_is_stored_as_given() -> None:
    often = app.echo.using(
        priority=-3, max_attempts=7, timeout=0.25, expires=60, result_ttl=0, dead_letter=False,
        headers={"n": 1}, unique_key=lambda number: f"key {number} '\\",
        queue_name="a'b%c%(task)s\\",
    )  # fmt: skip
    for number in range(RUNS_BEFORE + 2):
        often.enqueue(number)
    first, *others = rows()["live"].values()
    for other in others:
        own = {"unique_key", "unique_hash", "expires_at"}
        assert {name for name in first if first[name] != other[name]} <= OWN | own
        assert (other["expires_at"] - other["enqueued_at"]).total_seconds() == 60


class Name(str, Enum):  # noqa: UP042  # what projects have, and what str() shows by its class
    EAST = "east"


def test_a_member_of_an_enum_is_stored_as_the_text_it_is(new_connection: Preparing) -> None:
    # The literal must be right for the queue's name too, which is no constant for all tasks.
    new_connection._with_constants |= {(number,): "" for number in range(MOST_WITH_CONSTANTS)}
    often = app.echo.using(queue_name=Name.EAST, unique_key=lambda number: Name.EAST)
    for number in range(RUNS_BEFORE + 2):
        often.enqueue(number)
        (row,) = rows()["live"].values()
        assert (row["queue_name"], row["unique_key"]) == ("east", "east")
        LiveJob.objects.all().delete()
    app.echo.using(unique_key=lambda key: key).enqueue_many([((Name.EAST,), {}), (("b",), {})])
    assert {row["unique_key"] for row in rows()["live"].values()} == {"east", "b"}


def test_what_is_the_same_in_all_calls_of_a_task_is_no_parameter() -> None:
    for queue_name in ("default", "other"):
        often = app.echo.using(queue_name=queue_name)
        for number in range(RUNS_BEFORE + 1):
            often.enqueue(number)
    with CaptureQueriesContext(connection) as captured:
        app.echo.enqueue("a")
        app.echo.using(queue_name="other").enqueue("b")
    for each in captured:
        assert each["sql"].startswith("EXECUTE")
        assert each["sql"].count(", ") == 1, each["sql"]
    stored = [row for row in rows()["live"].values() if row["queue_name"] == "other"]
    assert [row["payload"]["args"] for row in stored] == [
        *([number] for number in range(RUNS_BEFORE + 1)),
        ["b"],
    ]


def test_of_very_many_tasks_those_that_are_too_many_share_one_statement(
    new_connection: Preparing,
) -> None:
    """The server keeps each in memory, for each connection."""
    for number in range(MOST_WITH_CONSTANTS + RUNS_BEFORE + 2):
        app.echo.using(queue_name=f"queue {number}").enqueue(number)
    last = app.echo.using(queue_name="one more")
    assert statements(lambda: last.enqueue("last")) == ["EXECUTE"]
    assert waiting()[-1] == "last"
    known = new_connection._known[connection.connection]
    assert len(known) == MOST_WITH_CONSTANTS + 1


def test_a_taken_key_is_found_by_a_prepared_statement_too() -> None:
    for number in range(RUNS_BEFORE + 2):
        app.echo.using(unique_key=f"k{number}").enqueue(number)
    with pytest.raises(UniqueKeyTaken):
        app.echo.using(unique_key="k0", on_conflict="raise").enqueue(0)
    assert len(waiting()) == RUNS_BEFORE + 2


def test_nothing_is_prepared_or_executed_in_a_transaction() -> None:
    enqueue(RUNS_BEFORE + 1)
    with transaction.atomic():
        assert set(statements(lambda: enqueue(RUNS_BEFORE + 2))) == {"INSERT"}


def test_nothing_is_prepared_where_another_process_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection.ensure_connection()
    info: Any = type(connection.connection.info)
    monkeypatch.setattr(info, "backend_pid", property(lambda self: 1))
    seen = statements(lambda: enqueue(RUNS_BEFORE + 3))
    assert seen == ["INSERT"] * RUNS_BEFORE + ["SELECT"] + ["INSERT"] * 3


def test_nothing_is_prepared_where_django_was_told_of_a_pooler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(connection.settings_dict, "DISABLE_SERVER_SIDE_CURSORS", True)
    assert set(statements(lambda: enqueue(RUNS_BEFORE + 3))) == {"INSERT"}


def test_nothing_is_prepared_by_name_where_django_binds_at_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "server_side_binding", True)
    assert set(statements(lambda: enqueue(RUNS_BEFORE + 3))) == {"INSERT"}


def test_a_cursor_that_binds_at_the_server_loses_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db.backends.postgresql.base import ServerBindingCursor

    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "cursor_factory", ServerBindingCursor)
    enqueue(RUNS_BEFORE + 3)
    assert waiting() == list(range(RUNS_BEFORE + 3))


@pytest.mark.parametrize("gone", ["DEALLOCATE ALL", "DISCARD ALL"])
def test_a_statement_that_is_gone_loses_no_job_and_is_never_prepared_again(
    gone: str, new_connection: Preparing
) -> None:
    enqueue(RUNS_BEFORE + 1)
    with connection.cursor() as cursor:
        cursor.execute(gone)
    assert statements(lambda: enqueue(2)) == ["EXECUTE", "INSERT", "INSERT"]
    connection.close()
    assert set(statements(lambda: enqueue(RUNS_BEFORE + 2))) == {"INSERT"}
    assert LiveJob.objects.count() == 2 * RUNS_BEFORE + 5


def test_a_statement_that_cannot_be_prepared_loses_no_job(new_connection: Preparing) -> None:
    # A moment that stands for the clock, as tests give it, has no type that the server can tell.
    for number in range(RUNS_BEFORE + 2):
        content = f'{{"args":[{number}],"kwargs":{{}}}}'
        insert(get_store(), now=T0, run_after=at(5), payload=content)
    assert waiting() == list(range(RUNS_BEFORE + 2))
    assert not new_connection.prepares


def test_a_name_that_the_servers_connection_knows_already_loses_no_job() -> None:
    """As behind a pooler that is not seen: another client has prepared the same there."""
    enqueue(RUNS_BEFORE)
    store = get_store()
    enqueue(1)
    assert isinstance(store, Preparing)
    store._known.clear()
    enqueue(RUNS_BEFORE + 2)
    assert waiting() == [*range(RUNS_BEFORE), 0, *range(RUNS_BEFORE + 2)]
    assert not store.prepares


def claim_one() -> list[Claim]:
    token = new_token()
    return get_store().claim(
        Lane.TASK, "default", worker_id="w1", token=token, limit=1, lease_seconds=30
    )


def test_a_claim_of_one_job_is_prepared_and_takes_what_another_would() -> None:
    assert statements(lambda: [claim_one() for _ in range(RUNS_BEFORE + 2)])[-1] == "EXECUTE"
    enqueue(2)
    (first,), (second,) = claim_one(), claim_one()
    assert [each.payload for each in (first, second)] == [
        '{"args":[0],"kwargs":{}}',
        '{"args":[1],"kwargs":{}}',
    ]
    assert claim_one() == []


@pytest.mark.parametrize("analyzed", [False, True])
def test_a_prepared_claim_walks_the_index_however_large_the_table_has_become(
    *, analyzed: bool
) -> None:
    for _ in range(3 * RUNS_BEFORE):
        claim_one()
    for queue_name in ("default", "other"):
        for later in ({}, {"run_after": timezone.now() + timedelta(hours=1)}):
            app.echo.using(queue_name=queue_name, **later).enqueue_many([((1,), {})] * 3000)
    if analyzed:
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")
    plans: list[str] = []

    def explain(execute: Callable[..., Any], sql: str, *more: Any) -> Any:
        execute(f"EXPLAIN {sql}", *more)
        plans.append("\n".join(row[0] for row in more[-1]["cursor"].fetchall()))
        return execute(sql, *more)

    with connection.execute_wrapper(explain):
        assert len(claim_one()) == 1
    (plan,) = plans
    # One plan for all parameters, not one for those that were given.
    assert "$1" in plan
    assert "Index Scan using workqueue_live_ready" in plan
    assert "Sort" not in plan
    assert "Seq Scan on workqueue_livejob" not in plan
