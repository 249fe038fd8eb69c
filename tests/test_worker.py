"""`worker`: claim, run, settle, extend, and come to an end, in one process."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.contrib.auth.models import Group
from django.core.management import call_command
from django.db import InternalError, OperationalError, connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from django_workqueue import conf, registry
from django_workqueue.compat import TaskResultStatus, task_finished
from django_workqueue.demand import Room
from django_workqueue.ending import Ended
from django_workqueue.exceptions import Retry, Snooze, Terminal
from django_workqueue.ids import new_worker_id
from django_workqueue.loop import Loop
from django_workqueue.models import DeadJob, LiveJob, Result
from django_workqueue.results import moment
from django_workqueue.states import DeathReason, State
from django_workqueue.store import BaseStore, get_store
from django_workqueue.sweeper import sweep
from django_workqueue.worker import CUT_DELAY_SECONDS, Worker
from tests import jobs
from tests.jobs import app, body, raising
from tests.store_faults import Fault, with_faults
from tests.threads import in_thread
from tests.timescale import LEASE_SECONDS, PATIENCE_SECONDS

pytestmark = pytest.mark.usefixtures("transactional_db")


class Gate:
    """A body that waits until the test lets it go on."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.runs = 0

    def __call__(self) -> str:
        self.runs += 1
        self.begun.set()
        assert self.go_on.wait(PATIENCE_SECONDS)
        return "done"


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.go_on.set()


def replace_store(worker: Worker, store: BaseStore) -> None:
    """Let *worker* claim and settle through *store*."""
    worker.store = worker._claimer._store = worker._flight._store = store


@contextlib.contextmanager
def working(worker: Worker) -> Iterator[list[Ended]]:
    """Run *worker* in a thread; stop it at the end of the block. Yields where its end is put."""
    ended: list[Ended] = []
    thread = threading.Thread(target=lambda: ended.append(worker.run()))
    thread.start()
    try:
        yield ended
        worker.stop()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
    finally:
        worker.stop(2)
        thread.join(PATIENCE_SECONDS)


def wait_until(true: Callable[[], Any]) -> None:
    """Wait for what another thread does and no event tells; fail after a while."""
    never = threading.Event()
    for _ in range(int(PATIENCE_SECONDS / 0.01)):
        if true():
            return
        never.wait(0.01)
    pytest.fail("it did not come true in time")


def counting(runs: list[Any], value: Any = None) -> Callable[[], Any]:
    def count() -> Any:
        runs.append(value)
        return value

    return count


# The whole path


def test_a_job_that_raises_has_its_attempts_with_growing_delays_and_is_dead() -> None:
    task = app.fails_slowly
    result = task.enqueue("order 7")
    delays = []

    for _ in range(3):
        jobs.drain()
        job = LiveJob.objects.first()
        if job is not None:
            record: Any = job.errors[-1]
            delays.append((job.run_after - moment(record["ended"])).total_seconds())
            LiveJob.objects.update(run_after=get_store().now())

    assert [round(delay) for delay in delays] == [10, 20]
    dead = jobs.dead(result)
    assert (dead.reason, dead.attempt) == (DeathReason.EXHAUSTED, 3)
    assert ["ValueError: order 7" in error["traceback"] for error in dead.errors] == [True] * 3


def test_a_requeued_job_runs_again_under_its_id_with_a_new_budget() -> None:
    errors: list[Exception] = [ValueError(str(number)) for number in range(4)]

    def fail_at_first() -> str:
        if errors:
            raise errors.pop()
        return "done"

    result = jobs.enqueue(fail_at_first)
    jobs.drain()
    assert jobs.dead(result).reason == DeathReason.EXHAUSTED

    get_store().requeue(jobs.dead(result).pk)
    jobs.drain()
    result.refresh()

    assert result.return_value == "done"
    assert len(result.errors) == 4


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: float("nan"), "finite"),
        (lambda: "a\x00b", "NUL"),
        (lambda: "\udc80", "surrogate"),
        (lambda: 10**5000, "digits"),
        (object, "builtins.object"),
    ],
)
def test_a_value_that_cannot_be_stored_fails_after_one_run_with_the_reason(
    make: Callable[[], Any], word: str
) -> None:
    runs: list[int] = []

    def hostile() -> Any:
        runs.append(1)
        return make()

    result = jobs.enqueue(hostile)
    jobs.drain()
    result.refresh()

    assert runs == [1]
    assert result.status == TaskResultStatus.FAILED
    assert word in result.errors[0].traceback
    assert jobs.dead(result).reason == DeathReason.UNSTORABLE_RESULT


