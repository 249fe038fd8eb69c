"""`settler`: an outcome is written once, whatever the database says, and never as another one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import DataError, OperationalError, connection
from django.test.utils import CaptureQueriesContext

from django_workqueue import conf
from django_workqueue.exceptions import Snooze, Terminal
from django_workqueue.executor import execute
from django_workqueue.ids import new_token
from django_workqueue.job import Job
from django_workqueue.models import DeadJob, LiveJob
from django_workqueue.settler import LEFT, LOST, UNKNOWN, Settled, settle
from django_workqueue.states import DeathReason, ResultOutcome, State
from django_workqueue.store import get_store
from tests import jobs
from tests.jobs import app, body, raising
from tests.store_faults import Fault, too_large, with_faults

pytestmark = pytest.mark.usefixtures("transactional_db")

CUT = OperationalError("server closed the connection")


def ran(*names: str, **options: Any) -> list[Job]:
    """Enqueue a job for each body's name, claim and execute all; return them in that order."""
    results = [app.run.using(**options).enqueue(name) for name in names]
    by_id = {str(claim.id): Job(claim) for claim in jobs.claim(limit=len(names))}
    ordered = [by_id[result.id] for result in results]
    for job in ordered:
        job.outcome = execute(job, conf.current())
    return ordered


def settled(done: list[Job], *faults: Fault) -> list[str]:
    """Settle *done*; return where each is now."""
    answers: list[Settled] = []
    settle(with_faults(get_store(), *faults), done, answers.append)
    places = {answer.job: answer.place for answer in answers}
    return [places[job] for job in done]


def good(value: Any = 1) -> str:
    return body(lambda: value)


def test_a_thousand_jobs_are_given_back_in_a_few_statements() -> None:
    app.echo.enqueue_many([((1,), {})] * 1000)
    back = [Job(claim) for claim in jobs.claim(limit=500) + jobs.claim(limit=500)]
    with CaptureQueriesContext(connection) as captured:
        assert set(settled(back)) == {State.READY}
    assert len(captured) <= 20
    assert set(LiveJob.objects.values_list("state", "attempt", "token")) == {("ready", 0, None)}


def test_of_those_given_back_together_each_goes_where_it_would_alone() -> None:
    names = [good() for _ in range(4)]
    waits, cancelled, edited, taken = back = ran(*names)
    for job in back:
        job.outcome = None
    get_store().cancel(cancelled.claim.id)
    LiveJob.objects.filter(pk=edited.claim.id).update(attempt=0)
    LiveJob.objects.filter(pk=taken.claim.id).update(token=new_token())
    # Of the one that another claim has, nothing is written.
    assert settled(back) == [State.READY, ResultOutcome.CANCELLED, State.READY, State.READY]
    assert dict(LiveJob.objects.values_list("pk", "state")) == {
        waits.claim.id: "ready",
        edited.claim.id: "ready",
        taken.claim.id: "running",
    }


def test_each_outcome_has_its_place() -> None:
    done = ran(
        good(),
        raising(ValueError()),
        raising(Terminal()),
        raising(Snooze(0)),
        raising(Snooze(60)),
        body(object),
        good(),
    )

    assert settled(done) == [
        ResultOutcome.SUCCEEDED,
        State.SCHEDULED,
        "dead",
        State.READY,
        State.SCHEDULED,
        "dead",
        ResultOutcome.SUCCEEDED,
    ]
    assert jobs.counts() == (3, 2, 2)


def test_a_job_that_was_not_run_goes_back_with_its_attempt() -> None:
    app.echo.enqueue(1)
    (claim,) = jobs.claim()

    assert settled([Job(claim)]) == [State.READY]
    assert LiveJob.objects.get().attempt == 0


def test_a_terminal_error_without_dead_letters_is_dropped() -> None:
    done = ran(raising(Terminal()), dead_letter=False)

    assert settled(done) == ["dropped"]
    assert jobs.counts() == (0, 0, 0)


