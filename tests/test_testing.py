"""`testing`: what is due runs inside the test's own transaction, as a worker would run it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, connection, transaction
from django.test import TestCase

from django_workqueue.compat import TaskResultStatus, task_finished
from django_workqueue.exceptions import InTransaction, UnknownTask
from django_workqueue.locks import lock
from django_workqueue.models import LiveJob
from django_workqueue.store import get_store
from django_workqueue.tasks import Retry, Snooze, Terminal
from django_workqueue.testing import MovedClock, assert_enqueued, moved_clock, run_jobs
from django_workqueue.testing.fixture import WorkQueue
from tests import jobs
from tests.jobs import app, body, raising

READY, FAILED = TaskResultStatus.READY, TaskResultStatus.FAILED


@pytest.fixture
def clock(db: None) -> Iterator[MovedClock]:
    with moved_clock() as moved:
        yield moved


def make_group(name: str) -> None:
    Group.objects.create(name=name)


def groups() -> list[str]:
    return sorted(Group.objects.values_list("name", flat=True))


class InsideTestCase(TestCase):
    """Case D 98: no TransactionTestCase is needed, on two databases at once too."""

    databases = {"default", "other"}  # noqa: RUF012  # as Django has it

    def test_job_runs_in_the_transaction_of_the_test(self) -> None:
        result = jobs.enqueue(make_group, "made")
        (ran,) = run_jobs()
        assert groups() == ["made"]
        assert (ran.id, ran.status) == (result.id, TaskResultStatus.SUCCESSFUL)
        result.refresh()
        assert result.status == TaskResultStatus.SUCCESSFUL
        assert connection.in_atomic_block

    def test_the_test_before_left_nothing(self) -> None:
        assert (groups(), jobs.counts()) == ([], (0, 0, 0))

    test_nor_did_this_one = test_job_runs_in_the_transaction_of_the_test

    def test_hooks_of_the_code_are_left_to_django(self) -> None:
        def later() -> None:
            jobs.enqueue(make_group, "by a hook")

        with self.captureOnCommitCallbacks(execute=True) as callbacks:
            transaction.on_commit(later)
            jobs.enqueue(make_group, "made")
            run_jobs()
            assert groups() == ["made"]
        assert later in callbacks
        run_jobs()
        assert groups() == ["by a hook", "made"]


@pytest.mark.django_db
def test_arguments_and_values_go_through_json() -> None:
    seen: list[Any] = []

    def note(*args: Any) -> Any:
        seen.append(args)
        return args

    result = jobs.enqueue(note, (1, 2), {3: "x"})
    (ran,) = run_jobs()
    assert seen == [([1, 2], {"3": "x"})]
    assert ran.return_value == [[1, 2], {"3": "x"}]
    assert json.dumps(jobs.finished(result).value) == '[[1, 2], {"3": "x"}]'


@pytest.mark.django_db
def test_coroutines_run_too() -> None:
    async def double(number: int) -> int:
        return 2 * number

    app.arun.enqueue(body(double), 4)
    assert [ran.return_value for ran in run_jobs()] == [8]


@pytest.mark.django_db
def test_jobs_run_in_the_order_of_a_worker_and_those_they_enqueue_too() -> None:
    seen: list[str] = []

    def first() -> None:
        seen.append("first")
        jobs.enqueue(lambda: seen.append("from the first"))

    jobs.enqueue(lambda: seen.append("last"), priority=-5)
    jobs.enqueue(first, priority=5)
    assert len(run_jobs()) == 3
    assert seen == ["first", "from the first", "last"]


@pytest.mark.django_db
def test_only_queues_asked_for_run_and_paused_ones_do_not() -> None:
    for name in ("a", "b", "c"):
        jobs.enqueue(list, queue_name=name)
    assert [ran.task.queue_name for ran in run_jobs(queues=["c"])] == ["default"]
    assert sorted(LiveJob.objects.values_list("queue_name", flat=True)) == ["a", "b"]
    get_store().pause("a", until=None, reason="")
    run_jobs()
    assert list(LiveJob.objects.values_list("queue_name", flat=True)) == ["a"]


@pytest.mark.django_db
def test_error_of_a_task_is_raised_where_the_test_stands() -> None:
    result = app.run.enqueue(raising(ValueError("boom")))
    with pytest.raises(ValueError, match="boom") as raised:
        run_jobs()
    assert raised.value.__notes__ == [
        "Raised by attempt 1 of tests.app.tasks.run, which is scheduled now."
    ]
    assert jobs.live(result).errors[0]["message"] == "boom"


@pytest.mark.django_db
def test_errors_not_raised_are_in_the_results() -> None:
    app.run.enqueue(raising(Terminal("no")))
    app.run.using(max_attempts=2).enqueue(raising(ValueError("boom")))
    ended = run_jobs(raise_errors=False)
    told = [(ran.status, [error.exception_class_path for error in ran.errors]) for ran in ended]
    assert told == [
        (FAILED, ["django_workqueue.exceptions.Terminal"]),
        (READY, ["builtins.ValueError"]),
        (FAILED, ["builtins.ValueError"] * 2),
    ]


@pytest.mark.django_db
@pytest.mark.parametrize("asked", [Retry(after=30), Snooze(30)])
def test_what_a_task_asks_for_is_no_error(asked: Exception, clock: MovedClock) -> None:
    answers = [asked]

    def once() -> str:
        if answers:
            raise answers.pop()
        return "done"

    jobs.enqueue(once)
    assert [ran.status for ran in run_jobs()] == [READY]
    assert run_jobs() == []
    clock.advance(29)
    assert run_jobs() == []
    clock.advance(1)
    assert [ran.return_value for ran in run_jobs()] == ["done"]


@pytest.mark.django_db
def test_unknown_task_is_an_error() -> None:
    jobs.enqueue(list)
    LiveJob.objects.update(task="gone.tasks.gone")
    with pytest.raises(UnknownTask, match="gone.tasks.gone"):
        run_jobs()
    assert LiveJob.objects.get().state == "held"


@pytest.mark.django_db
def test_endless_jobs_are_noticed() -> None:
    def again() -> None:
        jobs.enqueue(again)

    jobs.enqueue(again)
    with pytest.raises(AssertionError, match=r"come to its end within max_jobs=5"):
        run_jobs(max_jobs=5)
    assert LiveJob.objects.get().attempt == 0


@pytest.mark.django_db
def test_failed_body_keeps_its_writes_as_in_production() -> None:
    def write_and_fail() -> None:
        make_group("written")
        raise ValueError

    jobs.enqueue(write_and_fail, max_attempts=1)
    run_jobs(raise_errors=False)
    assert groups() == ["written"]


@pytest.mark.django_db
def test_failed_body_of_an_atomic_task_leaves_no_writes() -> None:
    def write_and_fail() -> None:
        make_group("written")
        raise ValueError("boom")

    app.run_atomically.using(max_attempts=1).enqueue(body(write_and_fail))
    with pytest.raises(ValueError, match="boom"):
        run_jobs()
    assert (groups(), jobs.counts()) == ([], (0, 1, 0))


@pytest.mark.django_db
@pytest.mark.parametrize("caught", [False, True])
def test_error_of_the_database_leaves_the_test_a_usable_transaction(caught: bool) -> None:
    """Case D 100, as far as the test's transaction lets it."""
    make_group("taken")

    def violate() -> None:
        try:
            with transaction.atomic():
                make_group("taken")
        except IntegrityError:
            if not caught:
                raise
        make_group("after")

    jobs.enqueue(violate)
    jobs.enqueue(make_group, "next")
    ended = run_jobs(raise_errors=False)
    assert groups() == (["after", "next", "taken"] if caught else ["next", "taken"])
    assert len(ended) == (2 if caught else 4)