@pytest.mark.parametrize(
    "error",
    [ValueError("a\x00b"), ValueError("\udc80"), ValueError("x" * 20_000_000), ValueError()],
    ids=["NUL", "surrogate", "20 MB", "no text"],
)
def test_no_error_text_makes_an_outcome_unwritable(error: Exception) -> None:
    result = jobs.enqueue(_raise(error), max_attempts=1)

    jobs.drain()

    dead = jobs.dead(result)
    assert (dead.reason, dead.attempt) == (DeathReason.EXHAUSTED, 1)
    assert len(dead.errors[0]["message"]) <= 65_536


def _raise(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize("leave", [sys.exit, KeyboardInterrupt, BaseException])
def test_three_jobs_that_leave_take_no_slot_from_the_twenty_behind_them(leave: Any) -> None:
    def go() -> None:
        raise leave() if leave is not sys.exit else SystemExit(3)

    left = [jobs.enqueue(go, max_attempts=1) for _ in range(3)]
    after = [jobs.enqueue(lambda: "ran") for _ in range(20)]

    jobs.drain(threads=3)

    for result in left:
        result.refresh()
        assert result.status == TaskResultStatus.FAILED
    for result in after:
        result.refresh()
        assert result.return_value == "ran"


def test_a_job_dead_of_an_exit_says_so() -> None:
    result = app.leave.enqueue(3)

    jobs.drain()

    record = jobs.dead(result).errors[0]
    assert (record["exception_class"], record["message"]) == ("builtins.SystemExit", "3")


def test_a_job_starts_after_the_commit_and_finds_its_row() -> None:
    seen: list[bool] = []
    done = threading.Event()

    def look() -> None:
        seen.append(Group.objects.filter(name="order").exists())
        done.set()

    with working(jobs.new_worker(drain=False)):
        with transaction.atomic():
            Group.objects.create(name="order")
            jobs.enqueue(look)
            assert not done.wait(0.2)
        assert done.wait(PATIENCE_SECONDS)

    assert seen == [True]


def test_no_transaction_is_open_while_a_task_runs() -> None:
    """Case D 102."""
    seen: list[Any] = []

    def look() -> None:
        seen.append(connection.in_atomic_block)
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                    "AND state LIKE 'idle in transaction%%'"
                )
                seen.append(cursor.fetchone()[0])

    jobs.enqueue(look)
    jobs.drain()

    assert not any(seen)


def test_a_terminal_error_is_dead_at_its_first_attempt() -> None:
    result = jobs.enqueue(_raise(Terminal("card expired")), max_attempts=5)

    jobs.drain()

    dead = jobs.dead(result)
    assert (dead.reason, dead.attempt, dead.max_attempts) == (DeathReason.TERMINAL, 1, 5)


def test_without_dead_letters_a_job_is_dropped_at_its_end() -> None:
    jobs.enqueue(_raise(Terminal("no")), dead_letter=False)

    assert [settled.place for settled in jobs.drain()] == ["dropped"]
    assert jobs.counts() == (0, 0, 0)


def test_a_retry_is_an_attempt_and_a_snooze_is_none() -> None:
    asked: list[Exception] = [Snooze(0), Retry(after=0), Snooze(0), Retry(after=0), Snooze(0)]

    def ask() -> str:
        if asked:
            raise asked.pop()
        return "done"

    result = jobs.enqueue(ask, max_attempts=3)
    jobs.drain()
    result.refresh()

    assert result.return_value == "done"
    assert result.attempts == 3


# Order


def order_of(**options: Any) -> list[str]:
    ran: list[str] = []
    for name in ("b", "a", "c"):
        for number in (1, 2):
            jobs.enqueue(counting(ran, f"{name}{number}"), queue_name=name)
    jobs.drain(**options)
    return ran


def test_named_queues_are_served_in_order_of_preference() -> None:
    assert order_of(queues=("c", "a")) == ["c1", "c2", "a1", "a2"]
    assert LiveJob.objects.count() == 2


