"""`notifying`, `wakeup`: work is told of, and nothing rests on it (I6). Here no poll helps."""

from __future__ import annotations

import contextlib
import logging
import select
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_workqueue import wakeup, watching
from django_workqueue.store import get_store
from django_workqueue.store.postgresql import CHANNEL
from django_workqueue.wakeup import postgresql as listening
from django_workqueue.wakeup import sqlite as looking
from tests import jobs
from tests.jobs import app
from tests.threads import in_thread
from tests.timescale import PATIENCE_SECONDS, SCALE

pytestmark = pytest.mark.usefixtures("transactional_db")

postgresql = pytest.mark.vendor("postgresql")


class Failed(Exception):
    """Ends a transaction of these tests."""


def statements(act: Callable[[], Any]) -> list[str]:
    with CaptureQueriesContext(connection) as captured:
        act()
    return [query["sql"] for query in captured]


def in_a_transaction() -> None:
    with transaction.atomic():
        for number in range(5):
            app.echo.enqueue(number)
        app.echo.enqueue_many([((number,), {}) for number in range(5)])


def many() -> None:
    app.echo.enqueue_many([((number,), {}) for number in range(5)])


# Who is told, and when


@postgresql
def test_an_enqueue_in_autocommit_inserts_and_tells_in_one_statement() -> None:
    (statement,) = statements(lambda: app.echo.enqueue(1))

    assert "INSERT INTO" in statement
    assert statement.count("pg_notify") == 1


@postgresql
@pytest.mark.parametrize("act", [in_a_transaction, many])
def test_a_transaction_tells_once_after_its_commit(act: Callable[[], None]) -> None:
    seen = statements(act)

    told = [number for number, each in enumerate(seen) if "pg_notify" in each]
    assert told == [len(seen) - 1]
    assert "COMMIT" in seen[-2]


@postgresql
def test_a_savepoint_that_rolls_back_does_not_take_the_telling_of_the_others_along() -> None:
    def inner_fails() -> None:
        with transaction.atomic():
            with pytest.raises(Failed), transaction.atomic():
                app.echo.enqueue("rolled back")
                raise Failed
            app.echo.enqueue("kept")

    def all_fail() -> None:
        with pytest.raises(Failed), transaction.atomic():
            app.echo.enqueue("rolled back")
            raise Failed

    assert sum("pg_notify" in each for each in statements(inner_fails)) == 1
    assert sum("pg_notify" in each for each in statements(all_fail)) == 0


@pytest.mark.parametrize("act", [lambda: app.echo.enqueue(1), many, in_a_transaction])
def test_without_notify_nobody_is_told(act: Callable[[], None]) -> None:
    """Case E 110. Databases other than PostgreSQL cannot tell."""
    with jobs.workqueue(NOTIFY=False):
        assert not [each for each in statements(act) if "pg_notify" in each]


@pytest.fixture
def full_queue() -> Iterator[None]:
    """Let the server refuse every notification, as one whose queue of them is full does."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION public.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS "
            "'BEGIN RAISE program_limit_exceeded USING MESSAGE = ''too many notifications in the "
            "NOTIFY queue''; END'"
        )
        cursor.execute("SET search_path = public, pg_catalog")
    yield
    with connection.cursor() as cursor:
        cursor.execute("RESET search_path")
        cursor.execute("DROP FUNCTION public.pg_notify(text, text)")


@postgresql
@pytest.mark.parametrize(
    ("act", "count"), [(lambda: app.echo.enqueue(1), 1), (many, 5), (in_a_transaction, 10)]
)
def test_a_notification_that_fails_loses_no_job_and_fails_no_caller(
    act: Callable[[], None], count: int, full_queue: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Case E 110."""
    act()

    assert jobs.counts() == (count, 0, 0)
    assert jobs.logged(caplog) == ["notification failed; a poll finds the job"]


# Who listens


def waiting(timeout: float) -> Callable[[], bool]:
    """Wait in another thread; what is returned waits for it, and tells whether it was woken.

    It listens when this returns.
    """
    attached = threading.Event()

    def wait() -> bool:
        hint = wakeup.wakeup_for(get_store())
        try:
            hint.attach()
            assert hint.trusted
            attached.set()
            return hint.wait(timeout)
        finally:
            hint.close()

    outcome = in_thread(wait)
    assert attached.wait(PATIENCE_SECONDS)
    return outcome


@pytest.mark.vendor("postgresql", "sqlite")
@pytest.mark.parametrize("act", [lambda: app.echo.enqueue(1), many, in_a_transaction])
def test_a_waiting_worker_is_woken_by_an_enqueue(act: Callable[[], None]) -> None:
    woken = waiting(PATIENCE_SECONDS)
    began = time.monotonic()

    act()

    assert woken()
    assert time.monotonic() - began < 2 * SCALE


