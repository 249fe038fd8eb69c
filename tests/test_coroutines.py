"""`coroutines`: `async def` tasks run together on one event loop, and leave nothing behind."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import Group
from django.db import DatabaseError, IntegrityError, connection, transaction

from django_workqueue.compat import task_finished, task_started
from django_workqueue.demand import Room
from django_workqueue.ending import Ended
from django_workqueue.models import LiveJob
from django_workqueue.settler import Settled
from django_workqueue.states import State
from django_workqueue.store import get_store
from django_workqueue.tasks import Context
from tests import jobs
from tests.jobs import app, body
from tests.processes import wait_until
from tests.store_faults import Fault, with_faults
from tests.test_deadlines import ending
from tests.timescale import PATIENCE_SECONDS

pytestmark = pytest.mark.usefixtures("transactional_db")

LIMIT = 0.2


def enqueue(function: Callable[..., Any], *, context: bool = False, **options: Any) -> Any:
    """Enqueue a job that awaits *function*; *options* are those of ``using``."""
    task = app.arun_with_context if context else app.arun
    return task.using(**options).enqueue(body(function))


def drain(told: list[str] | None = None, **options: Any) -> list[Settled]:
    """Run a worker until nothing is due; return its settles, noted in *told* too."""
    settled: list[Settled] = []

    def on_settled(each: Settled) -> None:
        settled.append(each)
        if told is not None:
            told.append("settled")

    jobs.new_worker(on_settled, **{"async_tasks": 10, **options}).run()
    return settled


def places(settled: list[Settled]) -> list[str]:
    return [str(each.place) for each in settled]


async def until(true: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    while not true():  # noqa: ASYNC110 - an event of asyncio cannot be set from there
        await asyncio.sleep(0.01)


class Gate:
    """A coroutine's body that waits until the test, in another thread, lets it go on."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.ended: list[str] = []

    async def __call__(self) -> str:
        self.begun.set()
        try:
            await until(self.go_on.is_set)
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        self.ended.append("done")
        return "done"


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.go_on.set()


# Together


def test_coroutines_run_together_on_one_thread_beside_the_threads() -> None:
    met: set[int] = set()
    together = asyncio.Barrier(5)

    async def meet() -> None:
        await together.wait()
        met.add(threading.get_ident())

    results = [enqueue(meet) for _ in range(5)]
    plain = jobs.enqueue(threading.get_ident)
    drain(threads=1, async_tasks=5)

    assert len(met) == 1
    assert jobs.finished(plain).value not in met
    assert all(jobs.finished(result).outcome == "succeeded" for result in results)


def test_no_more_than_asked_run_at_once() -> None:
    now = most = 0

    async def count() -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1

    for _ in range(9):
        enqueue(count)
    drain(async_tasks=3)

    assert most == 3


def test_a_worker_without_coroutines_starts_no_loop() -> None:
    others = set(threading.enumerate())
    names: list[str] = []
    jobs.enqueue(
        lambda: names.extend(each.name for each in threading.enumerate() if each not in others)
    )
    drain()

    assert "workqueue-executor-0" in names
    assert "workqueue-coroutines" not in names


def test_a_value_and_an_error_of_a_coroutine_are_its_outcome() -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("boom")

    async def greet() -> str:
        return "hello"

    good, bad = enqueue(greet), enqueue(fail, max_attempts=1)
    drain()

    assert jobs.finished(good).value == "hello"
    (error,) = jobs.dead(bad).errors
    assert (error["exception_class"], error["message"]) == ("builtins.ValueError", "boom")
    assert 'raise ValueError("boom")' in error["traceback"]


def test_the_context_of_a_coroutine_tells_about_the_attempt() -> None:
    seen: list[Context] = []

    async def look(context: Context) -> None:
        seen.append(context)
        context.progress(1, 2)

    result = enqueue(look, context=True, timeout=60)
    drain()

    assert str(seen[0].job_id) == result.id
    assert 0 < (seen[0].remaining() or 0) <= 60
    assert seen[0].attempt == 1


