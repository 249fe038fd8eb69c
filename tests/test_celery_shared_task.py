"""`contrib.celery`: a Celery project's tasks run here once their import is changed."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import transaction
from django.test import override_settings

from django_workqueue.compat import BACKPORT, InvalidTask
from django_workqueue.contrib.celery import AsyncResult, shared_task
from django_workqueue.exceptions import (
    ArgumentsError,
    InTransaction,
    MaxRetriesExceededError,
    PayloadTypeError,
    TaskFailed,
)
from django_workqueue.models import DeadJob, LiveJob
from django_workqueue.store import get_store
from django_workqueue.testing import assert_enqueued, run_jobs
from django_workqueue.testing.fixture import WorkQueue
from tests import jobs
from tests.app import celery_tasks as tasks

_numbers = itertools.count()


def body(function: Callable[..., Any]) -> str:
    """Return the name under which the tasks of the module find *function*."""
    name = f"body {next(_numbers)}"
    tasks.bodies[name] = function
    return name


def row(result: AsyncResult) -> Any:
    return LiveJob.objects.get(pk=uuid.UUID(result.id))


def seconds_to(moment: datetime) -> float:
    return (moment - get_store().now()).total_seconds()


# Declaring


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("rate_limit", "10/m"),
        ("base", object),
        ("soft_time_limit", 10),
        ("pydantic", True),
        ("typing", False),
        ("compression", "gzip"),
        ("link", []),
        ("max_retires", 3),
        ("serializer", "pickle"),
        ("max_retries", -1),
        ("max_retries", "3"),
        ("retry_kwargs", {"max_retries": -1}),
        ("retry_kwargs", {"queue": "slow"}),
        ("autoretry_for", ("OSError",)),
        ("priority", 101),
        ("time_limit", 0),
        ("default_retry_delay", -1),
    ],
)
def test_option_that_is_not_supported_is_refused_by_name_where_it_is_declared(
    option: str, value: Any
) -> None:
    with pytest.raises((InvalidTask, ValueError)) as refused:
        shared_task(**{option: value})(module_level)
    names = {"time_limit": "timeout", "default_retry_delay": "base"}
    assert names.get(option, option) in str(refused.value)


def module_level() -> None:
    """A function that may be a task."""


async def coroutine() -> None:
    """A function that Celery takes not either."""


def test_function_that_can_never_run_is_refused() -> None:
    with pytest.raises(InvalidTask, match="takes plain functions, as Celery does"):
        shared_task(coroutine)
    with pytest.raises(InvalidTask, match="must take itself as its first argument"):
        shared_task(bind=True)(module_level)


def test_options_become_those_of_the_queue() -> None:
    made = tasks.with_options.task
    assert (made.queue_name, made.priority, made.timeout, made.expires) == ("mail", 9, 120, 3600)
    assert (made.result_ttl, made.max_attempts) == (0, 4)
    assert tasks.fetch.task.max_attempts == 5
    assert tasks.fragile.task.max_attempts == 4
    assert shared_task(max_retries=None)(module_level).task.max_attempts == 32_767
    assert tasks.with_options.name == "mail.send"
    assert tasks.add.name == "tests.app.celery_tasks.add" == tasks.add.task.module_path
    assert (tasks.add.__name__, tasks.add.__doc__) == ("add", "Return the sum.")


def test_signatures_and_groups_are_refused_by_name() -> None:
    task: Any = tasks.add
    for name in ("s", "si", "signature", "chunks", "map", "replace"):
        with pytest.raises(AttributeError, match=f"has no {name}. Signatures, chains and groups"):
            getattr(task, name)
    with pytest.raises(AttributeError, match="has no apply. Call the task itself"):
        task.apply((1,))
    for name in ("chain", "group", "chord"):
        with pytest.raises(ImportError, match=f"^{name} of Celery is not supported"):
            exec(f"from django_workqueue.contrib.celery import {name}")


@pytest.mark.vendor("sqlite")
def test_nothing_of_celery_is_imported() -> None:
    """A project that left Celery has it installed no more."""
    code = (
        "import sys, django; django.setup(); import tests.app.celery_tasks; "
        "sys.exit('celery' in sys.modules or 'kombu' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# Calling


def test_calling_a_task_runs_its_body() -> None:
    assert tasks.add(1) == 3
    assert tasks.call_bound(body(lambda self, *args: (self.request.id, args)), 7) == (None, (7,))
    error = OSError("no")

    def fail(*args: Any) -> None:
        raise error

    with pytest.raises(OSError, match="no") as raised:
        tasks.fetch(body(fail))
    assert raised.value is error


@pytest.mark.django_db
def test_delay_enqueues_and_its_result_tells_all() -> None:
    result = tasks.add.delay(1, y=5)
    assert (result.status, result.state, result.ready(), result.result) == (
        "PENDING",
        "PENDING",
        False,
        None,
    )
    assert_enqueued(tasks.add.task, args=[1], kwargs={"y": 5}, count=1)
    run_jobs()
    assert (result.status, result.ready(), result.successful(), result.failed()) == (
        "SUCCESS",
        True,
        True,
        False,
    )
    assert result.get(timeout=1) == result.result == 6
    assert AsyncResult(result.id) == result == tasks.add.AsyncResult(result.id)
    assert (str(result), result.task_id, {result}) == (result.id, result.id, {result})


@pytest.mark.django_db
@pytest.mark.parametrize("value", [datetime.now(UTC), uuid.uuid4(), Decimal("1.5")])
def test_arguments_that_json_lacks_are_refused(value: Any) -> None:
    with pytest.raises(PayloadTypeError, match=r"args\[0\]"):
        tasks.call.delay(value)
    assert not LiveJob.objects.exists()


@pytest.mark.django_db
def test_call_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ArgumentsError, match=r"signature \(x: 'int', y: 'int' = 2\)"):
        tasks.add.delay()
    with pytest.raises(TypeError, match="got link, task_id"):
        tasks.add.apply_async((1,), task_id="x", link=None)


@pytest.mark.django_db
def test_job_belongs_to_the_transaction() -> None:
    with pytest.raises(ValueError, match="back"), transaction.atomic():
        tasks.add.delay(1)
        raise ValueError("back")
    assert not LiveJob.objects.exists()


@pytest.mark.django_db
@override_settings(USE_TZ=True, TIME_ZONE="Asia/Tokyo")
def test_apply_async_has_the_moments_of_celery() -> None:
    now = get_store().now()
    naive = (now + timedelta(hours=9, seconds=600)).replace(tzinfo=None)
    cases: list[tuple[dict[str, Any], float, float | None]] = [
        ({}, 0, None),
        ({"countdown": 90}, 90, None),
        ({"countdown": 0}, 0, None),
        ({"eta": now + timedelta(seconds=600)}, 600, None),
        ({"eta": naive}, 600, None),
        ({"expires": 50}, 0, 50),
        ({"expires": now + timedelta(seconds=50)}, 0, 50),
        ({"countdown": 30, "expires": 50}, 30, 50),
        ({"countdown": 30, "expires": 10}, 30, 30),
        ({"expires": now - timedelta(seconds=50)}, 0, 0),
    ]
    for options, due, expires in cases:
        job = row(tasks.add.apply_async((1,), **options))
        assert due - 20 < seconds_to(job.run_after) < due + 1, options
        if expires is None:
            assert job.expires_at is None, options
        else:
            assert expires - 20 < seconds_to(job.expires_at) < expires + 1, options


@pytest.mark.django_db
def test_apply_async_names_queue_priority_and_headers() -> None:
    options: dict[str, Any] = {"queue": "slow", "priority": 3, "headers": {"tenant": "acme"}}
    job = row(tasks.add.apply_async(args=(1,), kwargs={"y": 1}, **options))
    assert (job.queue_name, job.rank, job.headers) == ("slow", -3, {"tenant": "acme"})
    assert job.payload == {"args": [1], "kwargs": {"y": 1}}
    job = row(tasks.add.apply_async((1,), time_limit=7, ignore_result=True, retry=False))
    assert (job.timeout, job.result_ttl) == (7, 0)


# Running and retrying


@pytest.mark.django_db
def test_bound_task_knows_its_request() -> None:
    seen: list[Any] = []

    def look(self: Any, *args: Any, **kwargs: Any) -> None:
        request = self.request
        seen.append((request.id, request.retries, request.called_directly, request.headers))
        seen.append((request.args[1:], request.kwargs, self.name, self.max_retries))

    name = body(look)
    headers = {"tenant": "acme"}
    result = tasks.call_bound.apply_async((name, 1), {"b": 2}, headers=headers)
    run_jobs()
    assert seen == [
        (result.id, 0, False, headers),
        ((1,), {"b": 2}, "tests.app.celery_tasks.call_bound", 2),
    ]


@pytest.mark.django_db
def test_error_that_is_not_retried_is_the_end() -> None:
    def fail() -> None:
        raise ValueError("boom")

    result = tasks.call.delay(body(fail))
    run_jobs(raise_errors=False)
    assert (result.status, result.failed(), result.ready()) == ("FAILURE", True, True)
    dead = DeadJob.objects.get()
    assert (dead.attempt, dead.reason) == (1, "terminal")
    assert "ValueError: boom" in str(result.traceback)
    with pytest.raises(TaskFailed, match="ValueError: boom") as failed:
        result.get()
    assert failed.value.exception_class_path == "builtins.ValueError"
    assert str(result.get(propagate=False)) == str(result.result) == str(failed.value)


def test_retry_waits_as_asked_and_ends_with_the_error(workqueue: WorkQueue) -> None:
    seen: list[int] = []
    error = ConnectionError("away")

    def once_more(self: Any) -> None:
        seen.append(self.request.retries)
        raise self.retry(exc=error, countdown=60 if self.request.retries else None)

    result = tasks.call_bound.delay(body(once_more))
    workqueue.run_jobs()
    assert (seen, result.status) == ([0], "RETRY")
    assert 25 < seconds_to(row(result).run_after) <= 30
    workqueue.clock.advance(30)
    workqueue.run_jobs()
    assert 55 < seconds_to(row(result).run_after) <= 60
    workqueue.clock.advance(60)
    with pytest.raises(ConnectionError) as raised:
        workqueue.run_jobs()
    assert raised.value is error
    assert (seen, result.status) == ([0, 1, 2], "FAILURE")
    dead = DeadJob.objects.get()
    assert (dead.reason, dead.errors[-1]["message"]) == ("exhausted", "away")


def test_retry_without_an_error_ends_with_one_of_its_own(workqueue: WorkQueue) -> None:
    def once_more(self: Any) -> None:
        asked = self.retry(throw=False, eta=get_store().now() + timedelta(hours=5), max_retries=1)
        raise asked

    result = tasks.call_bound.delay(body(once_more))
    workqueue.run_jobs()
    assert 17_900 < seconds_to(row(result).run_after) <= 18_000
    workqueue.clock.advance(18_000)
    with pytest.raises(MaxRetriesExceededError, match="must end within 1 retries"):
        workqueue.run_jobs()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"args": ["other"]}, "args"),
        ({"kwargs": {"a": 2}}, "kwargs"),
        ({"queue": "slow"}, "queue"),
        ({"max_retries": 3}, "max_retries"),
    ],
)
def test_retry_cannot_change_the_job(changes: dict[str, Any], named: str) -> None:
    def change(self: Any) -> None:
        self.retry(**changes)

    tasks.call_bound.delay(body(change))
    with pytest.raises(TypeError, match=named):
        run_jobs()


@pytest.mark.django_db
def test_retry_with_the_same_arguments_is_taken() -> None:
    def again(self: Any, *args: Any, **kwargs: Any) -> None:
        self.retry(args=[name, *args], kwargs=kwargs)

    name = body(again)
    result = tasks.call_bound.delay(name, 1, a=2)
    run_jobs()
    assert result.status == "RETRY"


def test_errors_named_in_autoretry_for_are_retried_with_backoff(workqueue: WorkQueue) -> None:
    def fail(self: Any) -> None:
        raise OSError(f"try {self.request.retries}")

    result = tasks.fetch.delay(body(fail))
    for delay in (5, 10, 15, 15):
        workqueue.run_jobs()
        assert delay - 5 < seconds_to(row(result).run_after) <= delay
        workqueue.clock.advance(delay)
    with pytest.raises(OSError, match="try 4"):
        workqueue.run_jobs()
    assert DeadJob.objects.get().errors[0]["message"] == "OSError: try 0"


@pytest.mark.django_db
def test_errors_left_out_of_autoretry_are_the_end() -> None:
    def fail(self: Any) -> None:
        raise FileNotFoundError

    result = tasks.fetch.delay(body(fail))
    run_jobs(raise_errors=False)
    assert result.status == "FAILURE"


def test_retry_kwargs_say_how_often_and_when(workqueue: WorkQueue) -> None:
    def fail() -> None:
        raise KeyError("x")

    result = tasks.fragile.delay(body(fail))
    workqueue.run_jobs()
    assert 590 < seconds_to(row(result).run_after) <= 600
    workqueue.clock.advance(600)
    with pytest.raises(KeyError):
        workqueue.run_jobs()
    assert result.status == "FAILURE"


def test_jitter_is_uniform_below_the_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    made = shared_task(retry_backoff=True, autoretry_for=(OSError,))(module_level)
    drawn = {round(made._backoff_seconds(), 3) for _ in range(200)}
    assert all(0 <= each <= 1 for each in drawn)
    assert len(drawn) > 50


# Waiting


@pytest.mark.usefixtures("transactional_db")
def test_get_waits_for_a_worker() -> None:
    result = tasks.add.delay(1)
    worker = jobs.new_worker()
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        assert result.get(timeout=60, interval=0.01) == 3
    finally:
        thread.join()


@pytest.mark.usefixtures("transactional_db")
def test_get_gives_up_and_never_waits_for_the_caller_s_own_commit() -> None:
    result = tasks.add.delay(1)
    with pytest.raises(TimeoutError, match="must end within 0.02 s, and is PENDING"):
        result.get(timeout=0.02)
    with transaction.atomic(), pytest.raises(InTransaction):
        result.get()
    result.revoke()
    assert result.status == "REVOKED"
    with pytest.raises(TaskFailed, match="was cancelled"):
        result.get()


@pytest.mark.django_db
def test_task_may_not_wait_for_another_one() -> None:
    tasks.call.delay(body(lambda: tasks.add.delay(1).get()))
    with pytest.raises(RuntimeError, match="must not wait for another one"):
        run_jobs()


@pytest.mark.django_db
def test_result_that_nobody_knows_is_pending() -> None:
    for job_id in (str(uuid.uuid4()), "no id at all"):
        assert AsyncResult(job_id).status == "PENDING"
        assert AsyncResult(job_id).result is None


def test_django_s_immediate_backend_runs_at_once() -> None:
    package = "django_tasks" if BACKPORT else "django.tasks"
    backend = {"BACKEND": f"{package}.backends.immediate.ImmediateBackend"}
    seen: list[Any] = []
    with override_settings(TASKS={"default": backend}):
        tasks.call_bound.delay(body(lambda self: seen.append(self.request.retries)))
    assert seen == [0]
