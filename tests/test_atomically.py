"""`atomically`: with atomic=True a task's writes and its completion are one transaction (G8)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, connection, transaction

from django_workqueue import atomically, clock, conf
from django_workqueue.exceptions import Retry, Snooze
from django_workqueue.job import Job, Outcome
from django_workqueue.models import LiveJob, Result
from django_workqueue.states import DeathReason
from django_workqueue.store import get_store
from tests import jobs
from tests.jobs import app, body
from tests.threads import in_thread
from tests.timescale import LEASE_SECONDS

pytestmark = pytest.mark.usefixtures("transactional_db")


def enqueue(function: Callable[..., Any], **options: Any) -> Any:
    return app.run_atomically.using(**options).enqueue(body(function))


def write() -> str:
    Group.objects.create(name="written")
    return "done"


def written() -> int:
    return Group.objects.count()


def run(result: Any, lease_seconds: float = 30.0) -> Outcome | None:
    """Claim the job of *result* and run it, in this thread; return its outcome."""
    (claim,) = jobs.claim(lease_seconds=lease_seconds)
    assert str(claim.id) == result.id
    return atomically.execute_atomically(Job(claim), conf.current(), lease_seconds)


def error_of_the_only_death(result: Any) -> Any:
    jobs.drain()
    dead = jobs.dead(result)
    assert dead.attempt == 1
    return dead.errors[0]


# Together


def test_others_see_the_writes_and_the_completion_together() -> None:
    result = enqueue(write)
    statements: list[str] = []
    seen: set[tuple[int, int]] = set()

    def look(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        answer = execute(sql, params, many, context)
        statements.append(sql)
        seen.add(in_thread(lambda: (written(), Result.objects.count()))())
        return answer

    with connection.execute_wrapper(look):
        run(result)

    assert seen == {(0, 0)}
    assert (written(), jobs.finished(result).value) == (1, "done")
    # The completion is the last of them, and nothing before it touched the job's row.
    begun = next(number for number, sql in enumerate(statements) if "auth_group" in sql)
    ended = next(number for number, sql in enumerate(statements) if "workqueue_result" in sql)
    before, completion = statements[begun:ended], statements[ended:]
    assert not [sql for sql in before if "workqueue_livejob" in sql and "SELECT" not in sql[:7]]
    assert [sql for sql in completion if "auth_group" in sql] == []
    assert any("DELETE" in sql and "workqueue_livejob" in sql for sql in completion)


def test_a_run_that_was_superseded_rolls_back() -> None:
    result = enqueue(write)
    (stale,) = jobs.claim(lease_seconds=30)
    get_store().reclaim(now=jobs.live(result).lease_expires_at)
    (newer,) = jobs.claim(lease_seconds=30)
    job = Job(stale)

    atomically.execute_atomically(job, conf.current(), 30)

    assert written() == 0
    assert job.lease_lost.is_set()
    assert jobs.live(result).token == newer.token
    assert not Result.objects.exists()


@pytest.mark.parametrize(
    ("error", "state"),
    [(ValueError("no"), "scheduled"), (Retry(after=60), "scheduled"), (Snooze(60), "scheduled")],
    ids=["an error", "a retry", "a snooze"],
)
def test_an_error_rolls_back_and_is_recorded_afterwards(error: Exception, state: str) -> None:
    def fail() -> None:
        write()
        raise error

    result = enqueue(fail)
    jobs.drain(max_jobs=1)

    assert written() == 0
    job = jobs.live(result)
    snoozed = isinstance(error, Snooze)
    assert (job.state, job.attempt) == (state, 0 if snoozed else 1)
    assert jobs.outcomes(job.errors) == ([] if snoozed else ["failed"])


def test_a_value_that_cannot_be_stored_rolls_back_the_work_with_it() -> None:
    def hostile() -> float:
        write()
        return float("nan")

    result = enqueue(hostile)
    jobs.drain()

    assert written() == 0
    assert jobs.dead(result).reason == DeathReason.UNSTORABLE_RESULT


def test_a_job_that_it_enqueues_exists_if_it_commits() -> None:
    def enqueue_and_fail() -> None:
        app.echo.enqueue("rolled back")
        raise ValueError

    enqueue(enqueue_and_fail, max_attempts=1)
    enqueue(lambda: app.echo.enqueue("kept").id)

    jobs.drain()

    values = list(Result.objects.values_list("value", flat=True))
    assert "kept" in values
    assert "rolled back" not in values


# What a body may do inside


def test_an_inner_atomic_is_a_savepoint() -> None:
    def nest() -> str:
        with transaction.atomic():
            write()
        try:
            with transaction.atomic():
                Group.objects.create(name="written")
        except IntegrityError:
            return "went on"
        return "no error"

    result = enqueue(nest)
    jobs.drain()

    assert (written(), jobs.finished(result).value) == (1, "went on")


def test_durable_inside_says_why_it_cannot() -> None:
    def durable() -> None:
        write()
        with transaction.atomic(durable=True):
            pass

    error = error_of_the_only_death(enqueue(durable, max_attempts=1))

    assert written() == 0
    assert "already runs in a transaction; leave durable=True out" in error["message"]


def test_a_body_that_went_on_after_a_database_error_is_told_what_to_do() -> None:
    Group.objects.create(name="written")

    def go_on() -> str:
        try:
            with transaction.atomic(savepoint=False):
                Group.objects.create(name="written")
        except IntegrityError:
            pass
        return "as if nothing had happened"

    error = error_of_the_only_death(enqueue(go_on, max_attempts=1))

    assert error["exception_class"].endswith("TransactionBroken")
    assert not Result.objects.exists()


def test_a_hook_that_raises_after_the_commit_makes_no_failure_of_a_success(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def hook() -> None:
        raise ValueError("of the hook")

    def with_hook() -> str:
        write()
        transaction.on_commit(hook)
        return "done"

    result = enqueue(with_hook)
    with caplog.at_level(logging.ERROR):
        jobs.drain()

    assert (written(), jobs.finished(result).value) == (1, "done")
    assert jobs.logged(caplog) == ["hook after the commit failed"]


@pytest.mark.parametrize("leave", [lambda: transaction.set_autocommit(True), connection.close])
def test_a_body_that_ends_the_transaction_itself_finishes_nothing(
    leave: Callable[[], None],
) -> None:
    def end_it() -> str:
        write()
        leave()
        return "done"

    result = enqueue(end_it, max_attempts=1)
    jobs.drain()
    # Whatever it became, the next job on that thread is not harmed.
    after = jobs.enqueue(lambda: "ran")
    jobs.drain()

    assert jobs.finished(after).value == "ran"
    assert not LiveJob.objects.filter(pk=result.id).exists()
    assert written() == Result.objects.filter(pk=result.id).count()


# How long it may take


@pytest.mark.vendor("sqlite")
def test_on_sqlite_a_run_is_bounded_by_half_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the only write lock, and no lease can be extended meanwhile."""
    now = [0.0]
    monkeypatch.setattr(clock, "monotonic", lambda: now[0])

    def slow() -> None:
        write()
        now[0] = 15.1
        Group.objects.create(name="late")

    result = enqueue(slow, max_attempts=1)
    outcome = run(result, lease_seconds=30.0)

    assert written() == 0
    assert outcome is not None
    assert outcome.error is not None
    assert outcome.error.exception_class.endswith("TransactionTooLong")