def test_without_names_every_queue_is_served_in_turn() -> None:
    assert order_of() == ["a1", "b1", "c1", "a2", "b2", "c2"]


def test_within_a_queue_priority_then_time_decide() -> None:
    ran: list[str] = []
    now = get_store().now()
    for name, priority, seconds in (("low", 0, -9), ("high", 5, -1), ("old", 5, -5)):
        due = now + timedelta(seconds=seconds)
        jobs.enqueue(counting(ran, name), priority=priority, run_after=due)

    jobs.drain()

    assert ran == ["old", "high", "low"]


def test_a_paused_queue_is_left_alone_and_does_not_keep_a_drain_from_its_end() -> None:
    result = jobs.enqueue(lambda: 1)
    get_store().pause("default")

    jobs.drain()
    assert jobs.live(result).state == State.READY
    get_store().resume("default")
    jobs.drain()

    assert jobs.finished(result).outcome == "succeeded"


# The end of a worker


def test_a_drain_ends_when_nothing_is_due_and_leaves_what_is_later() -> None:
    """Case N17."""
    later = app.echo.using(run_after=jobs.in_an_hour()).enqueue(1)
    jobs.enqueue(lambda: 1)

    assert jobs.new_worker().run() is Ended.DONE

    assert jobs.live(later).state == State.SCHEDULED
    assert Result.objects.count() == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"task": "app.tasks.new"},
        {"expires_at": "past"},
        {"attempt": 3},
    ],
    ids=["unknown", "expired", "spent"],
)
def test_ready_rows_that_this_worker_cannot_take_do_not_keep_a_drain_from_its_end(
    changes: dict[str, Any],
) -> None:
    for _ in range(3):
        app.echo.enqueue(1)
    if changes.get("expires_at") == "past":
        changes = {"expires_at": get_store().now() - timedelta(seconds=1)}
    LiveJob.objects.update(**changes)

    jobs.drain()

    assert LiveJob.objects.count() == 3


def test_a_worker_ends_after_max_jobs() -> None:
    for _ in range(5):
        jobs.enqueue(lambda: 1)

    jobs.drain(max_jobs=3, threads=2, drain=False)

    assert jobs.counts() == (2, 0, 3)


def test_a_stop_lets_what_runs_end_and_claims_nothing_more(gate: Gate) -> None:
    running = jobs.enqueue(gate)
    waiting = jobs.enqueue(lambda: 1)
    worker = jobs.new_worker(drain=False)

    with working(worker) as ended:
        assert gate.begun.wait(PATIENCE_SECONDS)
        worker.stop()
        gate.go_on.set()

    assert ended == [Ended.DONE]
    assert jobs.finished(running).value == "done"
    assert (jobs.live(waiting).state, jobs.live(waiting).attempt) == (State.READY, 0)


def test_what_was_claimed_and_not_started_goes_back_uncharged_though_the_database_fails(
    gate: Gate,
) -> None:
    worker = jobs.new_worker(drain=False)
    fault = Fault("release", OperationalError("cut"), times=2)
    replace_store(worker, with_faults(worker.store, fault))
    running, waiting = jobs.enqueue(gate), jobs.enqueue(lambda: 1)

    with working(worker) as ended:
        assert gate.begun.wait(PATIENCE_SECONDS)
        worker._claim(Room(1, 0, 1))  # As if there had been a slot for it.
        worker.stop()
        wait_until(lambda: jobs.live(waiting).state == State.READY)
        gate.go_on.set()

    assert fault.bitten == 2
    assert ended == [Ended.DONE]
    assert jobs.live(waiting).attempt == 0
    assert jobs.finished(running).attempts == 1


