"""hold_ready: jobs of a task that no worker knows leave the claims' way."""

from __future__ import annotations

from django_workqueue.models import LiveJob
from django_workqueue.states import HeldReason
from django_workqueue.store import BaseStore
from tests.factories import at, claim, insert


def test_ready_jobs_of_unknown_tasks_are_held_with_the_moment_of_the_first_time(
    store: BaseStore,
) -> None:
    unknown = insert(store, task="app.gone")
    known = insert(store, task="app.here")

    assert store.hold_ready(HeldReason.UNKNOWN, ["app.gone"], 60, now=at(5)) == 1

    row = LiveJob.objects.get(pk=unknown)
    assert (row.state, row.held_reason, row.attempt) == ("held", "unknown", 0)
    assert (row.run_after, row.unknown_since) == (at(65), at(5))
    assert [each.id for each in claim(store, now=at(6), limit=9)] == [known]


def test_a_job_held_again_keeps_the_moment_since_when_it_is_unknown(store: BaseStore) -> None:
    unknown = insert(store, task="app.gone")
    store.hold_ready(HeldReason.UNKNOWN, ["app.gone"], 60, now=at(5))
    store.unhold(HeldReason.UNKNOWN, ["app.gone"], now=at(65))

    store.hold_ready(HeldReason.UNKNOWN, ["app.gone"], 60, now=at(70))

    assert LiveJob.objects.get(pk=unknown).unknown_since == at(5)


def test_a_running_job_of_the_task_is_left_alone(store: BaseStore) -> None:
    insert(store, task="app.gone")
    (taken,) = claim(store)

    assert store.hold_ready(HeldReason.UNKNOWN, ["app.gone"], 60, now=at(5)) == 0
    assert LiveJob.objects.get(pk=taken.id).state == "running"
