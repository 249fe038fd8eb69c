"""`enqueueing`: a job exists if and only if its caller's transaction commits (G1); unique keys."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import DatabaseError, IntegrityError, connection, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import path

from django_workqueue import results
from django_workqueue.exceptions import PayloadError, UniqueKeyTaken
from django_workqueue.models import LiveJob, Result
from django_workqueue.states import State
from django_workqueue.store import get_store
from tests import jobs
from tests.jobs import app
from tests.timescale import PATIENCE_SECONDS

real = pytest.mark.usefixtures("transactional_db")


class Failed(Exception):
    pass


def waiting() -> list[Any]:
    """Return the first argument of every live job, in the order of enqueueing."""
    rows: Any = LiveJob.objects.order_by("enqueued_at", "id")
    return [job.payload["args"][0] for job in rows]


# With the caller's transaction


@real
def test_a_job_commits_with_the_row_it_is_about() -> None:
    with transaction.atomic():
        Group.objects.create(name="order")
        app.echo.enqueue("receipt")

    assert waiting() == ["receipt"]


@real
def test_a_job_of_a_rolled_back_transaction_never_was() -> None:
    with pytest.raises(Failed), transaction.atomic():
        Group.objects.create(name="order")
        app.echo.enqueue("receipt")
        raise Failed

    assert jobs.counts() == (0, 0, 0)
    assert not Group.objects.exists()


@real
def test_a_job_of_a_rolled_back_savepoint_never_was() -> None:
    with transaction.atomic():
        app.echo.enqueue("A")
        with pytest.raises(Failed), transaction.atomic():
            app.echo.enqueue("B")
            raise Failed
        app.echo.enqueue("C")

    assert waiting() == ["A", "C"]


@real
def test_no_other_connection_sees_a_job_before_the_commit() -> None:
    seen: list[int] = []

    def look() -> None:
        seen.append(LiveJob.objects.count())
        connections.close_all()

    with transaction.atomic():
        app.echo.enqueue("receipt")
        other = threading.Thread(target=look)
        other.start()
        other.join(PATIENCE_SECONDS)

    assert seen == [0]


@real
def test_the_row_is_rolled_back_when_its_job_cannot_be_written() -> None:
    def full(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise IntegrityError("the table is full")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(get_store()), "_insert_batch", full)
        with pytest.raises(IntegrityError), transaction.atomic():
            Group.objects.create(name="order")
            app.echo.enqueue("receipt")

    assert not Group.objects.exists()


@real
def test_a_hook_that_fails_after_the_commit_does_not_take_the_job_with_it() -> None:
    def fail() -> None:
        raise Failed

    with pytest.raises(Failed), transaction.atomic():
        transaction.on_commit(fail)
        app.echo.enqueue("receipt")

    assert waiting() == ["receipt"]


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_a_transaction_of_another_database_decides_nothing() -> None:
    with pytest.raises(Failed), transaction.atomic(using="other"):
        app.echo.enqueue("receipt")
        raise Failed

    assert waiting() == ["receipt"]


def failing_view(request: HttpRequest) -> HttpResponse:
    app.echo.enqueue("from the view")
    raise Failed


def good_view(request: HttpRequest) -> HttpResponse:
    app.echo.enqueue("from the good view")
    return HttpResponse("done")


urlpatterns = [path("fail", failing_view), path("good", good_view)]


@real
@override_settings(ROOT_URLCONF=__name__)
def test_a_view_that_raises_under_atomic_requests_leaves_no_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    client = Client(raise_request_exception=False)

    assert client.get("/fail").status_code == 500
    assert client.get("/good").status_code == 200

    assert waiting() == ["from the good view"]


@real
@override_settings(ROOT_URLCONF=__name__)
def test_without_atomic_requests_the_job_of_a_view_that_raises_stays() -> None:
    assert Client(raise_request_exception=False).get("/fail").status_code == 500

    assert waiting() == ["from the view"]


# Many at once


@real
def test_many_are_written_in_bounded_statements_and_answered_in_order(
    django_assert_max_num_queries: Any,
) -> None:
    calls: Any = [((number,), {}) for number in range(1_200)]

    # BEGIN, three inserts, COMMIT, and on PostgreSQL one notification after it.
    with django_assert_max_num_queries(6):
        placed = app.echo.enqueue_many(calls)

    assert [each.args for each in placed] == [[number] for number in range(1_200)]
    written = LiveJob.objects.values_list("pk", flat=True)
    assert {each.id for each in placed} == {str(pk) for pk in written}


@real
def test_of_many_with_one_bad_argument_none_is_written() -> None:
    with pytest.raises(PayloadError) as caught:
        app.echo.enqueue_many([((1,), {}), ((float("nan"),), {})])

    assert caught.value.path == "args[0]"
    assert jobs.counts() == (0, 0, 0)


@real
def test_many_of_one_key_are_one_job() -> None:
    placed = app.echo.using(unique_key="k").enqueue_many([((n,), {}) for n in range(3)])

    assert len({each.id for each in placed}) == 1
    assert waiting() == [0]


@real
def test_many_with_a_taken_key_are_none_where_a_conflict_raises() -> None:
    task = app.echo.using(unique_key=lambda n: str(n), on_conflict="raise")
    held = task.enqueue(2)

    with pytest.raises(UniqueKeyTaken) as caught:
        task.enqueue_many([((1,), {}), ((2,), {}), ((3,), {})])

    assert str(caught.value.holder_id) == held.id
    assert waiting() == [2]


# Unique keys

unique = app.echo.using(unique_key="k")


@real
def test_a_conflict_returns_the_job_that_holds_the_key() -> None:
    first = unique.enqueue(1)

    second = unique.enqueue(2)

    assert second.id == first.id
    assert second.args == [1]
    assert waiting() == [1]


@real
def test_a_conflict_may_raise_and_names_the_holder() -> None:
    first = unique.enqueue(1)

    with pytest.raises(UniqueKeyTaken, match=first.id) as caught:
        unique.using(on_conflict="raise").enqueue(2)

    assert str(caught.value.holder_id) == first.id
    assert waiting() == [1]


@real
def test_a_conflict_may_replace_the_job_that_waits() -> None:
    first = unique.enqueue(1)

    second = unique.using(on_conflict="replace").enqueue(2)

    assert second.id != first.id
    assert waiting() == [2]
    assert jobs.finished(first).outcome == "cancelled"


@real
def test_a_job_that_runs_is_never_replaced() -> None:
    first = unique.enqueue(1)
    jobs.claim()

    second = unique.using(on_conflict="replace").enqueue(2)

    assert second.id == first.id
    assert jobs.live(first).cancel_asked_at is None


@real
def test_a_job_that_begins_to_run_while_it_is_replaced_is_not_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = unique.enqueue(1)
    store_type = type(get_store())
    cancel = store_type.cancel

    def claimed_before(self: Any, *args: Any, **kwargs: Any) -> Any:
        jobs.claim()
        return cancel(self, *args, **kwargs)

    monkeypatch.setattr(store_type, "cancel", claimed_before)
    second = unique.using(on_conflict="replace").enqueue(2)

    assert second.id == first.id
    assert jobs.live(first).state == State.RUNNING
    assert jobs.live(first).cancel_asked_at is None


@real
def test_a_replacement_rolls_back_with_its_caller() -> None:
    first = unique.enqueue(1)

    with pytest.raises(Failed), transaction.atomic():
        unique.using(on_conflict="replace").enqueue(2)
        raise Failed

    assert waiting() == [1]
    assert jobs.live(first).state == State.READY
    assert not Result.objects.exists()


@real
def test_a_key_constrains_within_its_queue_and_task_only() -> None:
    unique.enqueue(1)
    unique.using(queue_name="mail").enqueue(2)
    app.note.using(unique_key="k").enqueue("path", "3")

    assert LiveJob.objects.count() == 3


@real
@pytest.mark.parametrize("key", ["K", "k ", "ｋ", "1"])
def test_keys_are_told_apart_exactly(key: str) -> None:
    unique.enqueue(1)

    unique.using(unique_key=key).enqueue(2)

    assert LiveJob.objects.count() == 2


@real
def test_a_key_of_scope_live_is_held_until_the_job_has_ended() -> None:
    first = unique.enqueue(1)
    assert unique.enqueue(2).id == first.id

    jobs.drain()

    assert unique.enqueue(3).id != first.id


@real
def test_a_key_of_scope_queued_is_given_up_when_the_job_is_claimed() -> None:
    queued = unique.using(unique_while="queued")
    first = queued.enqueue(1)
    jobs.claim()

    second = queued.enqueue(2)
    third = queued.enqueue(3)

    assert first.id != second.id == third.id


@real
def test_a_retry_of_a_job_never_meets_its_twin() -> None:
    name = jobs.raising(ValueError("boom"))
    task = app.run.using(unique_key="k", unique_while="queued")
    first = task.enqueue(name)
    (claim,) = jobs.claim()
    twin = task.enqueue(name)
    get_store().release(claim)

    jobs.drain()

    assert jobs.dead(first).reason == jobs.dead(twin).reason == "exhausted"


@real
def test_the_holder_may_end_between_the_conflict_and_the_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = unique.enqueue(1)
    look = results.live

    def ended_before(rows: Any) -> Any:
        for job in LiveJob.objects.filter(pk=first.id):
            get_store().cancel(job.id)
        return look(rows)

    monkeypatch.setattr(results, "live", ended_before)
    second = unique.enqueue(2)

    assert second.id != first.id
    assert waiting() == [2]


@pytest.mark.vendor("mysql")
@pytest.mark.parametrize("on_conflict", ["return", "raise", "replace"])
@real
def test_a_holder_that_an_old_snapshot_does_not_show_is_found(on_conflict: Any) -> None:
    first: list[Any] = []
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")

    def enqueue_first() -> None:
        try:
            first.append(unique.enqueue(1))
        finally:
            connections.close_all()

    try:
        with transaction.atomic():
            assert waiting() == []
            thread = threading.Thread(target=enqueue_first)
            thread.start()
            thread.join(PATIENCE_SECONDS)
            assert waiting() == [], "the control: the snapshot is older"
            second = unique.using(on_conflict=on_conflict)
            if on_conflict == "raise":
                with pytest.raises(UniqueKeyTaken, match=first[0].id):
                    second.enqueue(2)
            else:
                assert (second.enqueue(2).id == first[0].id) is (on_conflict == "return")
    finally:
        connection.close()
    assert waiting() == [2 if on_conflict == "replace" else 1]


@real
def test_five_concurrent_enqueues_of_which_four_roll_back_leave_one_job() -> None:
    begun = threading.Barrier(5)
    errors: list[DatabaseError] = []

    def enqueue(number: int) -> None:
        try:
            begun.wait(PATIENCE_SECONDS)
            with transaction.atomic():
                unique.enqueue(number)
                if number:
                    raise Failed
        except Failed:
            pass
        except DatabaseError as error:
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=enqueue, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)

    assert not errors
    # Whoever met the key waited for the end of the transaction that held it.
    assert waiting() == [0]