@pytest.mark.parametrize("name", ["good", "bad"])
def test_a_settle_of_a_job_that_another_claim_took_changes_nothing(name: str) -> None:
    done = ran(good() if name == "good" else raising(ValueError()))
    late = done[0].claim.lease_expires_at + timedelta(seconds=1)
    get_store().reclaim(now=late)
    (newer,) = jobs.claim()
    before = LiveJob.objects.values().get()

    assert settled(done) == [LOST]
    assert LiveJob.objects.values().get() == before
    assert before["token"] == newer.token
    assert jobs.counts() == (1, 0, 0)


@pytest.mark.parametrize(("method", "name"), [("ack", "good"), ("retry", "bad")])
def test_a_fault_before_the_write_leaves_the_outcome_to_be_written(method: str, name: str) -> None:
    done = ran(good() if name == "good" else raising(ValueError()))
    fault = Fault(method, CUT)

    with pytest.raises(OperationalError):
        settled(done, fault)

    assert fault.bitten == 1
    assert LiveJob.objects.get().state == State.RUNNING
    done[0].settle_retried = True
    assert settled(done) == [ResultOutcome.SUCCEEDED if name == "good" else State.SCHEDULED]


def test_an_ack_whose_answer_was_lost_is_found_by_its_token() -> None:
    done = ran(good(7))
    fault = Fault("ack", CUT, after=True)
    with pytest.raises(OperationalError):
        settled(done, fault)
    assert fault.bitten == 1
    done[0].settle_retried = True

    assert settled(done) == [ResultOutcome.SUCCEEDED]
    assert jobs.counts() == (0, 0, 1)


@pytest.mark.parametrize(
    ("method", "options", "raised"),
    [
        ("ack", {"result_ttl": 0}, None),
        ("retry", {}, ValueError()),
        ("bury", {}, Terminal()),
        ("release", {}, Snooze(0)),
    ],
)
def test_a_settle_whose_answer_was_lost_is_no_error_and_no_lost_job(
    method: str, options: dict[str, Any], raised: Exception | None
) -> None:
    done = ran(good() if raised is None else raising(raised), **options)
    fault = Fault(method, CUT, after=True)
    with pytest.raises(OperationalError):
        settled(done, fault)
    assert fault.bitten == 1
    before = jobs.counts()
    done[0].settle_retried = True

    assert settled(done) == [UNKNOWN]
    assert jobs.counts() == before


def test_a_group_that_the_database_refuses_is_bisected(caplog: pytest.LogCaptureFixture) -> None:
    done = ran(*[good(number) for number in range(8)])
    bad = done[5]

    def holds_the_bad_one(acks: Any) -> bool:
        return any(ack.claim is bad.claim for ack in acks)

    fault = Fault("ack", DataError("refused"), times=100, when=holds_the_bad_one)
    places = settled(done, fault)

    assert fault.bitten == 4
    assert places == [ResultOutcome.SUCCEEDED] * 5 + ["dead"] + [ResultOutcome.SUCCEEDED] * 2
    assert jobs.logged(caplog) == ["outcome refused by the database"]


def test_a_success_that_cannot_be_stored_is_buried_once_and_told_as_such() -> None:
    (job,) = ran(good(7))

    assert settled([job], Fault("ack", DataError("refused"))) == ["dead"]
    dead = DeadJob.objects.get()
    assert dead.reason == DeathReason.UNSTORABLE_RESULT
    (record,) = DeadJob.objects.values_list("errors", flat=True).get()
    assert record["message"] == "The database refused the outcome: DataError"
    assert job.outcome is not None
    assert job.outcome.verb == "bury"


def test_an_error_that_cannot_be_stored_keeps_the_retry_and_the_class() -> None:
    done = ran(raising(KeyError("x")))

    assert settled(done, Fault("retry", DataError("refused"))) == [State.SCHEDULED]
    record = LiveJob.objects.values_list("errors", flat=True).get()[-1]
    assert record["exception_class"] == "builtins.KeyError"
    assert record["message"] == "The database refused the outcome: DataError"


