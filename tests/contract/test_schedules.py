"""A schedule's row and its jobs, on every database."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connections, transaction

from django_workqueue.models import Schedule
from django_workqueue.store import BaseStore, get_store
from django_workqueue.store.scheduling import Fired, Firing
from tests import factories
from tests.factories import T0, at
from tests.timescale import PATIENCE_SECONDS

HOUR = 3600.0


def firing(*ticks: float, following: float = HOUR, missed: int = 0, **job: Any) -> Firing:
    jobs = [
        factories.new_job(scheduled_for=at(tick), run_after=at(tick), schedule="nightly", **job)
        for tick in ticks
    ]
    return Firing(jobs=jobs, missed_count=missed, next_fire_at=at(following))


def fire(store: BaseStore, row: Schedule, what: Firing | None = None, seconds: float = 1) -> Any:
    return store.fire(row, what or firing(0), now=at(seconds))


def stored(store: BaseStore, name: str = "nightly") -> Any:
    return store.schedules().values().get(pk=name)


def test_added_once_under_its_name(store: BaseStore) -> None:
    row = factories.schedule(store)
    again = Schedule(name="nightly", task="other", expression="0 0 * * *")
    assert not store.add_schedule(again, now=at(9))
    assert store.add_schedule(Schedule(name="Nightly ", task="x", expression="* * * * *"), now=T0)
    assert stored(store)["task"] == row.task
    assert row.declared_at == T0


def test_fire_moves_the_row_and_inserts_the_job(store: BaseStore) -> None:
    row = factories.schedule(store)
    fired = fire(store, row, firing(0, missed=2))
    (job,) = store.live().values()
    assert (job["schedule"], job["scheduled_for"], job["run_after"]) == ("nightly", T0, T0)
    after = stored(store)
    assert after["next_fire_at"] == at(HOUR)
    assert (after["last_fire_at"], after["last_job_id"]) == (T0, job["id"])
    assert (after["fire_count"], after["missed_count"]) == (1, 2)
    assert after["version"] == row.version, "a tick is no edit"
    assert [each.id for each in fired.jobs] == [job["id"]]


def test_second_fire_of_the_same_reading_writes_nothing(store: BaseStore) -> None:
    row = factories.schedule(store)
    assert fire(store, row)
    before = stored(store)
    assert fire(store, row) is None
    assert stored(store) == before
    assert store.live().count() == 1


@pytest.mark.parametrize(
    "change",
    [
        {"version": 1},
        {"next_fire_at": at(-60)},
        {"enabled": False},
        {"paused": True},
        {"error": "cannot be planned"},
    ],
    ids=str,
)
def test_row_that_changed_since_it_was_read_is_not_fired(
    store: BaseStore, change: dict[str, Any]
) -> None:
    row = factories.schedule(store)
    store.schedules().update(**change)
    before = stored(store)
    assert fire(store, row) is None
    assert stored(store) == before
    assert not store.live().exists()


def test_tick_that_is_not_due_by_the_database_s_clock_is_not_fired(store: BaseStore) -> None:
    row = factories.schedule(store)
    assert fire(store, row, seconds=-0.001) is None
    assert not store.live().exists()


def test_tick_not_later_than_the_last_that_fired_is_not_fired(store: BaseStore) -> None:
    """The clock was moved back (I7)."""
    row = factories.schedule(store, last_fire_at=T0)
    assert fire(store, row) is None
    assert not store.live().exists()


@pytest.mark.vendor("postgresql", "mysql")
@pytest.mark.django_db(transaction=True)
def test_row_that_another_has_locked_is_passed_over() -> None:
    """Whoever is stopped in the middle of a tick holds up its own schedule alone."""
    plain = get_store()
    row = factories.schedule(plain)
    answers: list[Any] = []

    def try_to_fire() -> None:
        try:
            answers.append(fire(plain, row))
        finally:
            connections.close_all()

    with transaction.atomic():
        plain.schedules().select_for_update().get(pk=row.pk)
        other = threading.Thread(target=try_to_fire)
        other.start()
        other.join(PATIENCE_SECONDS)
        assert answers == [None]
    assert fire(plain, row)


def test_firing_without_jobs_moves_the_row(store: BaseStore) -> None:
    row = factories.schedule(store, last_fire_at=at(5))
    assert fire(store, row, firing(missed=3)) == Fired([], 3)
    assert stored(store)["missed_count"] == 3
    assert stored(store)["last_fire_at"] == at(5)


def test_key_that_is_taken_is_a_counted_skip_and_the_next_tick_fires(store: BaseStore) -> None:
    """Case O9, second half."""
    factories.insert(store, unique_key="k")
    row = factories.schedule(store)
    fired = fire(store, row, firing(0, unique_key="k"))
    assert (list(fired.jobs), fired.missed_count, fired.taken_count) == ([], 1, 1)
    after = stored(store)
    assert after["next_fire_at"] == at(HOUR)
    assert (after["fire_count"], after["missed_count"], after["last_job_id"]) == (0, 1, None)
    store.live().all().delete()
    row = store.schedules().get()
    assert fire(store, row, firing(HOUR, following=2 * HOUR, unique_key="k"), seconds=HOUR)
    assert stored(store)["fire_count"] == 1


def test_overlap_skip_makes_no_job_while_the_last_one_is_live(store: BaseStore) -> None:
    first = factories.insert(store)
    row = factories.schedule(store, overlap="skip", last_job_id=first)
    fired = fire(store, row)
    assert (fired.missed_count, fired.overlap_count) == (1, 1)
    assert stored(store)["last_job_id"] == first
    assert store.live().count() == 1


def test_overlap_skip_makes_one_job_of_several_ticks(store: BaseStore) -> None:
    dead = factories.dead(store)
    row = factories.schedule(store, overlap="skip", last_job_id=dead.id)
    fired = fire(store, row, firing(0, 60, 120), seconds=130)
    assert [job.scheduled_for for job in fired.jobs] == [at(120)]
    assert (stored(store)["fire_count"], stored(store)["missed_count"]) == (1, 2)


def test_edit_keeps_the_next_tick_that_fired_meanwhile(store: BaseStore) -> None:
    """Case O9, first half: the form was opened before the tick and saved after it."""
    opened = factories.schedule(store)
    assert fire(store, opened)
    assert store.edit_schedule(opened, {"args": [2]}, now=at(5))
    after = stored(store)
    assert (after["next_fire_at"], after["args"], after["version"]) == (at(HOUR), [2], 1)
    assert store.live().count() == 1


def test_edit_of_a_row_that_somebody_edited_is_refused(store: BaseStore) -> None:
    opened = factories.schedule(store)
    assert store.edit_schedule(opened, {"args": [1]}, now=T0)
    assert not store.edit_schedule(opened, {"args": [2]}, now=T0)
    assert stored(store)["args"] == [1]


def test_due_are_those_that_may_fire_the_earliest_first(store: BaseStore) -> None:
    factories.schedule(store, "late", next_fire_at=at(-60))
    factories.schedule(store, "due")
    factories.schedule(store, "future", next_fire_at=at(60))
    factories.schedule(store, "paused", paused=True)
    factories.schedule(store, "disabled", enabled=False)
    factories.schedule(store, "wrong", error="cannot be planned")
    factories.schedule(store, "never", next_fire_at=None)
    assert store.due_names(limit=10, now=T0) == ["late", "due"]
    assert store.due_names(limit=1, now=T0) == ["late"]


def test_seconds_to_the_next_tick(store: BaseStore) -> None:
    assert store.seconds_to_tick(now=T0) is None
    factories.schedule(store, "paused", paused=True)
    assert store.seconds_to_tick(now=T0) is None
    factories.schedule(store, "soon", next_fire_at=at(2.5))
    assert store.seconds_to_tick(now=T0) == 2.5
    assert store.seconds_to_tick(now=at(60)) == 0.0


def test_undeclared_is_disabled_only_by_who_knows_its_module_and_after_a_day(
    store: BaseStore,
) -> None:
    for name in ("mine", "kept", "theirs"):
        module = "theirs.schedules" if name == "theirs" else "shop.schedules"
        factories.schedule(store, name, module=module)
    factories.schedule(store, "person's", source="admin", module="")
    day = 86_400.0

    def disable(seconds: float) -> list[str]:
        return store.disable_undeclared({"shop.schedules"}, {"kept"}, day, now=at(seconds))

    assert disable(day) == []
    assert disable(day + 1) == ["mine"]
    assert disable(day + 2) == []
    after = stored(store, "mine")
    assert (after["enabled"], after["next_fire_at"], after["version"]) == (False, None, 1)
    assert {each["enabled"] for each in store.schedules().exclude(pk="mine").values()} == {True}


def test_touched_is_what_code_declares(store: BaseStore) -> None:
    factories.schedule(store, "mine")
    factories.schedule(store, "person's", source="admin")
    assert store.touch_schedules(["mine", "person's", "gone"], now=at(60)) == 1
    assert stored(store, "mine")["declared_at"] == at(60)
    assert store.touch_schedules([], now=at(60)) == 0


def test_pause_and_resume_say_whether_they_did_something(store: BaseStore) -> None:
    factories.schedule(store)
    assert store.pause_schedule("nightly")
    assert not store.pause_schedule("nightly")
    assert stored(store)["paused"]
    assert store.resume_schedule("nightly")
    assert not store.resume_schedule("nightly")
    assert not store.pause_schedule("nobody")
    assert stored(store)["next_fire_at"] == T0


def test_failed_once_and_planned_again(store: BaseStore) -> None:
    factories.schedule(store)
    assert store.fail_schedule("nightly", "no such zone")
    assert not store.fail_schedule("nightly", "again")
    assert stored(store)["error"] == "no such zone"
    row = store.schedules().get()
    assert store.replan(row, at(HOUR))
    assert (stored(store)["error"], stored(store)["next_fire_at"]) == ("", at(HOUR))
    assert not store.replan(row, at(2 * HOUR)), "it changed since it was read"


def test_removed_is_what_no_code_declares(store: BaseStore) -> None:
    factories.schedule(store, "code's")
    factories.schedule(store, "person's", source="admin")
    factories.schedule(store, "left over", enabled=False)
    assert not store.remove_schedule("code's")
    assert store.remove_schedule("person's")
    assert store.remove_schedule("left over")
    assert [row.pk for row in store.schedules()] == ["code's"]


def test_pruning_jobs_does_not_touch_schedules(store: BaseStore) -> None:
    """Case 43, last sentence."""
    row = factories.schedule(store)
    assert fire(store, row)
    store.live().all().delete()
    row = store.schedules().get()
    assert fire(store, row, firing(HOUR, following=2 * HOUR), seconds=HOUR)