@pytest.fixture(params=["the default level", "REPEATABLE READ"])
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let connections opened from now on begin their transactions at that isolation level."""
    level: str = request.param
    if level == "the default level":
        return level
    wanted: Any = level.lower()
    if connection.vendor == "postgresql":
        from psycopg import IsolationLevel

        wanted = IsolationLevel.REPEATABLE_READ
    elif connection.vendor == "sqlite":
        pytest.skip("SQLite has no levels to choose from")
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "isolation_level", wanted)
    connection.close()
    return level


def look_twice() -> list[int]:
    """Count rows before and after another connection writes one."""
    before = written()
    in_thread(write)()
    return [before, written()]


@pytest.mark.vendor("postgresql", "mysql")
def test_a_run_sees_what_others_commit_meanwhile_at_any_level(level: str) -> None:
    result = enqueue(look_twice)

    run(result)

    assert jobs.finished(result).value == [0, 1]


@pytest.mark.vendor("postgresql", "mysql")
def test_the_control_at_repeatable_read_a_plain_transaction_does_not(level: str) -> None:
    with transaction.atomic():
        seen = look_twice()

    assert seen == ([0, 0] if level == "REPEATABLE READ" else [0, 1])


def test_o8_a_run_of_three_leases_and_seven_plain_ones_beside_it_start_once(level: str) -> None:
    """Case O8: eight jobs of one process that tell their progress; on SQLite to its bound."""
    leases = 0.4 if connection.vendor == "sqlite" else 1.5 if level == "REPEATABLE READ" else 3.0
    pause = leases * LEASE_SECONDS / 10
    starts: list[str] = []
    never = threading.Event()

    def work(context: Any, name: str) -> str:
        starts.append(name)
        if name == "atomic":
            write()
        for done in range(10):
            context.progress(done, 10)
            never.wait(pause)
        return name

    name = body(work)
    names = ["atomic", *(f"plain {number}" for number in range(7))]
    app.run_with_context_atomically.enqueue(name, names[0])
    for each in names[1:]:
        app.run_with_context.enqueue(name, each)
    with jobs.workqueue(SWEEP_SECONDS=0.1):
        jobs.drain(threads=8, sweep=True, lease_seconds=LEASE_SECONDS)

    assert sorted(starts) == names
    rows: Any = Result.objects.values_list("attempts", "errors")
    assert list(rows) == [(1, [])] * 8
    assert written() == 1


@pytest.mark.vendor("mysql")
def test_a_run_whose_transaction_was_rolled_back_behind_its_back_is_none() -> None:
    """As a deadlock does whose error the task catches: what it wrote before is gone."""

    def goes_on() -> None:
        Group.objects.create(name="before")
        with connection.cursor() as cursor:
            cursor.execute("ROLLBACK")
        Group.objects.create(name="after")

    result = enqueue(goes_on, max_attempts=1)

    assert error_of_the_only_death(result)["exception_class"].endswith("TransactionBroken")
    assert not Group.objects.exists()
