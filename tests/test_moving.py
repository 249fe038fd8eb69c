"""`moving`: a job leaves with the data's transaction, and arrives in the queue's database once."""

from __future__ import annotations

import threading
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Group
from django.db import DatabaseError, IntegrityError, connections, transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import path

from django_workqueue import moving, outbox
from django_workqueue.compat import TaskResultStatus
from django_workqueue.models import DeadJob, LiveJob, Moved, Result
from django_workqueue.relay import relayed_aliases
from django_workqueue.store import Ack, get_store
from tests import jobs
from tests.jobs import app
from tests.outboxes import claim, deliver_all, relaying
from tests.processes import wait_until
from tests.store_faults import too_large
from tests.threads import in_thread

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "other"]),
    pytest.mark.usefixtures("two_databases", "own_destinations"),
]

READY = TaskResultStatus.READY
SUCCESSFUL = TaskResultStatus.SUCCESSFUL
FAILED = TaskResultStatus.FAILED


class Failed(Exception):
    pass


@pytest.fixture(autouse=True)
def _outboxes() -> Any:
    """The queue is in "default", the data in "other"."""
    with jobs.workqueue(OUTBOX_DATABASES=["other"]):
        yield


def status(result: Any) -> Any:
    return app.echo.get_backend().get_result(result.id).status


def leave(task: Any = None, *args: Any, **options: Any) -> Any:
    """Enqueue in a committed transaction of "other"."""
    with transaction.atomic(using="other"):
        chosen = (task or app.echo).using(**options)
        return outbox.enqueue(chosen, *args, using="other")


def left() -> int:
    """Return how many rows the outbox has."""
    return LiveJob.objects.using("other").count()


# With the data's transaction


def test_a_job_leaves_with_the_data_and_arrives_under_the_same_id() -> None:
    with transaction.atomic(using="other"):
        result = outbox.enqueue(app.echo, "receipt", using="other")
        assert (result.status, result.args) == (READY, ["receipt"])
        assert status(result) == READY
    assert (left(), LiveJob.objects.count()) == (1, 0)
    assert status(result) == READY
    deliver_all()
    assert (left(), jobs.counts()) == (0, (0, 0, 1))
    assert status(result) == SUCCESSFUL
    assert app.echo.get_backend().get_result(result.id).return_value == "receipt"
    assert not Result.objects.using("other").exists()
    assert [each.pk for each in Moved.objects.all()] == [uuid.UUID(result.id)]


def test_a_job_of_a_rolled_back_transaction_or_savepoint_never_was() -> None:
    """Cases D 91, 93 and 94, across databases."""
    with pytest.raises(Failed), transaction.atomic(using="other"):
        outbox.enqueue(app.echo, "A", using="other")
        raise Failed
    with transaction.atomic(using="other"):
        outbox.enqueue(app.echo, "B", using="other")
        with pytest.raises(Failed), transaction.atomic(using="other"):
            outbox.enqueue(app.echo, "C", using="other")
            raise Failed
    deliver_all()
    assert [each.value for each in Result.objects.all()] == ["B"]


def test_the_queue_s_own_transaction_decides_nothing() -> None:
    """Case D 93: the hook, and the transaction, of the alias that was named."""
    with pytest.raises(Failed), transaction.atomic():
        with transaction.atomic(using="other"):
            outbox.enqueue(app.echo, "kept", using="other")
        raise Failed
    deliver_all()
    assert [each.value for each in Result.objects.all()] == ["kept"]


def test_in_the_queue_s_own_database_it_is_a_plain_enqueue() -> None:
    with jobs.workqueue(OUTBOX_DATABASES=["default", "other"]), transaction.atomic():
        outbox.enqueue(app.echo, "here", using="default")
        (job,) = LiveJob.objects.all()
    assert (job.lane, job.queue_name) == ("task", "default")
    with jobs.workqueue(OUTBOX_DATABASES=[]), transaction.atomic():
        outbox.enqueue(app.echo, "there", using="default")
    assert LiveJob.objects.filter(lane="task").count() == 2