@pytest.mark.vendor("postgresql", "mysql")  # SQLite says it with a DataError, as of any bad value.
def test_an_outcome_larger_than_the_server_takes_is_refused_and_not_a_passing_fault() -> None:
    done = ran(good(1), good(2), good(3))

    def holds_the_large_one(acks: Any) -> bool:
        return any(ack.claim is done[1].claim for ack in acks)

    fault = Fault("ack", too_large(get_store()), times=100, when=holds_the_large_one)

    assert settled(done, fault) == [ResultOutcome.SUCCEEDED, "dead", ResultOutcome.SUCCEEDED]
    assert DeadJob.objects.get().reason == DeathReason.UNSTORABLE_RESULT


@pytest.mark.vendor("mysql")
@pytest.mark.parametrize("megabytes", [17, 40])
def test_a_server_that_ends_the_connection_for_a_value_s_size_is_understood(
    megabytes: int,
) -> None:
    """Above its max_allowed_packet it says so; far above, it only hangs up."""
    done = ran(good(1), good(2), good(3))
    assert done[1].outcome is not None
    large = f'"{"x" * (megabytes << 20)}"'
    done[1].outcome = done[1].outcome._replace(value=large)

    assert settled(done) == [ResultOutcome.SUCCEEDED, "dead", ResultOutcome.SUCCEEDED]
    record = DeadJob.objects.values_list("errors", flat=True).get()[-1]
    assert record["message"] == "The database refused the outcome: OperationalError"


@pytest.mark.vendor("mysql")
def test_a_connection_that_ends_is_no_refusal_of_a_value_that_fits() -> None:
    """The control of the test above, on the very error that a size of 40 MB brings."""
    (job,) = ran(good(1))
    gone = OperationalError("gone away")
    gone.__cause__ = Exception(2006)

    with pytest.raises(OperationalError, match="gone away"):
        settled([job], Fault("ack", gone))
    assert settled([job]) == [ResultOutcome.SUCCEEDED]


@pytest.mark.parametrize("name", ["good", "bad"])
def test_a_job_whose_every_outcome_is_refused_is_left_and_keeps_no_other_from_being_settled(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    refused, kept = ran(good() if name == "good" else raising(ValueError()), raising(Terminal()))

    def of_the_refused(claim: Any, *more: Any) -> bool:
        return bool((claim[0].claim if isinstance(claim, list) else claim) is refused.claim)

    faults = [
        Fault(method, DataError("refused"), times=100, when=of_the_refused)
        for method in ("ack", "retry", "bury")
    ]

    assert settled([refused, kept], *faults) == [LEFT, "dead"]
    assert LiveJob.objects.get().state == State.RUNNING
    assert jobs.logged(caplog) == ["outcome refused by the database", "job left to its lease"]


def test_a_release_that_is_refused_is_left_too() -> None:
    app.echo.enqueue(1)
    (claim,) = jobs.claim()

    assert settled([Job(claim)], Fault("release", DataError("refused"))) == [LEFT]


def test_one_that_was_lost_does_not_keep_the_others_from_being_settled() -> None:
    lost, kept = ran(good(), good())
    LiveJob.objects.filter(pk=lost.claim.id).update(
        state=State.READY, token=None, worker_id=None, lease_expires_at=None
    )

    assert settled([lost, kept]) == [LOST, ResultOutcome.SUCCEEDED]


@pytest.mark.parametrize("raised", [ValueError(), Terminal(), Snooze(0)])
def test_a_job_whose_cancel_was_asked_ends_cancelled_unless_it_succeeded(
    raised: Exception,
) -> None:
    failed, succeeded = ran(raising(raised), good())
    for job in (failed, succeeded):
        get_store().cancel(job.claim.id)

    assert settled([failed, succeeded]) == [ResultOutcome.CANCELLED, ResultOutcome.SUCCEEDED]
