"""What a worker makes of a database that fails it, step by step, in this process."""

from __future__ import annotations

import logging
from typing import Any
from unittest import mock

import pytest
from django.db import OperationalError

from django_workqueue.job import Job, Outcome, Verb
from django_workqueue.models import LiveJob, Result
from django_workqueue.settler import Settled
from django_workqueue.store import BaseStore
from django_workqueue.worker import CUT_DELAY_SECONDS, Options, Worker
from tests.crash import tasks
from tests.factories import running
from tests.sound import place

pytestmark = pytest.mark.django_db(transaction=True)


def worker(**options: Any) -> Worker:
    defaults: dict[str, Any] = {
        "threads": 1,
        "lease_seconds": 0.3,
        "poll_seconds": 0.01,
        "drain": True,
        "sweep": False,
    }
    return Worker(Options(**{**defaults, **options}))


def acked(taken: Job) -> Job:
    taken.outcome = Outcome(verb=Verb.ACK, started=0.0, ended=0.0)
    taken.ending = True
    return taken


def test_a_claim_that_is_committed_late_is_given_back_uncharged() -> None:
    """The server finishes a claim after the worker reconnected and looked for strays (O4)."""
    starts: list[int] = []
    tasks.bodies["body"] = lambda context: starts.append(context.charged_attempt)
    job_id = tasks.call.using(max_attempts=2).enqueue("body").id
    asked: list[dict[str, Any]] = []
    claim, release_strays = BaseStore.claim, BaseStore.release_strays

    def cut_claim(store: BaseStore, *args: Any, **options: Any) -> Any:
        if asked:
            return claim(store, *args, **options)
        asked.append({"args": args, "options": options})
        raise OperationalError("server closed the connection unexpectedly")

    def look_and_commit(store: BaseStore, *args: Any, **options: Any) -> int:
        count = release_strays(store, *args, **options)
        if asked[0]:
            late = asked[0].copy()
            asked[0].clear()
            assert claim(store, *late["args"], **late["options"])
        return count

    with (
        mock.patch.object(BaseStore, "claim", cut_claim),
        mock.patch.object(BaseStore, "release_strays", look_and_commit),
    ):
        # Not drained: the late claim leaves nothing due for as long as nobody gives it back.
        worker(drain=False, max_jobs=1).run()
    assert starts == [1]
    assert Result.objects.get(pk=job_id).attempts == 1


def test_an_outage_is_told_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    made = worker()
    store = type(made.store)
    look = store.look
    faults = [OperationalError("gone")] * 5

    def fail(self: Any, *args: Any, **options: Any) -> Any:
        if faults:
            raise faults.pop()
        return look(self, *args, **options)

    with mock.patch.object(store, "look", fail):
        made.run()
    caplog.set_level(logging.INFO)
    told = [
        record.getMessage() for record in caplog.records if record.name == "django_workqueue.worker"
    ]
    assert told == ["database cannot be used", "database is back"]


def test_each_job_that_lost_its_lease_is_answered_for_once(store: BaseStore) -> None:
    answered: list[Settled] = []
    made = Worker(Options(sweep=False), on_settled=answered.append)
    jobs = [acked(Job(running(store, now=None))) for _ in range(3)]
    for job in jobs[:2]:
        store.release(job.claim)
        job.lease_lost.set()
    made._flight.add(jobs)
    with mock.patch.object(made._executors, "take_done", return_value=jobs):
        made._settle()
    assert [each.place for each in answered] == ["lost", "lost", "succeeded"]
    assert not made._flight._unwritten


def test_a_job_that_ended_before_the_cut_is_not_run_again(store: BaseStore) -> None:
    made = Worker(Options(sweep=False))
    ended, runs = acked(Job(running(store, now=None))), Job(running(store, now=None))
    made._flight.add((ended, runs))
    with mock.patch.object(made._executors, "take_done", return_value=[ended]):
        made._flight.cut(CUT_DELAY_SECONDS)
        made._settle()
    assert place(ended.claim.id) == "finished"
    assert LiveJob.objects.get().pk == runs.claim.id
    assert place(runs.claim.id) == "scheduled"
    assert made._flight.all() == []