def test_context_variables_do_not_pass_from_a_job_to_another() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")

    async def look() -> str:
        seen = variable.get()
        variable.set("set by a job")
        await sync_to_async(variable.get)()
        return seen

    results = [enqueue(look) for _ in range(3)]
    drain(async_tasks=1)

    assert [jobs.finished(result).value for result in results] == ["none"] * 3


# What must not end the loop


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        (SystemExit(3), "3"),
        (KeyboardInterrupt(), ""),
        (BaseException("x"), "x"),
        (asyncio.CancelledError("by itself"), "by itself"),
    ],
)
def test_whatever_a_coroutine_raises_is_a_failed_attempt_and_the_loop_goes_on(
    raised: BaseException, message: str
) -> None:
    async def leave() -> None:
        raise raised

    async def stay() -> int:
        return 1

    left = enqueue(leave, max_attempts=1)
    after = [enqueue(stay) for _ in range(5)]
    drain(async_tasks=1)

    (error,) = jobs.dead(left).errors
    assert error["exception_class"].endswith(f".{type(raised).__name__}")
    assert error["message"] == message
    assert [jobs.finished(result).value for result in after] == [1] * 5


def test_a_task_that_a_coroutine_began_and_that_exits_does_not_end_the_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def leave() -> None:
        sys.exit(3)

    async def begin() -> str:
        begun = asyncio.ensure_future(leave())
        await asyncio.wait([begun])
        return type(begun.exception()).__name__

    result = enqueue(begin)
    drain()

    assert jobs.finished(result).value == "SystemExit"
    assert "event loop was left, and goes on" in jobs.logged(caplog)


def test_what_a_coroutine_began_and_left_is_cancelled_before_its_job_ends() -> None:
    told: list[str] = []

    async def linger() -> None:
        try:
            await asyncio.sleep(PATIENCE_SECONDS)
        finally:
            told.append("cancelled")

    async def begin() -> str:
        told.append(asyncio.ensure_future(linger()).get_name())
        await asyncio.sleep(0)
        return "done"

    result = enqueue(begin)
    drain(told)

    assert told[1:] == ["cancelled", "settled"]
    assert jobs.finished(result).value == "done"


# The database


def test_the_orm_of_all_coroutines_runs_on_one_other_thread() -> None:
    async def count() -> int:
        await Group.objects.acreate(name=str(threading.get_ident()) + str(id(object())))
        return await sync_to_async(threading.get_ident)()

    results = [enqueue(count) for _ in range(1)]
    drain()

    idents = {jobs.finished(result).value for result in results}
    assert len(idents) == 1
    assert idents != {threading.get_ident()}
    assert Group.objects.count() == 1


def leaves_open() -> None:
    transaction.atomic().__enter__()
    Group.objects.create(name="half")


def leaves_broken() -> None:
    transaction.atomic().__enter__()
    with pytest.raises(IntegrityError):
        Group.objects.create(name="once")


def leaves_off() -> None:
    transaction.set_autocommit(False)
    Group.objects.create(name="half")


@pytest.mark.parametrize("leave", [leaves_open, leaves_broken, leaves_off])
@pytest.mark.parametrize("thread_sensitive", [True, False])
def test_a_transaction_left_open_fails_its_own_job_and_no_other(
    leave: Callable[[], None], thread_sensitive: bool
) -> None:
    Group.objects.create(name="once")
    left, beside_ended = asyncio.Event(), asyncio.Event()

    async def break_it() -> None:
        await sync_to_async(leave, thread_sensitive=thread_sensitive)()
        left.set()
        await beside_ended.wait()

    async def beside() -> int:
        await left.wait()
        count = await Group.objects.acount()
        await Group.objects.acreate(name="kept")
        beside_ended.set()
        return count

    broken, good = enqueue(break_it, max_attempts=1), enqueue(beside)
    drain()
    after = enqueue(lambda: Group.objects.acount())
    drain()

    (error,) = jobs.dead(broken).errors
    assert error["exception_class"].endswith(".TransactionLeftOpen")
    assert "left open on default" in error["message"]
    assert jobs.finished(good).value == 1
    assert jobs.finished(after).value == 2
    assert connection.get_autocommit()


