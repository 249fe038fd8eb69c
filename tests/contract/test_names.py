"""Names are compared exactly: "Key", "key" and "key " are three, on every database (O13)."""

from __future__ import annotations

from typing import Final

import pytest

from django_workqueue.models import Lock, OutboxKey, Queue, Schedule
from django_workqueue.states import Lane
from django_workqueue.store import BaseStore
from tests.factories import at, claim, insert, new_job
from tests.sound import rows

NAMES: Final = ["Key", "key", "key ", "kéy", "ke\u0301y", "ключ", "鍵", "🔑"]


def test_queues(store: BaseStore) -> None:
    for name in NAMES:
        insert(store, queue_name=name)
    assert store.ready_queues(Lane.TASK, now=at(0)) == sorted(NAMES)
    for name in NAMES:
        assert [each.queue_name for each in claim(store, queue_name=name, limit=9)] == [name]


def test_pauses(store: BaseStore) -> None:
    for name in NAMES:
        insert(store, queue_name=name)
    for count, name in enumerate(NAMES, 1):
        store.pause(name)
        assert store.ready_queues(Lane.TASK, now=at(0)) == sorted(NAMES[count:])
        assert claim(store, queue_name=name) == []
    assert Queue.objects.count() == len(NAMES)


def test_unique_keys(store: BaseStore) -> None:
    jobs = [new_job(unique_key=name) for name in NAMES]
    assert len(store.insert(jobs, now=at(0))) == len(NAMES)
    again = [new_job(unique_key=name) for name in NAMES]
    assert store.insert(again, now=at(0)) == []


def test_tasks_left_out(store: BaseStore) -> None:
    for name in NAMES:
        insert(store, task=name)
    taken = claim(store, limit=99, exclude_tasks=["key"])
    assert [each.task for each in taken] == [name for name in NAMES if name != "key"]


@pytest.mark.parametrize("model", [Lock, Schedule])
def test_locks_and_schedules(store: BaseStore, model: type[Lock | Schedule]) -> None:
    for name in NAMES:
        if model is Lock:
            Lock.objects.create(name=name, owner="o", token=1, expires_at=at(0))
        else:
            Schedule.objects.create(name=name, task="t", expression="@daily")
    assert sorted(model._base_manager.values_list("name", flat=True)) == sorted(NAMES)
    assert model._base_manager.filter(name="key").count() == 1


def test_outbox_keys(store: BaseStore) -> None:
    for name in NAMES:
        OutboxKey.objects.create(destination="d", key=name)
    assert OutboxKey.objects.filter(destination="d", key="key").count() == 1


def test_workers(store: BaseStore) -> None:
    for name in NAMES:
        insert(store)
        claim(store, worker_id=name)
    assert store.release_strays("key", set()) == 1
    assert sum(job["state"] == "ready" for job in rows()["live"].values()) == 1
