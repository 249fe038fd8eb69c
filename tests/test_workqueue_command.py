"""`manage.py workqueue`: its subcommands on rows of this test."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import modify_settings
from django.utils import timezone

from django_workqueue.management.commands.workqueue import Command
from django_workqueue.models import LiveJob, Schedule
from django_workqueue.store import BaseStore, get_store
from tests import factories
from tests.app.tasks import add
from tests.beat.models import (
    ClockedSchedule,
    CrontabSchedule,
    IntervalSchedule,
    PeriodicTask,
    SolarSchedule,
)

pytestmark = pytest.mark.django_db

TASK = add.module_path


@pytest.fixture
def store() -> BaseStore:
    return get_store()


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    call_command("workqueue", *arguments)
    return capsys.readouterr().out


# schedules


def test_schedules_are_listed_with_their_next_ticks(
    store: BaseStore, capsys: pytest.CaptureFixture[str]
) -> None:
    factories.schedule(store, "nightly", expression="0 3 * * *", timezone="Europe/Paris")
    Schedule.objects.update(next_fire_at="2030-03-30T02:00:00Z", fire_count=7)
    factories.schedule(store, "wrong", error="CronError: no")
    factories.schedule(store, "paused", paused=True)
    text = output(capsys, "schedules")
    assert f"nightly  on  at 03:00 (0 3 * * *), Europe/Paris  {factories.TASK}" in text
    assert "  next  2030-03-30T03:00:00+01:00\n  next  2030-03-31T03:00:00+02:00" in text
    assert "  fired 7, missed 0, last never" in text
    assert "  error: CronError: no" in text
    assert text.count("  next  ") == 6
    assert output(capsys, "schedules", "--next", "0").count("  next  ") == 0


def test_schedules_as_json_are_the_same_twice(
    store: BaseStore, capsys: pytest.CaptureFixture[str]
) -> None:
    factories.schedule(store, "b")
    factories.schedule(store, "a", expression="nonsense")
    first = output(capsys, "schedules", "--json", "--next", "2")
    assert first == output(capsys, "schedules", "--json", "--next", "2")
    listed = json.loads(first)
    assert [each["name"] for each in listed] == ["a", "b"]
    assert listed[1]["next"] == ["2030-01-01T12:00:00+00:00", "2030-01-01T13:00:00+00:00"]
    assert (listed[1]["state"], listed[1]["source"]) == ("on", "code")


def test_no_schedules(capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "schedules") == "no schedules\n"


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ("schedules --settings mysite.settings", "settings", "mysite.settings"),
        ("--settings mysite.settings schedules", "settings", "mysite.settings"),
        ("schedules -v 2", "verbosity", 2),
        ("-v 2 schedules", "verbosity", 2),
        ("schedules", "verbosity", 1),
        ("schedules --skip-checks", "skip_checks", True),
        ("--traceback schedules", "traceback", True),
        ("schedules --no-color", "no_color", True),
        ("schedules", "no_color", False),
    ],
)
def test_django_s_options_are_taken_before_and_after_the_subcommand(
    given: str, name: str, value: object
) -> None:
    parser = Command().create_parser("manage.py", "workqueue")
    assert getattr(parser.parse_args(given.split()), name) == value


def test_subcommand_must_be_known() -> None:
    for arguments in ((), ("nonsense",)):
        with pytest.raises(CommandError):
            call_command("workqueue", *arguments)


# What import_beat does


def beat(name: str, **columns: Any) -> PeriodicTask:
    given = {"task": TASK, "args": "[1]"}
    return PeriodicTask.objects.create(name=name, **{**given, **columns})


def crontab(**fields: str) -> CrontabSchedule:
    return CrontabSchedule.objects.create(**fields)


def interval(every: int, period: str) -> IntervalSchedule:
    return IntervalSchedule.objects.create(every=every, period=period)


def clocked(seconds: float) -> ClockedSchedule:
    moment = timezone.now() + timedelta(seconds=seconds)
    return ClockedSchedule.objects.create(clocked_time=moment)


def outcomes(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    codes: list[Any] = [0]
    try:
        call_command("workqueue", "import_beat", "--json", *arguments)
    except SystemExit as ended:
        codes.append(ended.code)
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    refused = any(each["outcome"] == "refused" for each in found.values())
    assert codes[-1] == (1 if refused and "--create" in arguments else 0)
    return found


def test_shown_first_and_created_then(store: BaseStore, capsys: pytest.CaptureFixture[str]) -> None:
    beat("report", crontab=crontab(minute="0", hour="3, 4", timezone="Europe/Paris"))
    beat("sums", interval=interval(15, "minutes"), enabled=False, queue="mail", expire_seconds=60)
    beat("once", clocked=clocked(3600), one_off=True)
    shown = output(capsys, "import_beat")
    assert f"would create  report  0 3,4 * * *  Europe/Paris  {TASK}\n" in shown
    assert f"would create  sums  @every 900s  UTC  {TASK}  paused\n" in shown
    assert "would create  once  one job at " in shown
    assert not Schedule.objects.exists()
    assert not LiveJob.objects.exists()
    assert {each["outcome"] for each in outcomes(capsys, "--create").values()} == {"created"}
    rows: Any = Schedule.objects.order_by("name").values()
    report, sums = rows
    assert (report["expression"], report["timezone"]) == ("0 3,4 * * *", "Europe/Paris")
    assert (report["source"], report["paused"], report["args"]) == ("admin", False, [1])
    assert report["next_fire_at"] > store.now()
    assert (sums["expression"], sums["paused"], sums["queue_name"]) == ("@every 900s", True, "mail")
    assert sums["expires_seconds"] == 60
    job = LiveJob.objects.get()
    assert (job.state, job.task) == ("scheduled", TASK)
    assert abs((job.run_after - store.now()).total_seconds() - 3600) < 60


def test_created_once_however_often_it_is_asked_for(
    store: BaseStore, capsys: pytest.CaptureFixture[str]
) -> None:
    beat("report", crontab=crontab(minute="0", hour="3"))
    beat("once", clocked=clocked(3600), one_off=True)
    outcomes(capsys, "--create")
    assert {each["outcome"] for each in outcomes(capsys, "--create").values()} == {"there"}
    assert Schedule.objects.count() == 1
    assert LiveJob.objects.count() == 1


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"task": "shop.gone"}, "--rename shop.gone=…"),
        ({"task": "celery.backend_cleanup"}, "Celery's own"),
        ({"args": "[]"}, "must fit its signature"),
        ({"args": "{"}, "Expecting"),
        ({"one_off": True}, "one_off"),
        ({"queue": "x" * 200}, ""),
        ({"expire_seconds": 0}, "expires must be"),
    ],
)
def test_row_that_cannot_be_is_refused_and_the_others_are_created(
    capsys: pytest.CaptureFixture[str], columns: dict[str, Any], why: str
) -> None:
    beat("fine", crontab=crontab())
    beat("odd", **{"crontab": crontab(), **columns})
    found = outcomes(capsys, "--create")
    assert found["fine"]["outcome"] == "created"
    if why:
        assert found["odd"]["outcome"] == "refused"
        assert why in found["odd"]["why"]
        assert [each.pk for each in Schedule.objects.all()] == ["fine"]


def test_rhythms_without_an_equal_are_refused_by_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    beat("solar", solar=SolarSchedule.objects.create(event="sunset", latitude=1, longitude=1))
    beat("both days", crontab=crontab(day_of_month="13", day_of_week="5"))
    beat("too fast", interval=interval(1500, "microseconds"))
    beat("past", clocked=clocked(-60))
    beat("stopped", clocked=clocked(60), enabled=False)
    beat("nothing")
    beat("wrong", crontab=crontab(minute="61"))
    told = {name: each["why"] for name, each in outcomes(capsys).items()}
    assert told["solar"] == "solar events are not known here: sunset"
    assert "Celery asks for day of month 13 and day of week 5" in told["both days"]
    assert "ticks are whole seconds" in told["too fast"]
    assert "its moment is past" in told["past"]
    assert "clocked and disabled" in told["stopped"]
    assert "no crontab, interval or clocked" in told["nothing"]
    assert "The minute field must hold" in told["wrong"]


def test_task_may_have_another_name_here(capsys: pytest.CaptureFixture[str]) -> None:
    beat("report", task="old.report", crontab=crontab())
    found = outcomes(capsys, "--create", "--rename", f"old.report={TASK}")
    assert found["report"]["outcome"] == "created"
    assert Schedule.objects.get().task == TASK


def test_what_is_left_behind_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    later = timezone.now() + timedelta(days=1)
    beat("report", crontab=crontab(), start_time=later, priority=5, headers='{"a": 1}')
    notes = outcomes(capsys)["report"]["notes"]
    assert [note.split()[0] for note in notes] == ["start_time", "priority", "headers"]


@modify_settings(INSTALLED_APPS={"remove": "tests.beat"})
def test_beat_must_be_installed_while_it_is_read() -> None:
    with pytest.raises(CommandError, match='INSTALLED_APPS must have "django_celery_beat"'):
        call_command("workqueue", "import_beat")
