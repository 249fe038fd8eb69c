"""Declaring schedules: what is refused where it is declared, and what reaches the table."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings

from django_workqueue.exceptions import (
    ArgumentsError,
    CronError,
    PayloadError,
    ScheduleError,
    WorkQueueError,
)
from django_workqueue.scheduler import writing
from django_workqueue.schedules import declared, declaring, define, schedule
from django_workqueue.store import BaseStore, get_store
from tests import factories
from tests.app import celery_tasks
from tests.app.tasks import add, run
from tests.factories import T0, at
from tests.schedule_rows import no_declarations

HOUR = 3600.0
DAY = 86_400.0


@pytest.fixture(autouse=True)
def nothing_declared() -> Iterator[None]:
    with no_declarations():
        yield


@pytest.fixture
def store(db: None) -> BaseStore:
    return get_store()


def stored(store: BaseStore, name: str = "sums") -> Any:
    return store.schedules().values().get(pk=name)


# Refused where it is declared


@pytest.mark.parametrize("count", [0, -1, 0.5, True, "7", None, 1001])
def test_max_catch_up_is_refused_with_the_name_and_the_default(count: Any) -> None:
    """Case N5."""
    with pytest.raises(ScheduleError, match="max_catch_up of the schedule 'sums'") as refused:
        schedule("sums", add, cron="0 3 * * *", args=(1,), max_catch_up=count)
    assert "The default is 64" in str(refused.value)
    assert refused.value.option == "max_catch_up"
    assert not declared()


def test_max_catch_up_of_one_is_accepted() -> None:
    """Case N5."""
    schedule("sums", add, cron="0 3 * * *", args=(1,), max_catch_up=1)
    assert declared()["sums"].definition.max_catch_up == 1


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"cron": "61 * * * *"}, CronError, "The schedule 'sums': The minute field must hold"),
        ({"cron": "0 0 30 2 *"}, CronError, "The schedule 'sums': .*no calendar has one"),
        ({"cron": "@daily", "timezone": "EST5"}, CronError, "The schedule 'sums': A time zone"),
        ({"cron": "@daily", "timezone": "Bogota"}, CronError, "'America/Bogota'"),
        ({}, ScheduleError, "cron=… or every=…, got neither"),
        ({"cron": "@daily", "every": timedelta(hours=1)}, ScheduleError, "got both"),
        ({"every": timedelta(seconds=1.5)}, ScheduleError, "a timedelta of whole seconds"),
        ({"every": timedelta(0)}, ScheduleError, "a timedelta of whole seconds"),
        ({"every": 90}, ScheduleError, "a timedelta of whole seconds"),
        ({"cron": "@daily", "catch_up": "most"}, ScheduleError, "one of skip, latest, all"),
        ({"cron": "@daily", "overlap": "queue"}, ScheduleError, "one of allow, skip"),
        ({"cron": "@daily", "deadline": 0}, ScheduleError, "deadline must be a number of seconds"),
        ({"cron": "@daily", "deadline": -5}, ScheduleError, "deadline must be"),
        ({"cron": "@daily", "expires": float("nan")}, ScheduleError, "expires must be"),
        ({"cron": "@daily", "jitter": -1}, ScheduleError, "jitter must be"),
        ({"cron": "@daily", "jitter": 60, "expires": 60}, ScheduleError, "below its expires"),
        ({"cron": "@daily", "enabled": 1}, ScheduleError, "True or False"),
        ({"cron": "@daily", "args": ()}, ArgumentsError, "must fit its signature"),
        ({"cron": "@daily", "args": (1, 2, 3)}, ArgumentsError, "must fit its signature"),
        ({"cron": "@daily", "args": ({1},)}, PayloadError, r"args\[0\]"),
    ],
)
def test_refusal_names_the_schedule_and_the_fault(
    options: dict[str, Any], error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told) as refused:
        schedule("sums", add, **{"args": (1,), **options})
    assert "'sums'" in str(refused.value)
    assert isinstance(refused.value, WorkQueueError)


def test_function_that_is_no_task_is_named() -> None:
    """Case N19."""

    def plain() -> None: ...

    with pytest.raises(ScheduleError, match=r"'sums' must have a task, got .*plain"):
        schedule("sums", plain, cron="@daily")


def test_task_in_celery_s_clothes_is_told_from_a_plain_function() -> None:
    with pytest.raises(ScheduleError, match=r"'sums' must have a task, got .*Give add\.task"):
        schedule("sums", celery_tasks.add, cron="@daily")


@pytest.mark.parametrize("name", ["", "x" * 256, 5, "a\0b"])
def test_name_must_be_storable(name: Any) -> None:
    with pytest.raises(ValueError, match="name"):
        schedule(name, add, cron="@daily", args=(1,))


def test_two_schedules_of_one_name_are_refused() -> None:
    schedule("sums", add, cron="@daily", args=(1,))
    schedule("sums", add, cron="@daily", args=(1,))
    with pytest.raises(ScheduleError, match="'sums' is declared twice in tests.test_schedules"):
        schedule("sums", add, cron="@hourly", args=(1,))


def test_every_is_kept_as_seconds() -> None:
    schedule("sums", add, every=timedelta(minutes=5), args=(1,))
    assert declared()["sums"].definition.expression == "@every 300s"


def test_zone_is_the_project_s_unless_one_is_given() -> None:
    with override_settings(TIME_ZONE="Europe/Vilnius"):
        assert define("sums", add, cron="@daily", args=(1,)).timezone == "Europe/Vilnius"
    given = define("sums", add, cron="@daily", args=(1,), timezone="America/Bogota")
    assert given.timezone == "America/Bogota"


def test_options_of_the_task_are_those_of_its_jobs() -> None:
    task = run.using(
        queue_name="mail", priority=7, max_attempts=2, timeout=5, expires=60, unique_key="k"
    )
    found = define("runs", task, cron="@daily", args=("name",))
    assert (found.queue_name, found.priority, found.max_attempts) == ("mail", 7, 2)
    assert found.expires_seconds == 60
    assert (found.options["timeout"], found.options["unique_key"]) == (5, "k")
    assert define("runs", task, cron="@daily", args=("n",), expires=9).expires_seconds == 9


# Written


def write(store: BaseStore, seconds: float = 0, **options: Any) -> writing.Written:
    with no_declarations():
        schedule("sums", add, **{"cron": "0 * * * *", "args": (1,), "timezone": "UTC", **options})
        return writing.write(store, now=at(seconds))


def test_first_declaration_plans_from_now(store: BaseStore) -> None:
    assert write(store, 60).added == ["sums"]
    row = stored(store)
    assert row["next_fire_at"] == at(HOUR)
    assert (row["source"], row["module"]) == ("code", __name__)
    assert (row["task"], row["args"], row["declared_at"]) == ("tests.app.tasks.add", [1], at(60))


def test_new_schedule_fires_nothing_before_its_first_tick(store: BaseStore) -> None:
    """Row 12 of PEERS.md: added at 10:10, due at 03:00."""
    ten_past_ten = -(2 * HOUR) + 600
    write(store, ten_past_ten, cron="0 3 * * *")
    assert stored(store)["next_fire_at"] == at(15 * HOUR)
    assert store.due_names(limit=9, now=at(15 * HOUR - 0.001)) == []
    assert store.due_names(limit=9, now=at(15 * HOUR)) == ["sums"]


def test_rhythm_is_anchored_at_its_creation(store: BaseStore) -> None:
    write(store, 7.25, cron=None, every=timedelta(seconds=90))
    assert stored(store)["next_fire_at"] == at(97)
    write(store, 50, cron=None, every=timedelta(seconds=90))
    assert stored(store)["next_fire_at"] == at(97)


def test_unchanged_declaration_leaves_an_overdue_tick_and_a_pause(store: BaseStore) -> None:
    """Case N8."""
    write(store)
    store.pause_schedule("sums")
    before = stored(store)
    written = write(store, 5 * HOUR)
    assert (written.added, written.changed) == ([], [])
    assert stored(store) == {**before, "declared_at": at(5 * HOUR)}
    assert before["next_fire_at"] == at(HOUR)
    store.resume_schedule("sums")
    assert store.due_names(limit=9, now=at(5 * HOUR)) == ["sums"]


@pytest.mark.parametrize(
    "change", [{"args": (2,)}, {"catch_up": "all"}, {"jitter": 5}, {"kwargs": {"b": 5}}], ids=str
)
def test_changed_definition_keeps_the_plan(store: BaseStore, change: dict[str, Any]) -> None:
    write(store)
    assert write(store, 5 * HOUR, **change).changed == ["sums"]
    row = stored(store)
    assert (row["next_fire_at"], row["version"]) == (at(HOUR), 1)


def test_changed_expression_or_zone_plans_from_now(store: BaseStore) -> None:
    """Case 47: nothing was missed by it."""
    write(store, cron="0 9 * * *")
    write(store, 100 * HOUR, cron="0 9 * * *", timezone="America/New_York")
    row = stored(store)
    assert row["next_fire_at"] > at(100 * HOUR)
    assert row["next_fire_at"].hour == 14
    assert store.due_names(limit=9, now=at(100 * HOUR)) == []
    write(store, 200 * HOUR, cron="30 9 * * *", timezone="America/New_York")
    assert stored(store)["next_fire_at"] > at(200 * HOUR)


def test_disabled_in_code_has_no_tick_and_enabled_again_plans_from_now(store: BaseStore) -> None:
    write(store)
    write(store, 1, enabled=False)
    assert stored(store)["next_fire_at"] is None
    write(store, 5 * HOUR + 1)
    assert stored(store)["next_fire_at"] == at(6 * HOUR)


def test_old_process_and_new_one_do_not_fight(store: BaseStore) -> None:
    """The old one declares what the new one does not, and says so as long as it lives."""
    write(store)
    with no_declarations():
        schedule("sums", add, cron="0 * * * *", args=(1,), timezone="UTC")
        old = dict(declared())
    with no_declarations():
        schedule("other", add, cron="@daily", args=(1,))
        for hours in range(0, 48, 1):
            with no_declarations():
                declaring._declared.update(old)
                writing.keep_alive(store, now=at(hours * HOUR))
            assert writing.write(store, now=at(hours * HOUR + 60)).disabled == []
        assert stored(store)["enabled"]
        later = at(48 * HOUR + DAY)
        assert writing.write(store, now=later).disabled == ["sums"]
    assert not stored(store)["enabled"]
    assert write(store, 100 * HOUR).changed == ["sums"]
    assert stored(store)["next_fire_at"] == at(101 * HOUR)


def test_old_process_writes_no_old_definition_back(store: BaseStore) -> None:
    write(store)
    write(store, 1, args=(2,))
    with no_declarations():
        schedule("sums", add, cron="0 * * * *", args=(1,), timezone="UTC")
        writing.keep_alive(store, now=at(2))
    assert stored(store)["args"] == [2]


def test_row_of_the_admin_is_left_to_it(store: BaseStore) -> None:
    factories.schedule(store, "sums", source="admin")
    before = stored(store)
    assert write(store, 60).refused == ["sums"]
    assert stored(store) == before


def test_row_of_the_admin_follows_the_options_of_its_task(store: BaseStore) -> None:
    task = "tests.app.tasks.add"
    factories.schedule(store, "a person's", source="admin", task=task, args=[1])
    factories.schedule(store, "unknown", source="admin", task="gone.away")
    with no_declarations():
        writing.write(store, now=T0)
        first = stored(store, "a person's")
        assert first["options"]["backend"] == "default"
        writing.write(store, now=T0)
    assert stored(store, "a person's") == first
    assert stored(store, "unknown")["options"] == {}


def test_edit_meanwhile_is_read_again(store: BaseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    write(store)
    real = type(store).read_schedule

    def read_then_edited(self: Any, name: str, **more: Any) -> Any:
        found = real(self, name, **more)
        monkeypatch.undo()
        self.edit_schedule(found[0], {"priority": 9}, now=at(1))
        return found

    monkeypatch.setattr(type(store), "read_schedule", read_then_edited)
    assert write(store, 2, args=(2,)).changed == ["sums"]
    assert (stored(store)["args"], stored(store)["priority"], stored(store)["version"]) == (
        [2],
        0,
        2,
    )