def test_after_its_grace_what_still_runs_goes_back_uncharged_and_a_second_late(
    gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    result = jobs.enqueue(gate)
    worker = jobs.new_worker(drain=False, grace_seconds=0.1)

    with working(worker) as ended:
        assert gate.begun.wait(PATIENCE_SECONDS)
        worker.stop()

    assert ended == [Ended.GRACE_OVER]
    job = jobs.live(result)
    assert (job.state, job.attempt, job.worker_ids) == (State.SCHEDULED, 0, [])
    assert job.run_after > get_store().now() - timedelta(seconds=1)
    assert "lease lost" not in jobs.logged(caplog)


def test_a_coroutine_that_outlasts_the_grace_goes_back_too(gate: Gate) -> None:
    """Case A 30."""

    async def wait_on() -> str:
        gate.begun.set()
        await asyncio.to_thread(gate.go_on.wait, PATIENCE_SECONDS)
        return "done"

    result = app.arun.enqueue(body(wait_on))
    worker = jobs.new_worker(drain=False, grace_seconds=0.1)

    with working(worker) as ended:
        assert gate.begun.wait(PATIENCE_SECONDS)
        worker.stop()
        wait_until(lambda: ended)
        job = jobs.live(result)
        gate.go_on.set()

    assert ended == [Ended.GRACE_OVER]
    assert (job.state, job.attempt, job.token) == (State.SCHEDULED, 0, None)
    assert not Result.objects.exists()


def test_a_second_stop_gives_everything_back_at_once(gate: Gate) -> None:
    result = jobs.enqueue(gate)
    worker = jobs.new_worker(drain=False, grace_seconds=3_600)

    with working(worker) as ended:
        assert gate.begun.wait(PATIENCE_SECONDS)
        worker.stop(2)

    assert ended == [Ended.CUT]
    assert (jobs.live(result).state, jobs.live(result).attempt) == (State.SCHEDULED, 0)


def test_a_worker_that_cut_jobs_short_is_gone_before_they_are_due_again(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Their bodies run on until the process ends, and another worker may start them then.
    waited: list[float] = []
    join = Loop.join

    def timed_join(loop: Loop, timeout: float | None = None) -> bool:
        waited.append(math.inf if timeout is None else timeout)
        return join(loop, timeout)

    monkeypatch.setattr(Loop, "join", timed_join)
    jobs.enqueue(gate)
    worker = jobs.new_worker(drain=False, sweep=True)

    with working(worker) as ended:
        assert gate.begun.wait(PATIENCE_SECONDS)
        worker.stop(2)

    assert ended == [Ended.CUT]
    # However many threads there are, all share one moment until which they are waited for.
    assert len(set(waited)) == len(waited) >= 2
    assert waited == sorted(waited, reverse=True)
    assert waited[0] < CUT_DELAY_SECONDS


def test_the_grace_begins_with_the_signal_not_with_the_last_of_max_jobs(gate: Gate) -> None:
    result = jobs.enqueue(gate)
    worker = jobs.new_worker(drain=False, max_jobs=1, grace_seconds=PATIENCE_SECONDS)

    with working(worker) as ended:
        assert gate.begun.wait(PATIENCE_SECONDS)
        wait_until(lambda: worker._ending._began is not None)
        # Long ago, as after a job of an hour.
        worker._ending._began = -math.inf
        worker.stop()
        assert not threading.Event().wait(0.3)
        gate.go_on.set()

    assert ended == [Ended.DONE]
    assert jobs.finished(result).value == "done"


def test_a_worker_whose_extender_is_gone_ends_with_what_ended_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*args: Any) -> Any:
        raise SystemExit("of the extender")

    monkeypatch.setattr("django_workqueue.extender.Extender._write_progress", broken)

    with pytest.raises(SystemExit, match="of the extender"):
        jobs.new_worker(drain=False).run()


def test_no_two_workers_have_one_id() -> None:
    assert len({new_worker_id() for _ in range(100)}) == 100


# Unknown tasks


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Make `tasks.note` unknown to this process; call it to declare the task again."""
    known = dict(registry._tasks)
    path = app.note.module_path
    unknown = {name: task for name, task in known.items() if name != path}
    monkeypatch.setattr(registry, "_tasks", unknown)
    return lambda: registry.add(app.note)


def test_an_unknown_task_is_held_uncharged_and_the_good_one_behind_it_runs(
    forgotten: Any, tmp_path: Any
) -> None:
    """Case A 25."""
    unknown = app.note.enqueue(str(tmp_path / "file"), "ran")
    good = jobs.enqueue(lambda: 1)

    jobs.drain()

    job = jobs.live(unknown)
    assert (job.state, job.held_reason, job.attempt) == (State.HELD, "unknown", 0)
    assert job.payload["args"][1] == "ran"
    assert f"unknown task {app.note.module_path}" in job.errors[0]["message"]
    assert jobs.finished(good).value == 1


def test_when_its_task_appears_a_held_job_runs_with_its_full_budget(
    forgotten: Any, tmp_path: Any
) -> None:
    result = app.note.enqueue(str(tmp_path / "file"), "ran")
    jobs.drain()
    fence = jobs.live(result).fence
    LiveJob.objects.update(run_after=get_store().now())

    forgotten()
    jobs.drain()

    assert (tmp_path / "file").read_text() == "ran\n"
    done = jobs.finished(result)
    assert done.attempts == 1
    assert fence == 1


@pytest.mark.parametrize(("seconds", "all_held"), [(60.0, False), (0.0, True)])
def test_jobs_of_a_task_found_unknown_are_left_to_other_workers_and_held_after_a_while(
    *, seconds: float, all_held: bool, forgotten: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_workqueue.claimer.UNKNOWN_SECONDS", seconds)
    monkeypatch.setattr("django_workqueue.claimer.UNHOLD_SECONDS", 0.0)
    app.note.enqueue_many([(("file", "ran"), {})] * 9)

    jobs.drain()

    # Held jobs are counted as unknown, and no claim steps over them. A second one may be claimed
    # before it is known of the first.
    held = LiveJob.objects.filter(state=State.HELD, unknown_since__isnull=False).count()
    assert held == 9 if all_held else 1 <= held <= 2


@pytest.mark.parametrize("bad", ["task", "arguments"])
def test_after_the_grace_for_unknown_tasks_a_held_job_is_dead(bad: str) -> None:
    result = app.add.enqueue(1)
    if bad == "task":
        LiveJob.objects.update(task="app.tasks.new")
    else:
        LiveJob.objects.update(payload={"args": [1, 2, 3], "kwargs": {}})
    jobs.drain()
    assert jobs.live(result).state == State.HELD

    assert get_store().bury_unknown(86_400) == []
    with (
        jobs.workqueue(UNKNOWN_TASK_SECONDS=0, SWEEP_SECONDS=0.1),
        working(jobs.new_worker(drain=False, sweep=True)),
    ):
        wait_until(DeadJob.objects.exists)

    dead = jobs.dead(result)
    assert dead.reason == ("unknown_task" if bad == "task" else "bad_arguments")
    assert dead.attempt == 0


def test_a_job_dead_of_its_unknown_task_runs_when_it_is_requeued_where_the_task_is_known(
    forgotten: Any, tmp_path: Any
) -> None:
    """Case A 26: code older than the job throws nothing away."""
    result = app.note.enqueue(str(tmp_path / "file"), "ran")
    jobs.drain()
    get_store().bury_unknown(0)
    dead = jobs.dead(result)
    assert (dead.reason, dead.payload["args"][1]) == ("unknown_task", "ran")
    assert f"unknown task {app.note.module_path}" in dead.errors[0]["message"]

    forgotten()
    assert get_store().requeue(dead.pk)
    jobs.drain()

    assert (tmp_path / "file").read_text() == "ran\n"
    assert jobs.finished(result).attempts == 1


# Faults of the database


def settled_through(fault: Fault, name: str, **options: Any) -> Any:
    """Enqueue one job and run a worker whose store has *fault*; return its result."""
    result = app.run.using(**options).enqueue(name)
    worker = jobs.new_worker()
    replace_store(worker, with_faults(worker.store, fault))
    worker.run()
    assert fault.bitten
    return result


FAULTS = [
    OperationalError("server closed the connection"),
    InternalError("cannot execute DELETE in a read-only transaction"),
]


@pytest.mark.parametrize("error", FAULTS, ids=["cut", "read-only"])
@pytest.mark.parametrize("after", [False, True], ids=["before the write", "after the write"])
def test_a_fault_while_settling_is_retried_and_the_task_not_run_again(
    error: Exception, after: bool, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[int] = []
    fault = Fault("ack", error, times=1 if after else 3, after=after)

    result = settled_through(fault, body(counting(runs, 7)))
    result.refresh()

    assert runs == [7]
    assert result.return_value == 7
    assert result.errors == []
    assert jobs.logged(caplog)[-1] == "database is back"
    assert "job lost to another claim" not in jobs.logged(caplog)


@pytest.mark.parametrize("after", [False, True], ids=["before the write", "after the write"])
def test_a_job_of_one_attempt_without_a_result_survives_a_fault_while_settling(
    after: bool, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[int] = []
    fault = Fault("ack", FAULTS[0], after=after)

    settled_through(fault, body(counting(runs)), max_attempts=1, result_ttl=0)

    assert len(runs) == 1
    assert jobs.counts() == (0, 0, 0)
    assert "job lost to another claim" not in jobs.logged(caplog)


@pytest.mark.parametrize("after", [False, True], ids=["before the claim", "after the claim"])
def test_a_claim_whose_answer_was_lost_is_given_back_and_charged_once(after: bool) -> None:
    runs: list[int] = []

    result = settled_through(Fault("claim", FAULTS[0], after=after), body(counting(runs, 7)))
    result.refresh()

    assert runs == [7]
    assert result.attempts == 1
    assert jobs.finished(result).attempts == 1


def test_a_failure_of_the_task_is_recorded_once_through_a_fault() -> None:
    fault = Fault("retry", FAULTS[0], after=True)

    result = settled_through(fault, raising(ValueError("boom")))

    assert len(jobs.dead(result).errors) == 3


def test_what_cannot_be_told_is_no_reason_to_stop(caplog: pytest.LogCaptureFixture) -> None:
    def closed(settled: Any) -> None:
        raise BrokenPipeError("the terminal is closed")

    results = [jobs.enqueue(lambda: 1) for _ in range(3)]

    jobs.new_worker(closed).run()

    assert [jobs.finished(result).value for result in results] == [1, 1, 1]
    assert jobs.logged(caplog) == ["outcome could not be told"] * 3


# Clocks


@pytest.mark.parametrize("hours", [1, -1])
def test_a_worker_whose_clock_is_wrong_starts_nothing_early_and_takes_nothing_away(
    hours: int,
) -> None:
    store = get_store()
    soon = app.echo.using(run_after=store.now() + timedelta(minutes=10)).enqueue(1)
    due = app.echo.using(run_after=store.now()).enqueue(2)
    held = app.echo.using(queue_name="other").enqueue(3)
    jobs.claim("other", lease_seconds=60)

    with time_machine.travel(datetime.now(UTC) + timedelta(hours=hours), tick=True):
        jobs.drain()
        swept = sweep(store, conf.current())

    assert jobs.live(soon).state == State.SCHEDULED
    assert jobs.finished(due).value == 2
    assert jobs.live(held).state == State.RUNNING
    assert swept.as_json()["jobs"] == []
    # The control: on the database's clock the job is due ten minutes later.
    LiveJob.objects.filter(pk=soon.id).update(run_after=store.now())
    jobs.drain()
    assert jobs.finished(soon).value == 1


# Leases


def test_a_job_longer_than_its_lease_runs_once_beside_idle_workers(gate: Gate) -> None:
    result = jobs.enqueue(gate)
    options: dict[str, Any] = {"drain": False, "sweep": True, "lease_seconds": LEASE_SECONDS}
    with jobs.workqueue(SWEEP_SECONDS=0.1):
        first, second = jobs.new_worker(**options), jobs.new_worker(**options)
        with working(first), working(second):
            assert gate.begun.wait(PATIENCE_SECONDS)
            begun = jobs.live(result)
            ends = begun.claimed_at + timedelta(seconds=3 * LEASE_SECONDS)
            wait_until(lambda: get_store().now() > ends)
            extended = jobs.live(result)
            gate.go_on.set()
            wait_until(Result.objects.exists)

    assert gate.runs == 1
    assert extended.token == begun.token
    assert extended.lease_expires_at > begun.lease_expires_at
    assert jobs.finished(result).attempts == 1


def test_the_control_without_extensions_the_same_job_is_taken_over(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_workqueue.extender.Extender.step", lambda extender: 3_600.0)
    result = jobs.enqueue(gate)
    options: dict[str, Any] = {"drain": False, "sweep": True, "lease_seconds": LEASE_SECONDS}
    with jobs.workqueue(SWEEP_SECONDS=0.1):
        first, second = jobs.new_worker(**options), jobs.new_worker(**options)
        with working(first), working(second):
            wait_until(lambda: gate.runs == 2)
            gate.go_on.set()
            wait_until(Result.objects.exists)

    assert jobs.finished(result).attempts == 2


def test_a_worker_that_ends_late_leaves_the_row_of_the_new_holder_alone(
    gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    result = jobs.enqueue(gate)
    with working(jobs.new_worker(drain=False)):
        assert gate.begun.wait(PATIENCE_SECONDS)
        get_store().reclaim(now=jobs.live(result).lease_expires_at + timedelta(seconds=1))
        (newer,) = jobs.claim()
        before = LiveJob.objects.values().get()
        gate.go_on.set()
        wait_until(lambda: jobs.logged(caplog))

    assert LiveJob.objects.values().get() == before
    assert before["token"] == newer.token
    assert jobs.logged(caplog) == ["job lost to another claim"]


# An idle worker


def test_an_idle_worker_writes_nothing() -> None:
    worker = jobs.new_worker(drain=False)
    steps: list[float] = []
    with CaptureQueriesContext(connection) as captured:
        worker._executors.start()
        for _ in range(3):
            worker._claimer._unhold_at = 0.0
            steps.append(worker._step())
    worker._close()

    statements = [query["sql"].lstrip(" (").upper() for query in captured]
    assert statements
    reads = ("SELECT", "WITH RECURSIVE NAMES", "WITH DUE AS MATERIALIZED (SELECT", "PRAGMA")
    allowed = (*reads, "LISTEN", "NOTIFY", "BEGIN", "COMMIT")
    assert [each for each in statements if not each.startswith(allowed)] == []
    assert not any(each.startswith("BEGIN IMMEDIATE") for each in statements)
    assert all(seconds > 0 for seconds in steps)


@pytest.mark.vendor("sqlite")
def test_an_idle_worker_polls_on_while_another_connection_holds_the_write_lock(
    caplog: pytest.LogCaptureFixture,
) -> None:
    locked, done = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            Group.objects.create(name="held")
            locked.set()
            assert done.wait(PATIENCE_SECONDS)
        connections.close_all()

    holder = threading.Thread(target=hold)
    holder.start()
    assert locked.wait(PATIENCE_SECONDS)
    try:
        # It would wait 20 s for the lock if it wanted it.
        assert jobs.new_worker(sweep=True).run() is Ended.DONE
    finally:
        done.set()
        holder.join(PATIENCE_SECONDS)

    assert jobs.logged(caplog) == []


@pytest.mark.vendor("postgresql")
def test_a_worker_starts_and_works_while_a_dump_reads_the_tables() -> None:
    """Case E 114: it runs no DDL, which would wait for the dump and hold up all behind it."""
    result = jobs.enqueue(lambda: 1)
    dumping, done = threading.Event(), threading.Event()

    def dump() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("LOCK TABLE workqueue_livejob, workqueue_result IN ACCESS SHARE MODE")
            dumping.set()
            assert done.wait(PATIENCE_SECONDS)

    ended = in_thread(dump)
    assert dumping.wait(PATIENCE_SECONDS)
    try:
        call_command("runworker", drain=True, verbosity=0)
        assert jobs.finished(result).value == 1
        # The control: DDL would wait.
        with pytest.raises(OperationalError, match="timeout"), connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '10ms'")
            cursor.execute("ALTER TABLE workqueue_livejob ALTER COLUMN suspect SET DEFAULT false")
    finally:
        done.set()
        ended()


# Signals


def test_task_finished_is_sent_after_the_outcome_was_written() -> None:
    seen: list[tuple[str, tuple[int, int, int]]] = []

    def receiver(task_result: Any, **kwargs: Any) -> None:
        seen.append((task_result.status, jobs.counts()))

    task_finished.connect(receiver)
    try:
        jobs.enqueue(lambda: 1)
        jobs.drain()
        jobs.enqueue(_raise(Terminal("no")))
        jobs.drain()
        jobs.enqueue(object)
        jobs.drain()
    finally:
        task_finished.disconnect(receiver)

    assert seen == [
        (TaskResultStatus.SUCCESSFUL, (0, 0, 1)),
        (TaskResultStatus.FAILED, (0, 1, 1)),
        (TaskResultStatus.FAILED, (0, 2, 1)),
    ]


def test_an_attempt_that_will_be_retried_is_not_finished() -> None:
    seen: list[Any] = []

    def receiver(task_result: Any, **kwargs: Any) -> None:
        seen.append(task_result.status)

    task_finished.connect(receiver)
    try:
        jobs.enqueue(_raise(ValueError()))
        jobs.drain()
    finally:
        task_finished.disconnect(receiver)

    assert seen == [TaskResultStatus.FAILED]