def test_every_option_of_the_job_arrives() -> None:
    when = get_store("other").now() + timedelta(hours=2)
    options = {
        "queue_name": "mail",
        "priority": 7,
        "max_attempts": 9,
        "timeout": 5.5,
        "expires": 60.25,
        "result_ttl": 17.5,
        "unique_key": "order 7",
        "unique_while": "queued",
        "dead_letter": False,
        "headers": {"tenant": "acme", "é": [1e16, 2**70, None]},
        "run_after": when,
    }
    content = {"order": [1.5, {"deep": "ü"}], "n": 10**30}
    plain = app.echo.using(**options).enqueue(content, kind="x")
    expected: dict[str, Any] = {**LiveJob.objects.filter(pk=plain.id).values().get()}
    LiveJob.objects.all().delete()
    with transaction.atomic(using="other"):
        moved = outbox.enqueue(app.echo.using(**options), content, using="other", kind="x")
    assert status(moved) == READY
    with relaying():
        wait_until(LiveJob.objects.exists)
    arrived: dict[str, Any] = {**LiveJob.objects.values().get()}
    differ = {name for name in expected if expected[name] != arrived[name]}
    assert differ == {"id", "enqueued_at"}
    assert arrived["id"] == uuid.UUID(moved.id)


def test_a_job_expires_from_when_it_was_enqueued() -> None:
    leave(app.echo, 1, expires=60)
    LiveJob.objects.using("other").update(
        enqueued_at=get_store("other").now() - timedelta(seconds=90)
    )
    with relaying():
        wait_until(LiveJob.objects.exists)
    job = LiveJob.objects.get()
    assert job.expires_at is not None
    assert -31 < (job.expires_at - job.enqueued_at).total_seconds() < -29
    (dead,) = get_store().expire()
    assert dead.reason == "expired"


# Once


def test_a_move_that_is_interrupted_after_its_commit_is_not_repeated() -> None:
    """Case O4: the relay died between the commit and its settle."""
    result = leave(app.echo, 1, result_ttl=0)
    (first,) = claim(moving.QUEUE_NAME, using="other")
    assert moving.arrive(first)
    deliver_all(relay_threads=0)
    assert jobs.counts() == (0, 0, 0)
    get_store("other").reclaim(now=first.lease_expires_at)
    assert status(result) == READY
    deliver_all()
    assert left() == 0
    assert jobs.counts() == (0, 0, 0)


def test_a_relay_that_stands_still_before_its_insert_makes_no_second_job() -> None:
    """Case O7: the other relay's job is finished, and its result not kept."""
    ran: list[int] = []
    leave(app.run, jobs.body(ran.append), 1, result_ttl=0)
    (late,) = claim(moving.QUEUE_NAME, using="other")
    get_store("other").reclaim(now=late.lease_expires_at)
    deliver_all()
    assert (ran, left(), jobs.counts()) == ([1], 0, (0, 0, 0))
    assert not moving.arrive(late)
    assert get_store("other").ack([Ack(claim=late, value="null")]) == set()
    deliver_all()
    assert ran == [1]


def test_control_without_its_moved_row_a_late_relay_would_make_a_second_job() -> None:
    ran: list[int] = []
    leave(app.run, jobs.body(ran.append), 1, result_ttl=0)
    (late,) = claim(moving.QUEUE_NAME, using="other")
    get_store("other").reclaim(now=late.lease_expires_at)
    deliver_all()
    Moved.objects.all().delete()
    assert moving.arrive(late)
    deliver_all()
    assert ran == [1, 1]


def test_a_note_that_another_rule_refuses_is_no_job_that_has_arrived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of newer code's schema, with a column that has no default: the row is still there."""
    result = leave(app.echo, 1)

    def refuse(*args: object, **kwargs: object) -> None:
        raise IntegrityError("a column must not be null")

    with monkeypatch.context() as patched:
        patched.setattr(QuerySet, "bulk_create", refuse)
        deliver_all()
    waiting = LiveJob.objects.using("other").get()
    assert (str(waiting.pk), jobs.counts()) == (result.id, (0, 0, 0))
    assert waiting.errors[-1]["message"] == "a column must not be null"


def test_two_relays_that_insert_at_once_make_one_job() -> None:
    leave(app.echo, 1)
    (row,) = claim(moving.QUEUE_NAME, using="other")
    barrier = threading.Barrier(2)

    def arrive() -> bool:
        barrier.wait(20)
        return moving.arrive(row)

    outcomes = [in_thread(arrive) for _ in range(2)]
    assert sorted(outcome() for outcome in outcomes) == [False, True]
    assert LiveJob.objects.count() == 1


def test_an_error_of_the_queue_s_database_charges_nothing_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing, arrive = threading.Event(), moving.arrive
    tried: list[int] = []

    def refuse(row: Any, source: str) -> bool:
        tried.append(row.attempt)
        if not failing.is_set():
            raise DatabaseError("the server is gone")
        return arrive(row, source)

    monkeypatch.setattr(moving, "arrive", refuse)
    results = [leave(app.echo, number) for number in range(3)]
    with relaying(lease_seconds=2):
        wait_until(lambda: len(tried) >= 3)
        assert [status(result) for result in results] == [READY] * 3
        failing.set()
        wait_until(lambda: not left())
    assert set(tried) == {1}
    assert LiveJob.objects.count() == 3