@pytest.mark.vendor("postgresql", "sqlite")
def test_the_control_without_an_enqueue_nobody_is_woken() -> None:
    assert not waiting(0.2)()


@postgresql
def test_a_transaction_that_rolls_back_wakes_nobody() -> None:
    woken = waiting(0.3)

    with pytest.raises(Failed), transaction.atomic():
        app.echo.enqueue("rolled back")
        raise Failed

    assert not woken()


@pytest.mark.vendor("postgresql", "sqlite")
def test_a_queue_of_any_name_wakes_who_waits() -> None:
    """Case E 109: a channel has 63 bytes, a notification 8,000."""
    woken = waiting(PATIENCE_SECONDS)
    name = "очередь" * 36 + "東京!"
    assert len(name.encode()) > 255

    result = app.echo.using(queue_name=name).enqueue("x" * 20_000)

    assert woken()
    assert jobs.live(result).queue_name == name
    assert len(CHANNEL.encode()) <= 63


@postgresql
def test_behind_a_pooler_where_no_notification_arrives_a_worker_polls(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Case E 108: a pooler in transaction mode answers LISTEN, and nothing ever comes."""
    monkeypatch.setattr(listening.PostgreSQLWakeup, "_take", lambda hint: [])
    monkeypatch.setattr(listening, "PROOF_SECONDS", 0.05)
    result = app.echo.enqueue("polled")

    jobs.drain()

    assert jobs.finished(result).value == "polled"
    assert "notifications do not arrive; polling" in jobs.logged(caplog)


@postgresql
def test_no_lock_of_a_session_is_taken_for_a_job(caplog: pytest.LogCaptureFixture) -> None:
    """Case E 108: behind a pooler it would stay with whoever comes next."""
    app.echo.enqueue(1)
    with caplog.at_level(logging.DEBUG, logger="django.db.backends"):
        seen = statements(lambda: jobs.drain(sweep=True))

    assert seen
    assert not [each for each in seen if "advisory" in each.lower()]


@pytest.mark.vendor("sqlite")
def test_a_file_that_cannot_be_read_ends_a_wait_and_no_worker(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "file", timeout=0)) as writer:
        writer.execute("CREATE TABLE t (x)")
        store = get_store()
        woken = looking.SQLiteWakeup(store)
        woken.attach()
        own = woken._connection
        own.connection.close()
        own.connection = sqlite3.connect(tmp_path / "file", timeout=0)
        woken._version = woken._read_version()
        # Without a write-ahead log, as SQLite is by default, a commit keeps readers out as well.
        writer.execute("BEGIN EXCLUSIVE")

        assert (woken.wait(PATIENCE_SECONDS), woken.trusted) == (True, False)

        writer.rollback()
    woken.attach()
    assert woken.trusted
    woken.close()


@pytest.mark.vendor("sqlite")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the system tells of no writes")
def test_a_commit_wakes_though_nobody_looks_by_himself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "WATCHED_SECONDS", 10 * PATIENCE_SECONDS)
    for _ in range(3):
        # The last wake-up's rest is over before the next: a write is told of, whenever it comes.
        time.sleep(looking.QUIET_SECONDS)
        woken = waiting(PATIENCE_SECONDS)
        app.echo.enqueue(1)
        assert woken()


@pytest.mark.vendor("sqlite")
def test_where_the_system_tells_of_no_writes_a_worker_looks_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watching.FileWatch, "watch", lambda files, paths: False)
    woken = waiting(PATIENCE_SECONDS)

    app.echo.enqueue(1)

    assert woken()


@pytest.mark.vendor("sqlite")
def test_a_file_in_another_ones_place_is_watched_from_then_on(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    files = watching.FileWatch()
    assert files.descriptor is not None
    assert files.watch([str(path)])

    path.unlink()
    assert files.take()
    path.write_text("new")
    assert files.watch([str(path)])
    with path.open("a") as file:
        file.write("er")

    assert select.select([files.descriptor], [], [], PATIENCE_SECONDS)[0]
    assert not files.take()
    files.close()
    assert not files.watch([str(path)])


@pytest.mark.vendor("sqlite")
def test_what_came_before_a_look_for_work_wakes_no_more() -> None:
    hint = wakeup.wakeup_for(get_store())
    hint.attach()
    app.echo.enqueue(1)

    hint.catch_up()

    assert not hint.wait(2 * looking.QUIET_SECONDS)
    app.echo.enqueue(2)
    assert hint.wait(PATIENCE_SECONDS)
    hint.close()