@pytest.mark.django_db
def test_hooks_of_a_body_run_at_its_end_and_those_of_a_rolled_back_one_never() -> None:
    seen: list[str] = []

    def hooked(name: str, *, fail: bool) -> None:
        transaction.on_commit(lambda: seen.append(name))
        if fail:
            raise IntegrityError

    app.run_atomically.enqueue(body(lambda: hooked("kept", fail=False)))
    app.run_atomically.using(max_attempts=1).enqueue(body(lambda: hooked("lost", fail=True)))
    before = len(connection.run_on_commit)
    run_jobs(raise_errors=False)
    assert seen == ["kept"]
    assert len(connection.run_on_commit) == before


@pytest.mark.django_db
def test_error_of_a_hook_is_the_test_s_unless_it_is_robust(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def hooked(*, robust: bool) -> None:
        transaction.on_commit(lambda: [].pop(), robust=robust)

    jobs.enqueue(lambda: hooked(robust=True))
    run_jobs()
    assert "robust hook failed" in caplog.text
    jobs.enqueue(lambda: hooked(robust=False))
    with pytest.raises(IndexError):
        run_jobs()


@pytest.mark.django_db
def test_signals_of_django_are_sent() -> None:
    seen: list[Any] = []

    def receive(sender: Any, task_result: Any, **kwargs: Any) -> None:
        seen.append(task_result.status)

    task_finished.connect(receive)
    try:
        jobs.enqueue(list)
        run_jobs()
    finally:
        task_finished.disconnect(receive)
    assert seen == [TaskResultStatus.SUCCESSFUL]


@pytest.mark.django_db
def test_body_is_in_no_transaction_unless_it_asked_for_one() -> None:
    def commit_something() -> None:
        with transaction.atomic(durable=True):
            make_group("durable")
        with lock("backup", ttl=60):
            make_group("locked")

    jobs.enqueue(commit_something)
    run_jobs()
    assert groups() == ["durable", "locked"]
    app.run_atomically.enqueue(body(commit_something))
    with pytest.raises(RuntimeError, match="durable"):
        run_jobs()


@pytest.mark.usefixtures("transactional_db")
def test_without_a_transaction_of_the_test_all_is_committed() -> None:
    jobs.enqueue(make_group, "made")
    with transaction.atomic(), pytest.raises(InTransaction):
        run_jobs()
    assert len(run_jobs()) == 1
    assert groups() == ["made"]


# The clock and the fixture


def test_fixture_has_the_functions_and_a_clock(workqueue: WorkQueue) -> None:
    app.add.enqueue(1)
    app.add.using(run_after=workqueue.clock.now() + timedelta(hours=1)).enqueue(2)
    workqueue.assert_enqueued(app.add, count=2)
    assert [ran.return_value for ran in workqueue.run_jobs()] == [3]
    workqueue.clock.advance(3_600)
    assert [ran.return_value for ran in workqueue.run_jobs()] == [4]


def test_clock_of_the_fixture_is_back_after_a_test(workqueue: WorkQueue) -> None:
    assert abs(workqueue.clock.now() - datetime.now(UTC)) < timedelta(minutes=5)


def test_moved_clock_decides_what_is_due(clock: MovedClock) -> None:
    result = jobs.enqueue(list, run_after=get_store().now() + timedelta(days=365))
    assert run_jobs() == []
    clock.advance(365 * 86_400)
    assert [ran.id for ran in run_jobs()] == [result.id]
    assert jobs.finished(result).finished_at > datetime.now(UTC) + timedelta(days=364)


def test_clock_goes_on_from_where_it_was_moved_to(clock: MovedClock) -> None:
    moment = datetime(2040, 2, 29, 12, tzinfo=UTC)
    clock.move_to(moment)
    first = clock.now()
    assert timedelta(0) <= first - moment < timedelta(minutes=5)
    assert clock.now() >= first
    with pytest.raises(ValueError, match="seconds must be"):
        clock.advance(-1)


def test_clock_is_back_after_its_block(db: None) -> None:
    before = get_store().now()
    with moved_clock() as outer:
        outer.advance(3_600)
        with moved_clock() as inner:
            inner.advance(3_600)
            assert inner.now() - before >= timedelta(hours=2)
        assert timedelta(hours=1) <= outer.now() - before < timedelta(hours=2)
    assert get_store().now() - before < timedelta(minutes=5)


# assert_enqueued


@pytest.mark.django_db
def test_assert_enqueued_returns_what_matches() -> None:
    first = app.add.enqueue(1)
    second = app.add.using(queue_name="mail").enqueue(1, b=3)
    assert [each.id for each in assert_enqueued(app.add)] == [first.id, second.id]
    for options, expected in (
        ({"args": (1,), "count": 2}, [first.id, second.id]),
        ({"kwargs": {"b": 3}}, [second.id]),
        ({"args": [1], "kwargs": {}}, [first.id]),
        ({"queue_name": "mail"}, [second.id]),
        ({"args": [2], "count": 0}, []),
    ):
        assert [each.id for each in assert_enqueued(app.add, **options)] == expected
    run_jobs()
    assert assert_enqueued(app.add, count=0) == []


@pytest.mark.django_db
def test_failed_assertion_shows_what_is_there() -> None:
    with pytest.raises(AssertionError, match="found 0. Enqueued is: nothing"):
        assert_enqueued(app.add)
    app.add.enqueue(1, b="x")
    with pytest.raises(AssertionError) as failed:
        assert_enqueued(app.add, args=[2], queue_name="mail", count=2)
    assert str(failed.value) == (
        "2 jobs of tests.app.tasks.add, args=[2], queue_name='mail' must be enqueued, found 0. "
        "Enqueued is:\n  tests.app.tasks.add(1, b='x') in queue 'default', ready"
    )