def test_a_row_that_cannot_be_read_is_tried_again_with_its_error() -> None:
    leave(app.echo, 1)
    leave(app.echo, 2)
    broken = LiveJob.objects.using("other").order_by("id")[0]
    LiveJob.objects.using("other").filter(pk=broken.pk).update(payload={"job": 1})
    deliver_all()
    (job,) = LiveJob.objects.using("other").all()
    assert (job.pk, job.state) == (broken.pk, "scheduled")
    # Its backoff is a second at most, which a machine under load may need for this.
    assert job.attempt >= 1
    assert job.errors[-1]["exception_class"] == "builtins.TypeError"
    done: Any = Result.objects.get()
    assert done.value == 2


def assert_dead_and_no_other_held_up(large: Any, others: list[Any]) -> None:
    with relaying():
        wait_until(lambda: not left())
    assert [status(result) for result in [large, *others]] == [FAILED, READY, READY]
    dead = DeadJob.objects.using("other").get()
    assert (str(dead.pk), dead.reason) == (large.id, "terminal")
    (record,) = DeadJob.objects.using("other").values_list("errors", flat=True).get()
    assert "max_allowed_packet" in record["message"]


@pytest.mark.vendor("postgresql", "mysql")  # SQLite says it with a DataError, as of any bad value.
def test_a_job_too_large_for_the_queue_s_database_is_dead_and_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arrive = moving.arrive

    def refuse(row: Any, source: str) -> bool:
        if "large" in row.payload:
            raise too_large(get_store())
        return arrive(row, source)

    monkeypatch.setattr(moving, "arrive", refuse)
    results = [leave(app.echo, value) for value in ("large", 1, 2)]
    assert_dead_and_no_other_held_up(results[0], results[1:])
    monkeypatch.undo()
    assert get_store("other").requeue(uuid.UUID(results[0].id))
    with jobs.workqueue(OUTBOX_DATABASES=["other"]), relaying():
        wait_until(lambda: not left())
    assert status(results[0]) == READY


@pytest.mark.vendor("mysql")
@pytest.mark.skipif(
    settings.DATABASES["other"]["ENGINE"].endswith("mysql"), reason="two servers of one limit"
)
@pytest.mark.parametrize("megabytes", [17, 40])
def test_a_job_that_only_the_data_s_database_takes_is_dead(megabytes: int) -> None:
    """Above its max_allowed_packet a server says so; far above, it only hangs up."""
    with jobs.workqueue(OUTBOX_DATABASES=["other"], PAYLOAD_MAX_BYTES=64 << 20):
        large = leave(app.echo, "x" * (megabytes << 20))
        others = [leave(app.echo, number) for number in range(2)]
        assert_dead_and_no_other_held_up(large, others)


# Unique keys


def test_a_key_that_is_taken_when_the_job_arrives_finishes_it_and_says_who_holds_it() -> None:
    holder = app.echo.using(unique_key="k").enqueue(1)
    refused = leave(app.echo, 2, unique_key="k")
    with relaying():
        wait_until(lambda: not left())
    assert [str(job.pk) for job in LiveJob.objects.all()] == [holder.id]
    result = app.echo.get_backend().get_result(refused.id)
    assert result.status == FAILED
    assert holder.id in result.errors[0].traceback


def test_a_key_may_replace_its_holder_when_the_job_arrives() -> None:
    app.echo.using(unique_key="k").enqueue(1)
    result = leave(app.echo, 2, unique_key="k", on_conflict="replace")
    with relaying():
        wait_until(lambda: not left())
    assert [str(job.pk) for job in LiveJob.objects.all()] == [result.id]


# What is kept, and for how long


def test_a_moved_row_is_purged_when_its_source_is_gone_and_a_day_old() -> None:
    store = get_store()
    gone, there, young = (leave(app.echo, number) for number in range(3))
    rows = claim(moving.QUEUE_NAME, using="other")
    assert all(moving.arrive(row) for row in rows)
    source = get_store("other")
    source.ack([Ack(claim=row, value="null") for row in rows if str(row.id) != there.id])
    day = timedelta(seconds=moving.KEEP_SECONDS, milliseconds=1)
    Moved.objects.exclude(pk=young.id).update(moved_at=store.now() - day)
    assert moving.purge_moved(store, dry_run=True) == 1
    assert moving.purge_moved(store) == 1
    assert {str(row.pk) for row in Moved.objects.all()} == {there.id, young.id}
    assert gone.id not in {str(row.pk) for row in Moved.objects.all()}


