"""`executor`: what a body did, whatever it did, becomes an outcome, and no row is touched."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, connection, connections, transaction

from django_workqueue import clock, conf, registry
from django_workqueue.announcing import tell_finished
from django_workqueue.compat import TaskResultStatus, task_finished, task_started
from django_workqueue.connecting import clean_connections
from django_workqueue.exceptions import Retry, Snooze, Terminal
from django_workqueue.executor import execute
from django_workqueue.job import Job, Outcome, Verb
from django_workqueue.models import LiveJob
from django_workqueue.states import DeathReason
from django_workqueue.store import get_store
from tests import jobs
from tests.jobs import app, body, raising

pytestmark = pytest.mark.usefixtures("transactional_db")


def claimed(result: Any, **changes: Any) -> Job:
    """Claim the job of *result*, the only one."""
    if changes:
        LiveJob.objects.filter(pk=result.id).update(**changes)
    (claim,) = jobs.claim()
    assert str(claim.id) == result.id
    return Job(claim)


def run(name: str, *, task: Any = app.run, **options: Any) -> Outcome:
    """Enqueue, claim and execute one job; return its outcome."""
    return execute(claimed(task.using(**options).enqueue(name)), conf.current())


def run_body(function: Callable[..., Any], **options: Any) -> Outcome:
    return run(body(function), **options)


def error(outcome: Outcome) -> Any:
    assert outcome.error is not None
    return outcome.error


def repr_of_kind(value: Any) -> str:
    return (
        value
        if type(value) is str and len(value) < 20 and value.isascii()
        else type(value).__name__
    )


# Success


@pytest.mark.parametrize(
    ("value", "text"), [(None, "null"), ((1, "ø"), '[1,"ø"]'), ({1: 2**70}, f'{{"1":{2**70}}}')]
)
def test_a_value_is_acknowledged_as_json(value: Any, text: str) -> None:
    outcome = run_body(lambda: value)

    assert (outcome.verb, outcome.value) == (Verb.ACK, text)


def test_a_coroutine_is_run_to_its_end() -> None:
    async def greet() -> str:
        return "hello"

    assert run_body(greet, task=app.arun).value == '"hello"'


def test_a_value_that_is_not_kept_need_not_be_storable() -> None:
    assert run_body(object, result_ttl=0).verb is Verb.ACK


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (float("nan"), "finite"),
        (1e308 * 10, "finite"),
        ("a\x00b", "NUL"),
        ("\udc80", "surrogate"),
        (10**5000, "digits"),
        (object(), "builtins.object"),
        ({1, 2}, "builtins.set"),
        ("x" * 1_048_577, "1048576 bytes"),
    ],
    ids=repr_of_kind,
)
def test_a_value_that_json_lacks_is_not_retried_since_the_work_was_done(
    value: Any, word: str
) -> None:
    outcome = run_body(lambda: value)

    assert (outcome.verb, outcome.reason) == (Verb.BURY, DeathReason.UNSTORABLE_RESULT)
    assert error(outcome).message.startswith(("the return value", "the value must be at most"))
    assert word in error(outcome).message


# Failure


@pytest.mark.parametrize(
    ("raised", "class_path", "message"),
    [
        (ValueError("boom"), "builtins.ValueError", "boom"),
        (BaseException("x"), "builtins.BaseException", "x"),
        (SystemExit(3), "builtins.SystemExit", "3"),
        (KeyboardInterrupt(), "builtins.KeyboardInterrupt", ""),
        (GeneratorExit(), "builtins.GeneratorExit", ""),
        (ValueError("a\x00b"), "builtins.ValueError", r"a\x00b"),
        (ValueError("\udc80"), "builtins.ValueError", r"\udc80"),
    ],
)
def test_whatever_a_body_raises_is_a_failed_attempt(
    raised: BaseException, class_path: str, message: str
) -> None:
    outcome = run(raising(raised))

    assert outcome.verb is Verb.RETRY
    assert error(outcome).exception_class == class_path
    assert error(outcome).message == message
    assert error(outcome).outcome == "failed"


def test_an_error_of_twenty_megabytes_is_cut_to_the_limit() -> None:
    outcome = run(raising(ValueError("x" * 20_000_000)))

    assert error(outcome).cut
    assert len(error(outcome).message) + len(error(outcome).traceback) <= 65_536
    assert "truncated" in error(outcome).message


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise SystemExit(9)


class TwoArguments(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} {b}")


def test_an_exception_whose_text_raises_is_recorded_all_the_same() -> None:
    outcome = run(raising(Unspeakable()))

    assert error(outcome).exception_class.endswith("Unspeakable")
    assert "SystemExit" in error(outcome).message


def test_an_exception_that_could_not_be_built_again_is_recorded_as_text() -> None:
    outcome = run(raising(TwoArguments(1, 2)))

    assert error(outcome).exception_class == "tests.test_executor.TwoArguments"
    assert error(outcome).message == "1 2"


def test_the_traceback_leads_to_the_line_of_the_body() -> None:
    def fail() -> None:
        raise ValueError("here")

    assert 'raise ValueError("here")' in error(run_body(fail)).traceback


def test_the_moments_of_a_failed_attempt_are_of_the_databases_clock() -> None:
    before = get_store().now()

    record = error(run(raising(ValueError())))

    assert before - timedelta(milliseconds=2) <= record.started <= record.ended
    assert record.ended <= get_store().now()


# The policy


def test_an_error_in_terminal_on_ends_the_job_at_once_and_says_why() -> None:
    outcome = run(raising(UnicodeError("bad name")), task=app.run_choosy)

    assert (outcome.verb, outcome.reason) == (Verb.BURY, DeathReason.TERMINAL)
    assert error(outcome).attempt == 1
    assert error(outcome).message == "bad name (not retried: UnicodeError is in terminal_on)"


def test_an_error_that_is_not_in_retry_on_ends_the_job_and_says_why() -> None:
    outcome = run(raising(OSError("disk")), task=app.run_choosy)

    assert (outcome.verb, outcome.reason) == (Verb.BURY, DeathReason.TERMINAL)
    assert error(outcome).message == "disk (not retried: OSError is not in retry_on)"


def test_an_exit_is_retried_whatever_retry_on_names() -> None:
    assert run(raising(SystemExit(1)), task=app.run_choosy).verb is Verb.RETRY


def test_terminal_ends_the_job_even_where_retry_on_names_it() -> None:
    outcome = run(raising(Terminal("card expired")), task=app.run_choosy)

    assert outcome.reason is DeathReason.TERMINAL
    assert error(outcome).message == "card expired (not retried: the task raised Terminal)"


def test_the_last_attempt_is_exhausted_with_the_bare_error() -> None:
    result = app.run.enqueue(raising(ValueError("boom")))

    outcome = execute(claimed(result, attempt=2), conf.current())

    assert (outcome.verb, outcome.reason) == (Verb.BURY, DeathReason.EXHAUSTED)
    assert error(outcome).message == "boom"


@pytest.mark.parametrize(
    ("after", "seconds"), [(7, 7), (86_400, 3600), (-1, 0), (float("nan"), 3600), (None, 0)]
)
def test_a_retry_waits_as_asked_within_the_maximum_of_the_backoff(
    after: Any, seconds: float
) -> None:
    outcome = run(raising(Retry(after)))

    assert (outcome.verb, outcome.delay_seconds) == (Verb.RETRY, seconds)


def test_a_retry_does_not_extend_the_budget() -> None:
    result = app.run.enqueue(raising(Retry(after=7)))

    outcome = execute(claimed(result, attempt=2), conf.current())

    assert (outcome.verb, outcome.reason) == (Verb.BURY, DeathReason.EXHAUSTED)


@pytest.mark.parametrize(
    ("seconds", "delay"), [(60, 60), (0, 0), (-5, 0), (float("nan"), 60), ("soon", 60), (1e300, 60)]
)
def test_a_snooze_gives_the_job_back_without_an_error(seconds: Any, delay: float) -> None:
    outcome = run(raising(Snooze(seconds)))

    assert (outcome.verb, outcome.delay_seconds) == (Verb.RELEASE, delay)
    assert outcome.error is None


# What cannot run here


def test_an_unknown_task_is_held_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    job = claimed(app.echo.enqueue(1), task="app.tasks.new")

    outcome = execute(job, conf.current())

    assert (outcome.verb, outcome.delay_seconds) == (Verb.HOLD, 1)
    assert error(outcome).outcome == "unknown_task"
    assert "unknown task app.tasks.new" in error(outcome).message


def test_a_row_that_names_a_function_never_gets_it_called(tmp_path: Any) -> None:
    marker = tmp_path / "called"
    payload = {"args": [f"touch {marker}"], "kwargs": {}}
    job = claimed(app.echo.enqueue(1), task="os.system", payload=payload)

    outcome = execute(job, conf.current())

    assert outcome.verb is Verb.HOLD
    assert not marker.exists()
    assert os.system is not registry.get("os.system")


@pytest.mark.parametrize(
    "payload",
    [
        {"args": [1, 2, 3], "kwargs": {}},
        {"args": [], "kwargs": {"nonsense": 1}},
        {"args": []},
        [1],
        "text",
    ],
)
def test_arguments_that_no_longer_bind_hold_the_job(payload: Any) -> None:
    outcome = execute(claimed(app.add.enqueue(1), payload=payload), conf.current())

    assert outcome.verb is Verb.HOLD
    assert error(outcome).outcome == DeathReason.BAD_ARGUMENTS


@pytest.mark.parametrize(("known_seconds", "delay"), [(0, 1), (7, 7), (3_000, 60)])
def test_a_job_is_held_longer_the_longer_it_is_unknown_up_to_a_minute(
    known_seconds: int, delay: float
) -> None:
    since = get_store().now() - timedelta(seconds=known_seconds)
    job = claimed(app.echo.enqueue(1), task="app.tasks.new", unknown_since=since)

    assert execute(job, conf.current()).delay_seconds == pytest.approx(delay, abs=0.5)


def test_a_row_with_rubbish_in_it_is_a_failed_attempt() -> None:
    job = claimed(app.run_with_context.enqueue(body(lambda context: 1)))
    job.claim = job.claim._replace(headers="{")

    outcome = execute(job, conf.current())

    assert outcome.verb is Verb.RETRY
    assert "PayloadError" in error(outcome).exception_class


# The context


def test_the_context_tells_about_the_attempt() -> None:
    seen: list[Any] = []
    task = app.run_with_context.using(timeout=60, headers={"tenant": "a"})
    job = claimed(task.enqueue(body(seen.append)))

    execute(job, conf.current())

    (context,) = seen
    assert (context.job_id, context.fence, context.attempt) == (job.claim.id, 1, 1)
    assert context.headers == {"tenant": "a"}
    assert context.task_result.status == TaskResultStatus.RUNNING
    assert 0 < context.remaining() <= 60
    assert not context.cancelled.is_set()
    assert not context.lease_lost.is_set()


def test_a_task_without_a_limit_has_no_end() -> None:
    assert run_body(lambda context: context.remaining(), task=app.run_with_context).value == "null"


def test_progress_is_kept_for_the_next_extension() -> None:
    job = claimed(app.run_with_context.enqueue(body(lambda context: context.progress(1, 3, "a"))))

    assert execute(job, conf.current()).verb is Verb.ACK
    assert json.loads(job.progress or "") == {"done": 1, "total": 3, "note": "a"}


def test_progress_that_json_lacks_is_the_bodys_error() -> None:
    outcome = run_body(lambda context: context.progress(float("nan")), task=app.run_with_context)

    assert "progress.done must be a finite number" in error(outcome).message


# Connections that a body leaves behind


def test_a_transaction_that_is_left_open_is_rolled_back_and_a_failure() -> None:
    def leave_open() -> None:
        transaction.atomic().__enter__()
        Group.objects.create(name="half")

    outcome = run_body(leave_open)

    assert outcome.verb is Verb.RETRY
    assert error(outcome).exception_class == "django_workqueue.exceptions.TransactionLeftOpen"
    assert not connection.in_atomic_block
    assert not Group.objects.exists()


def test_autocommit_that_is_left_off_is_restored() -> None:
    """Case D 100."""

    def leave_off() -> None:
        transaction.set_autocommit(False)
        Group.objects.create(name="half")

    outcome = run_body(leave_off)

    assert "left open on default" in error(outcome).message
    assert connection.get_autocommit()
    assert not Group.objects.exists()


def test_a_transaction_that_was_broken_and_left_open_harms_no_later_job() -> None:
    """Case D 100."""
    Group.objects.create(name="once")

    def break_it() -> None:
        transaction.atomic().__enter__()
        try:
            Group.objects.create(name="once")
        except IntegrityError:
            pass

    assert run_body(break_it).verb is Verb.RETRY
    LiveJob.objects.all().delete()
    assert run_body(Group.objects.count).value == "1"


def test_an_error_caught_inside_atomic_harms_no_later_job() -> None:
    """Case D 100."""
    Group.objects.create(name="once")

    def caught() -> str:
        with transaction.atomic():
            try:
                with transaction.atomic():
                    Group.objects.create(name="once")
            except IntegrityError:
                Group.objects.create(name="twice")
        return "done"

    assert run_body(caught).verb is Verb.ACK
    assert run_body(Group.objects.count).value == "2"


def test_a_connection_that_was_closed_inside_a_transaction_is_opened_again() -> None:
    def close_inside() -> None:
        transaction.atomic().__enter__()
        Group.objects.create(name="half")
        connection.close()

    assert run_body(close_inside).verb is Verb.RETRY
    LiveJob.objects.all().delete()
    assert run_body(Group.objects.count).value == "0"


def test_a_body_that_raises_with_a_transaction_open_keeps_its_own_error() -> None:
    def fail() -> None:
        transaction.atomic().__enter__()
        raise ValueError("the cause")

    outcome = run_body(fail)

    assert error(outcome).message == "the cause"
    assert not connection.in_atomic_block


def test_a_connection_in_order_is_kept_whatever_conn_max_age_says() -> None:
    connection.ensure_connection()
    kept = connection.connection
    connection.close_at = clock.monotonic() - 1

    assert run_body(Group.objects.count).verb is Verb.ACK
    assert clean_connections() == []
    assert connection.connection is kept


def test_queries_are_not_gathered_under_debug(settings: Any) -> None:
    settings.DEBUG = True

    run_body(Group.objects.count)

    assert not connections["default"].queries_log


# Signals


@pytest.fixture
def sent() -> Iterator[list[tuple[str, Any, Any]]]:
    """What Django's signals were sent with: their name, status and result."""
    seen: list[tuple[str, Any, Any]] = []

    def started(task_result: Any, **kwargs: Any) -> None:
        seen.append(("started", task_result.status, task_result))

    def finished(task_result: Any, **kwargs: Any) -> None:
        seen.append(("finished", task_result.status, task_result))

    task_started.connect(started)
    task_finished.connect(finished)
    yield seen
    task_started.disconnect(started)
    task_finished.disconnect(finished)


