"""`backend`: Django's Tasks API, whichever decorator made the task and whichever Django it is."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from django_workqueue import registry
from django_workqueue.backend import WorkQueueBackend
from django_workqueue.compat import (
    BACKPORT,
    InvalidTask,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
)
from django_workqueue.exceptions import UnknownTask
from django_workqueue.models import LiveJob
from django_workqueue.states import State
from tests import jobs
from tests.jobs import app

real = pytest.mark.usefixtures("transactional_db")
backend: Any = WorkQueueBackend("default", {"QUEUES": []})


@pytest.fixture
def enqueued() -> Iterator[list[TaskResult[..., Any]]]:
    """The results that ``task_enqueued`` was sent with."""
    sent: list[TaskResult[..., Any]] = []

    def receiver(sender: Any, task_result: TaskResult[..., Any], **kwargs: Any) -> None:
        assert sender is WorkQueueBackend
        sent.append(task_result)

    task_enqueued.connect(receiver)
    yield sent
    task_enqueued.disconnect(receiver)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("task", "args"), [(app.add, [1]), (app.echo, [1])], ids=["django's decorator", "ours"]
)
def test_an_enqueued_task_is_a_ready_job_and_result(task: Any, args: list[Any]) -> None:
    result = task.enqueue(*args)

    assert type(result) is TaskResult
    assert result.status == TaskResultStatus.READY
    assert result.args == args
    assert not result.is_finished
    job = jobs.live(result)
    assert uuid.UUID(result.id) == job.pk
    assert (job.state, job.task, job.backend) == (State.READY, task.module_path, "default")
    assert result.enqueued_at == job.enqueued_at
    assert task.get_result(result.id) == result


@real
@pytest.mark.parametrize(
    ("task", "value"), [(app.add, 3), (app.echo, 1)], ids=["django's decorator", "ours"]
)
def test_a_result_is_refreshed_when_the_task_has_run(task: Any, value: Any) -> None:
    result = task.enqueue(1)

    jobs.drain()
    result.refresh()

    assert result.status == TaskResultStatus.SUCCESSFUL
    assert result.return_value == value
    assert result.errors == []
    assert result.attempts == len(result.worker_ids) == 1
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert result.last_attempted_at == result.started_at


@real
@pytest.mark.parametrize("task", [app.add, app.echo], ids=["django's decorator", "ours"])
def test_the_async_calls_do_what_the_others_do(task: Any) -> None:
    async def enqueue_and_look() -> Any:
        result = await task.aenqueue(1)
        found = await task.aget_result(result.id)
        await result.arefresh()
        return result, found

    result, found = async_to_sync(enqueue_and_look)()

    assert found == result
    assert jobs.live(result).state == State.READY


@real
def test_many_can_be_enqueued_from_async_code() -> None:
    async def enqueue() -> Any:
        return await app.echo.aenqueue_many([((1,), {}), ((2,), {})])

    assert [each.args for each in async_to_sync(enqueue)()] == [[1], [2]]


@pytest.mark.django_db
def test_options_of_the_call_are_written_to_the_jobs_row() -> None:
    moment = datetime.now(UTC) + timedelta(hours=1)
    task = app.echo.using(
        priority=7,
        queue_name="mail",
        run_after=moment,
        max_attempts=9,
        timeout=3.5,
        expires=60,
        result_ttl=0,
        unique_key="k",
        unique_while="queued",
        dead_letter=False,
        headers={"tenant": "a"},
    )

    job = jobs.live(task.enqueue(1))

    assert (job.priority, job.queue_name, job.max_attempts) == (7, "mail", 9)
    assert (job.timeout, job.result_ttl, job.dead_letter) == (3.5, 0, False)
    assert (job.unique_key, job.unique_while) == ("k", "queued")
    assert job.headers == {"tenant": "a"}
    assert job.state == State.SCHEDULED
    assert job.run_after == moment
    assert job.expires_at == moment + timedelta(seconds=60)


@pytest.mark.django_db
def test_a_function_that_is_no_task_is_refused_by_name() -> None:
    with pytest.raises(InvalidTask, match="takes tasks declared for it, got <function uuid4"):
        backend.enqueue(uuid.uuid4, [], {})


def test_a_queue_that_the_backend_does_not_have_is_refused() -> None:
    narrow = WorkQueueBackend("default", {"QUEUES": ["default"]})
    other = app.echo.using(queue_name="mail")

    with pytest.raises(InvalidTask, match="mail"):
        narrow.enqueue(other, [1], {})


# Asking for a result


@pytest.mark.django_db
@pytest.mark.parametrize(
    "result_id", ["", "x", "00000000-0000-7000-8000-000000000000", "\x00", "7", "\udc80"]
)
def test_an_id_of_no_job_has_no_result(result_id: str) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        backend.get_result(result_id)


@pytest.mark.django_db
def test_a_job_of_another_task_is_a_mismatch() -> None:
    result = app.echo.enqueue(1)

    with pytest.raises(Exception, match="does not match"):
        app.add.get_result(result.id)


@real
def test_none_is_told_from_no_result() -> None:
    kept = app.echo.enqueue(None)
    forgotten = app.echo.using(result_ttl=0).enqueue(None)

    jobs.drain()

    kept.refresh()
    assert kept.status == TaskResultStatus.SUCCESSFUL
    assert kept.return_value is None
    with pytest.raises(TaskResultDoesNotExist):
        forgotten.refresh()


@pytest.mark.django_db
def test_the_result_of_a_task_that_is_not_declared_here_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = app.echo.enqueue(1)
    others = {path: task for path, task in registry._tasks.items() if path != app.echo.module_path}
    monkeypatch.setattr(registry, "_tasks", others)

    with pytest.raises(UnknownTask, match=r"tests\.app\.tasks\.echo.* is not"):
        backend.get_result(result.id)


@pytest.mark.django_db
@pytest.mark.skipif(not BACKPORT, reason="Django 6.0 has its own Tasks API only")
def test_the_backports_handler_has_this_backend() -> None:
    assert isinstance(task_backends["default"], WorkQueueBackend)


# Signals


@pytest.mark.django_db
def test_task_enqueued_is_sent_once_for_each_new_job(enqueued: list[Any]) -> None:
    unique = app.echo.using(unique_key="k")
    first = unique.enqueue(1)
    unique.enqueue(2)
    many = app.echo.enqueue_many([((3,), {}), ((4,), {})])

    assert enqueued == [first, *many]


@pytest.mark.django_db
def test_a_receiver_that_raises_does_not_make_a_written_job_look_refused() -> None:
    def receiver(**kwargs: Any) -> None:
        raise ValueError("of the receiver")

    task_enqueued.connect(receiver)
    try:
        result = app.echo.enqueue(1)
        many = app.echo.enqueue_many([((2,), {})])
    finally:
        task_enqueued.disconnect(receiver)

    assert {str(job.pk) for job in LiveJob.objects.all()} == {result.id, many[0].id}


@real
def test_a_result_of_a_rolled_back_transaction_is_gone() -> None:
    with transaction.atomic():
        result = app.echo.enqueue(1)
        transaction.set_rollback(True)

    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()