def test_a_moved_row_is_kept_while_its_outbox_is_relayed_no_more() -> None:
    """Its source may have kept the row: a relay that died between its two commits left it there."""
    store = get_store()
    leave(app.echo, 1)
    (row,) = claim(moving.QUEUE_NAME, using="other")
    assert moving.arrive(row, "other")
    day = timedelta(seconds=moving.KEEP_SECONDS, milliseconds=1)
    Moved.objects.update(moved_at=store.now() - day)
    with jobs.workqueue(OUTBOX_DATABASES=[]):
        assert moving.purge_moved(store) == 0
    get_store("other").release(row)
    with relaying():
        wait_until(lambda: not left())
    assert LiveJob.objects.count() == 1, "the job was moved twice"
    assert moving.purge_moved(store) == 1


def test_a_relay_notes_which_outbox_a_job_left() -> None:
    leave(app.echo, 1)
    with relaying():
        wait_until(lambda: not left())
    assert Moved.objects.get().source == "other"


def test_a_move_that_an_operator_buried_is_failed_and_can_be_requeued() -> None:
    result = leave(app.echo, 1)
    source = get_store("other")
    (row,) = claim(moving.QUEUE_NAME, using="other")
    source.bury(row, jobs.TERMINAL, jobs.error_of(row))
    assert status(result) == FAILED
    assert DeadJob.objects.using("other").count() == 1
    assert source.requeue(uuid.UUID(result.id))
    deliver_all()
    assert status(result) == SUCCESSFUL


def test_a_result_that_is_nowhere_is_looked_for_in_every_outbox() -> None:
    backend = app.echo.get_backend()
    with pytest.raises(Exception, match="0190"):
        backend.get_result("01900000-0000-7000-8000-000000000000")


# ATOMIC_REQUESTS


def buy(request: HttpRequest) -> HttpResponse:
    Group.objects.using("other").create(name=request.GET["name"])
    outbox.enqueue(app.echo, request.GET["name"], using="other")
    if request.GET["name"] == "bad":
        raise Failed
    return HttpResponse("ok")


urlpatterns = [path("buy", buy)]


def test_atomic_requests_of_the_data_s_database_cover_its_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Case D 91."""
    monkeypatch.setitem(connections["other"].settings_dict, "ATOMIC_REQUESTS", True)
    with override_settings(ROOT_URLCONF=__name__):
        client = Client(raise_request_exception=False)
        assert client.get("/buy", {"name": "good"}).status_code == 200
        assert client.get("/buy", {"name": "bad"}).status_code == 500
    groups = Group.objects.using("other")
    assert [group.name for group in groups.all()] == ["good"]
    groups.all().delete()
    deliver_all()
    assert [each.value for each in Result.objects.all()] == ["good"]


# Routers


class QueueElsewhere:
    """The queue is in "other"; the tables, and so an outbox, are in "default" too."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "other" if model._meta.app_label == "workqueue" else None

    db_for_write = db_for_read


def test_a_router_decides_where_the_queue_is_and_the_outbox_stays_with_the_data() -> None:
    with (
        override_settings(DATABASE_ROUTERS=[QueueElsewhere()]),
        jobs.workqueue(OUTBOX_DATABASES=["default"]),
    ):
        with transaction.atomic():
            Group.objects.create(name="order")
            result = outbox.enqueue(app.echo, "routed")
        assert LiveJob.objects.using("default").count() == 1
        assert status(result) == READY
        deliver_all()
        assert status(result) == SUCCESSFUL
    assert not LiveJob.objects.using("default").exists()
    assert Result.objects.using("other").count() == 1
    Group.objects.all().delete()


class QueueAlone(QueueElsewhere):
    """As above, and "default" has no tables of the queue."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return db == "other" if app_label == "workqueue" else None


def test_a_database_that_cannot_have_the_tables_is_not_relayed() -> None:
    """The default of OUTBOX_DATABASES names "default" for projects whose queue is elsewhere."""
    with override_settings(DATABASE_ROUTERS=[QueueAlone()]), jobs.workqueue():
        assert relayed_aliases() == []
        result = app.echo.enqueue("plain")
        deliver_all()
        assert status(result) == SUCCESSFUL
        with pytest.raises(ValueError, match="using of outbox.enqueue"):
            outbox.enqueue(app.echo, 1, using="default")