def test_task_started_is_sent_before_the_body_runs(sent: list[Any]) -> None:
    assert run_body(lambda: len(sent)).value == "1"
    assert [name for name, *_ in sent] == ["started"]
    assert sent[0][1] == TaskResultStatus.RUNNING


@pytest.mark.parametrize("raised", [ValueError("of the receiver"), SystemExit(3)])
def test_a_receiver_of_task_finished_that_raises_harms_nothing(
    raised: BaseException, sent: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    def receiver(**kwargs: Any) -> None:
        raise raised

    job = claimed(app.run.enqueue(body(lambda: 1)))
    job.outcome = execute(job, conf.current())
    task_finished.connect(receiver)
    try:
        with caplog.at_level(logging.CRITICAL):
            tell_finished([job])
    finally:
        task_finished.disconnect(receiver)


def test_task_finished_shows_the_value_or_the_error(sent: list[Any]) -> None:
    good = claimed(app.run.enqueue(body(lambda: 7)))
    good.outcome = execute(good, conf.current())
    LiveJob.objects.all().delete()
    bad = claimed(app.run.enqueue(raising(Terminal("no"))))
    bad.outcome = execute(bad, conf.current())
    sent.clear()

    tell_finished([good, bad])

    (_, good_status, good_result), (_, bad_status, bad_result) = sent
    assert (good_status, good_result.return_value) == (TaskResultStatus.SUCCESSFUL, 7)
    assert bad_status == TaskResultStatus.FAILED
    assert bad_result.errors[0].exception_class is Terminal
    assert bad_result.finished_at is not None


def test_a_job_that_never_ran_sends_no_signal(sent: list[Any]) -> None:
    job = claimed(app.echo.enqueue(1), task="app.tasks.new")
    job.outcome = execute(job, conf.current())

    tell_finished([job])

    assert sent == []
    assert "antigravity" not in sys.modules