def test_a_coroutine_that_raises_with_a_transaction_open_keeps_its_own_error() -> None:
    async def fail() -> None:
        await sync_to_async(leaves_open)()
        raise ValueError("the cause")

    result = enqueue(fail, max_attempts=1)
    drain()

    assert jobs.dead(result).errors[0]["message"] == "the cause"
    assert not Group.objects.exists()


def test_a_transaction_within_one_call_is_kept() -> None:
    def write() -> None:
        with transaction.atomic():
            Group.objects.create(name="whole")

    async def call() -> bool:
        await sync_to_async(write)()
        return await sync_to_async(lambda: connection.get_autocommit())()

    result = enqueue(call)
    drain()

    assert jobs.finished(result).value is True
    assert Group.objects.exists()


def test_a_synchronous_part_may_await_again() -> None:
    async def count() -> int:
        return await Group.objects.acount()

    def part() -> int:
        return async_to_sync(count)() + Group.objects.count()

    result = enqueue(sync_to_async(part))
    drain()

    assert jobs.finished(result).value == 0


def test_a_job_ends_after_its_blocking_calls_though_it_does_not_wait_for_them() -> None:
    told: list[str] = []
    began, go_on = threading.Event(), threading.Event()

    def blocks() -> None:
        began.set()
        go_on.wait(PATIENCE_SECONDS)
        told.append("call ended")

    async def call() -> None:
        asyncio.ensure_future(asyncio.to_thread(blocks))  # noqa: RUF006 - left on purpose
        await until(began.is_set)
        asyncio.get_running_loop().call_later(0.05, go_on.set)

    enqueue(call)
    drain(told)

    assert told == ["call ended", "settled"]


def test_a_coroutine_of_one_attempt_is_marked_as_started_before_its_body_runs() -> None:
    seen: list[Any] = []

    async def look() -> None:
        seen.append((await LiveJob.objects.aget()).started_at)

    enqueue(look, max_attempts=1)
    drain()

    assert seen[0] is not None


def test_a_coroutine_of_one_attempt_that_cannot_be_marked_is_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fault = Fault("mark_started", DatabaseError("cut"))
    faulty = with_faults(get_store(), fault)
    monkeypatch.setattr("django_workqueue.starting.get_store", lambda: faulty)
    runs: list[int] = []

    async def note() -> None:
        runs.append(1)

    enqueue(note, max_attempts=1)
    assert places(drain()) == ["ready", "succeeded"]
    assert fault.bitten == 1
    assert runs == [1]


def test_signals_of_a_coroutine_are_sent_where_a_receiver_may_use_the_orm() -> None:
    seen: list[tuple[str, int]] = []

    def started(task_result: Any, **kwargs: Any) -> None:
        seen.append((str(task_result.status), Group.objects.count()))

    task_started.connect(started)
    task_finished.connect(started)
    try:
        enqueue(lambda: Group.objects.acount())
        drain()
    finally:
        task_started.disconnect(started)
        task_finished.disconnect(started)

    assert seen == [("RUNNING", 0), ("SUCCESSFUL", 0)]


# Time limits and cancels


def test_a_timeout_cancels_the_coroutine_and_its_worker_goes_on(gate: Gate) -> None:
    async def beside() -> str:
        return "beside"

    late = enqueue(gate, timeout=LIMIT, max_attempts=1)
    good = enqueue(beside)
    drain()

    assert gate.ended == ["cancelled"]
    dead = jobs.dead(late)
    assert (dead.reason, dead.attempt) == ("timeout", 1)
    (error,) = dead.errors
    assert error["outcome"] == "timeout"
    assert "must end within 0.2 s" in error["message"]
    assert jobs.finished(good).value == "beside"


def test_a_coroutine_that_cleans_up_after_its_time_is_cancelled_only_once() -> None:
    told: list[str] = []

    async def tidy() -> str:
        try:
            await asyncio.sleep(PATIENCE_SECONDS)
        except asyncio.CancelledError:
            await asyncio.sleep(0.3)
            told.append("tidied")
        return "late"

    late = enqueue(tidy, timeout=LIMIT, max_attempts=1)
    drain()

    assert told == ["tidied"]
    assert jobs.dead(late).reason == "timeout"


