"""`threads`: executor threads run jobs in the order given, and no slot is ever lost."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import DatabaseError, InterfaceError, connection, transaction

from django_workqueue import conf, executor, threads
from django_workqueue.compat import task_finished
from django_workqueue.job import Job, Outcome, Verb
from django_workqueue.models import LiveJob
from django_workqueue.store import get_store
from django_workqueue.threads import Executors
from tests import jobs
from tests.jobs import app, body, raising
from tests.store_faults import Fault, with_faults
from tests.timescale import PATIENCE_SECONDS

pytestmark = pytest.mark.usefixtures("transactional_db")


class Pool(Executors):
    """Executors whose outcomes a test can wait for."""

    def __init__(self, count: int) -> None:
        self._came = threading.Event()
        super().__init__(count, conf.current(), 30.0, self._came.set)

    def done(self, count: int = 1) -> list[Job]:
        """Wait for *count* jobs; return them in the order in which they ended."""
        done: list[Job] = []
        while len(done) < count:
            assert self._came.wait(PATIENCE_SECONDS)
            self._came.clear()
            done += self.take_done()
        return done

    @property
    def room(self) -> int:
        """How many more jobs could start now."""
        return self.count - len(self._waiting) - len(self.running())


@pytest.fixture
def pool() -> Iterator[Callable[[int], Pool]]:
    pools: list[Pool] = []

    def start(count: int = 1) -> Pool:
        pools.append(Pool(count))
        pools[-1].start()
        return pools[-1]

    yield start
    for each in pools:
        assert each.stop(PATIENCE_SECONDS)


def claimed(*names: str, **options: Any) -> list[Job]:
    results = [app.run.using(**options).enqueue(name) for name in names]
    by_id = {str(claim.id): Job(claim) for claim in jobs.claim(limit=len(names))}
    return [by_id[result.id] for result in results]


def test_jobs_are_run_in_the_order_given(pool: Any) -> None:
    order: list[int] = []
    given = claimed(*[body(lambda number=number: order.append(number)) for number in range(5)])
    one = pool()

    one.put(given)
    done = one.done(5)

    assert order == [0, 1, 2, 3, 4]
    assert done == given
    assert all(job.outcome and job.outcome.verb is Verb.ACK for job in done)


def test_as_many_run_at_once_as_there_are_threads(pool: Any) -> None:
    meet = threading.Barrier(3)
    three = pool(3)

    three.put(claimed(*[body(lambda: meet.wait(PATIENCE_SECONDS))] * 3))

    assert all(job.outcome.verb is Verb.ACK for job in three.done(3))


def test_room_is_what_could_start_now(pool: Any) -> None:
    go_on, begun = threading.Event(), threading.Semaphore(0)

    def wait() -> None:
        begun.release()
        assert go_on.wait(PATIENCE_SECONDS)

    two = pool(2)
    assert two.room == 2
    two.put(claimed(*[body(wait)] * 3))
    for _ in range(2):
        assert begun.acquire(timeout=PATIENCE_SECONDS)
    assert two.room == -1
    assert len(two.running()) == 2

    (unstarted,) = two.take_unstarted()
    assert unstarted.started is None
    go_on.set()
    two.done(2)
    assert two.room == 2


@pytest.mark.parametrize(
    "raised", [SystemExit(3), KeyboardInterrupt(), BaseException("x"), GeneratorExit()]
)
def test_no_slot_is_lost_whatever_a_body_raises(raised: BaseException, pool: Any) -> None:
    """Cases A 21 and 22."""
    one = pool()

    one.put(claimed(*[raising(raised)] * 3, *[body(lambda: 1)] * 20))
    done = one.done(23)

    assert [job.outcome.verb for job in done] == [Verb.RETRY] * 3 + [Verb.ACK] * 20
    assert one.room == 1


@pytest.mark.parametrize("raised", [ValueError(), SystemExit(3)])
def test_no_slot_is_lost_whatever_a_receiver_raises(raised: BaseException, pool: Any) -> None:
    def receiver(**kwargs: Any) -> None:
        raise raised

    one = pool()
    one.put(claimed(body(lambda: 1)))
    done = one.done()
    task_finished.connect(receiver)
    try:
        one.tell(done)
        one.put(claimed(body(lambda: 2)))
        # The same thread: the receiver was called before.
        (after,) = one.done()
    finally:
        task_finished.disconnect(receiver)

    assert after.outcome.value == "2"


def test_a_job_of_one_attempt_is_marked_as_started_before_its_body_runs(pool: Any) -> None:
    seen: list[Any] = []
    (job,) = claimed(body(lambda: seen.append(LiveJob.objects.get().started_at)), max_attempts=1)
    one = pool()

    one.put([job])
    one.done()

    assert seen[0] is not None


def test_a_job_of_more_attempts_is_not_marked(pool: Any) -> None:
    seen: list[Any] = []
    one = pool()

    one.put(claimed(body(lambda: seen.append(LiveJob.objects.get().started_at))))
    one.done()

    assert seen == [None]


@pytest.mark.parametrize("error", [DatabaseError("cut"), InterfaceError("closed")])
def test_a_job_of_one_attempt_that_cannot_be_marked_is_not_run_and_its_slot_is_free(
    error: Exception, pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Fault("mark_started", error)
    faulty = with_faults(get_store(), fault)
    monkeypatch.setattr("django_workqueue.starting.get_store", lambda: faulty)
    ran: list[int] = []
    first, second = claimed(
        body(lambda: ran.append(1)), body(lambda: ran.append(2)), max_attempts=1
    )
    one = pool()

    one.put([first, second])
    one.done(2)

    assert fault.bitten == 1
    assert first.outcome is None
    assert ran == [2]
    assert one.room == 1


def test_a_job_whose_lease_was_lost_while_it_waited_is_not_run(pool: Any) -> None:
    ran: list[int] = []
    (job,) = claimed(body(lambda: ran.append(1)))
    job.lease_lost.set()
    one = pool()

    one.put([job])
    one.done()

    assert ran == []
    assert job.outcome is None


def test_what_one_job_leaves_on_its_connection_is_not_met_by_the_next(pool: Any) -> None:
    def leave_open() -> None:
        transaction.atomic().__enter__()
        Group.objects.create(name="half")

    def leave_off() -> None:
        transaction.set_autocommit(False)

    one = pool()
    one.put(claimed(body(leave_open), body(leave_off), body(Group.objects.count)))
    *broken, last = one.done(3)

    assert [job.outcome.verb for job in broken] == [Verb.RETRY] * 2
    assert last.outcome.value == "0"


@pytest.mark.vendor("postgresql")
@pytest.mark.parametrize(("idle_seconds", "verb"), [(0.0, Verb.ACK), (1e9, Verb.RETRY)])
def test_a_connection_that_was_cut_while_it_was_idle_is_not_met_by_the_next_job(
    idle_seconds: float, verb: Verb, pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The second case is the control: unless it is tried, the cut connection fails the job.
    monkeypatch.setattr("django_workqueue.threads.IDLE_SECONDS", idle_seconds)
    kept: list[Any] = []

    def keep() -> None:
        Group.objects.count()
        kept.append(connection.connection)

    one = pool()
    one.put(claimed(body(keep)))
    one.done()
    LiveJob.objects.all().delete()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [kept[0].info.backend_pid])

    one.put(claimed(body(Group.objects.count)))
    (job,) = one.done()

    assert job.outcome.verb is verb


def test_stopping_waits_for_what_runs_at_most_the_given_time() -> None:
    go_on, begun = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert go_on.wait(PATIENCE_SECONDS)

    one = Pool(1)
    one.start()
    one.put(claimed(body(wait)))
    assert begun.wait(PATIENCE_SECONDS)

    assert not one.stop(0.0)
    go_on.set()
    assert one.stop(PATIENCE_SECONDS)


def test_a_hook_of_an_atomic_task_that_exits_takes_no_slot(pool: Any) -> None:
    def exits_after_the_commit() -> int:
        transaction.on_commit(lambda: sys.exit(3))
        return 1

    app.run_atomically.enqueue(body(exits_after_the_commit))
    app.run_atomically.enqueue(body(lambda: 2))
    one = pool()

    one.put([Job(claim) for claim in jobs.claim(limit=2)])

    assert [job.committed for job in one.done(2)] == [True, True]


def test_a_fault_around_a_run_is_its_outcome_and_takes_no_slot(
    pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = claimed(body(lambda: 1), body(lambda: 2))
    real_execute = executor.execute

    def execute(job: Job, settings: conf.Settings) -> Outcome:
        if job is first:
            raise InterfaceError("already closed")
        return real_execute(job, settings)

    monkeypatch.setattr(threads, "execute", execute)
    one = pool()

    one.put([first, second])

    assert [job.outcome.verb for job in one.done(2)] == [Verb.RETRY, Verb.ACK]


def test_a_connection_that_cannot_be_closed_takes_no_slot(
    pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise InterfaceError("already closed")

    monkeypatch.setattr(threads, "drop_unusable_connections", fails)
    monkeypatch.setattr(threads, "IDLE_SECONDS", 0.0)
    one = pool()

    one.put(claimed(body(lambda: 1)))

    assert one.done()[0].outcome.verb is Verb.ACK