def test_a_coroutine_that_blocks_the_loop_is_given_up_and_ends_its_worker() -> None:
    go_on = threading.Event()

    async def block() -> None:
        go_on.wait(PATIENCE_SECONDS)

    result = enqueue(block, timeout=LIMIT, max_attempts=1)
    try:
        with ending(jobs.new_worker(drain=False)) as ended:
            pass
        assert ended == [Ended.STUCK]
        assert jobs.dead(result).reason == "timeout"
    finally:
        go_on.set()


def test_a_blocking_call_that_outlives_the_limit_of_its_job_is_given_up_with_it() -> None:
    go_on = threading.Event()

    async def call() -> None:
        await asyncio.to_thread(go_on.wait, PATIENCE_SECONDS)

    result = enqueue(call, timeout=LIMIT, max_attempts=2)
    try:
        with ending(jobs.new_worker(drain=False, grace_seconds=60.0)) as ended:
            pass
        assert ended == [Ended.STUCK]
        # Not before the process, and the call in it, are gone.
        assert jobs.live(result).run_after > get_store().now()
    finally:
        go_on.set()


def test_a_cancel_is_told_first_and_enforced_after_the_grace(gate: Gate) -> None:
    told: list[bool] = []

    async def deaf(context: Context) -> None:
        try:
            await gate()
        finally:
            told.append(context.cancelled.is_set())

    result = enqueue(deaf, context=True)
    with ending(jobs.new_worker(lease_seconds=0.9, grace_seconds=0.3)) as ended:
        assert gate.begun.wait(PATIENCE_SECONDS)
        get_store().cancel(jobs.live(result).pk)

    assert ended == [Ended.DONE]
    assert told == [True]
    assert gate.ended == ["cancelled"]
    assert jobs.finished(result).outcome == "cancelled"


# Stops


def test_a_coroutine_that_outlives_the_grace_is_cancelled_and_given_back(gate: Gate) -> None:
    result = enqueue(gate)
    made = jobs.new_worker(drain=False, grace_seconds=0.2)
    with ending(made) as ended:
        assert gate.begun.wait(PATIENCE_SECONDS)
        made.stop()

    assert gate.ended == ["cancelled"]
    assert ended == [Ended.GRACE_OVER]
    job = jobs.live(result)
    # The body has ended: no delay, and no attempt.
    assert (job.state, job.attempt, job.errors) == (State.READY, 0, [])
    assert not LiveJob.objects.filter(state=State.RUNNING).exists()


def test_a_second_stop_cancels_at_once(gate: Gate) -> None:
    result = enqueue(gate)
    made = jobs.new_worker(drain=False, grace_seconds=60.0)
    with ending(made) as ended:
        assert gate.begun.wait(PATIENCE_SECONDS)
        made.stop(2)

    assert ended == [Ended.CUT]
    assert gate.ended == ["cancelled"]
    assert (jobs.live(result).state, jobs.live(result).attempt) == (State.READY, 0)


def test_a_coroutine_that_ends_well_though_cancelled_by_a_stop_is_a_success() -> None:
    begun = threading.Event()

    async def finish() -> str:
        begun.set()
        try:
            await asyncio.sleep(PATIENCE_SECONDS)
        except asyncio.CancelledError:
            pass
        return "after all"

    result = enqueue(finish)
    made = jobs.new_worker(drain=False, grace_seconds=0.2)
    with ending(made):
        assert begun.wait(PATIENCE_SECONDS)
        made.stop()

    assert jobs.finished(result).value == "after all"


def test_coroutines_that_were_not_begun_go_back_uncharged_at_a_stop(gate: Gate) -> None:
    result, waiting = enqueue(gate), enqueue(gate)
    made = jobs.new_worker(drain=False, async_tasks=1)
    with ending(made):
        assert gate.begun.wait(PATIENCE_SECONDS)
        made._claim(Room(0, 1, 1))
        assert jobs.live(waiting).state == State.RUNNING
        made.stop()
        wait_until(lambda: jobs.live(waiting).state == State.READY, "the release")
        gate.go_on.set()

    assert jobs.live(waiting).attempt == 0
    assert jobs.finished(result).value == "done"
