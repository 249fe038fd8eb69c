"""Schedules in the admin: what is shown, who may change what, and by which rules."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client, override_settings
from django.urls import reverse

from django_workqueue.models import LiveJob, Schedule
from django_workqueue.store import BaseStore, get_store
from tests import factories
from tests.app.tasks import add

pytestmark = pytest.mark.django_db

TASK = add.module_path
FORM = {
    "name": "sums",
    "task": TASK,
    "arguments": '{"args": [1], "kwargs": {}}',
    "expression": "0 3 * * *",
    "timezone": "Europe/Paris",
    "catch_up": "latest",
    "max_catch_up": "64",
    "overlap": "allow",
    "version": "0",
    "_save": "Save",
}


@pytest.fixture
def store() -> BaseStore:
    return get_store()


def staff(*verbs: str) -> Client:
    """Return a client of a staff user who may do these verbs to schedules."""
    user = get_user_model().objects.create_user(f"staff {' '.join(verbs)}", is_staff=True)
    names = [f"{verb}_schedule" for verb in ("view", *verbs)]
    user.user_permissions.set(Permission.objects.filter(codename__in=names))
    client = Client()
    client.force_login(user)
    return client


def url(verb: str, name: str | None = None) -> str:
    args = [] if name is None else [quote(name)]
    return reverse(f"admin:workqueue_schedule_{verb}", args=args)


def page(client: Client, name: str, verb: str = "change") -> str:
    response = client.get(url(verb, name))
    assert response.status_code == 200
    return response.content.decode()


def said(response: Any) -> list[str]:
    return [str(message) for message in response.context["messages"]]


def stored(name: str = "sums") -> Any:
    return Schedule.objects.values().get(pk=name)


def row(store: BaseStore, **columns: Any) -> Schedule:
    given = {"name": "sums", "task": TASK, "args": [1], "source": "admin", "timezone": "UTC"}
    return factories.schedule(store, **{**given, **columns})


# Added and edited by the rules of code


def test_added_schedule_plans_from_now(store: BaseStore) -> None:
    before = store.now()
    response = staff("add").post(url("add"), FORM, follow=True)
    assert said(response) == ["The schedule was saved."]
    after = stored()
    assert before < after["next_fire_at"] <= before + timedelta(days=1, hours=1)
    assert (after["source"], after["args"], after["timezone"]) == ("admin", [1], "Europe/Paris")
    assert after["options"]["backend"] == "default"
    assert LogEntry.objects.get().object_id == "sums"


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("expression", "61 * * * *", "The minute field must hold"),
        ("expression", "0 0 30 2 *", "no calendar has one"),
        ("timezone", "Bogota", "America/Bogota"),
        ("timezone", "EST5", "IANA"),
        ("arguments", "{", "must be JSON"),
        ("arguments", "[]", "an object with"),
        ("arguments", '{"args": [], "kwargs": {}}', "must fit its signature"),
        ("arguments", '{"args": ["\\u0000"], "kwargs": {}}', "args[0]"),
        ("max_catch_up", "0", "The default is 64"),
        ("max_catch_up", "0.5", "whole number"),
        ("catch_up", "most", "not one of the available choices"),
        ("deadline", "-1", "deadline must be"),
        ("expires", "0", "expires must be"),
        ("jitter", "nan", "Enter a number"),
        ("task", "os.system", "not one of the available choices"),
        ("priority", "1000", "priority"),
        ("name", "", "required"),
    ],
)
def test_refusal_stands_at_its_field(field: str, value: str, told: str) -> None:
    response = staff("add").post(url("add"), {**FORM, field: value})
    form = response.context["form"]
    assert told in str(form.errors.get(field, form.non_field_errors()))
    assert "Nothing was saved." in response.content.decode()
    assert not Schedule.objects.exists()


def test_every_field_with_a_mistake_is_told_at_once() -> None:
    wrong = {"expression": "61 * * * *", "timezone": "EST5", "arguments": '{"args":[],"kwargs":{}}'}
    response = staff("add").post(url("add"), {**FORM, **wrong})
    assert set(response.context["form"].errors) == set(wrong)


def test_name_that_is_taken_is_refused(store: BaseStore) -> None:
    row(store, source="code")
    response = staff("add").post(url("add"), FORM)
    assert "There is a schedule of this name." in response.content.decode()
    assert stored()["source"] == "code"


def test_edit_writes_the_definition_and_keeps_the_plan(store: BaseStore) -> None:
    row(store, expression="0 3 * * *", timezone="Europe/Paris", fire_count=5, paused=True)
    changed = {**FORM, "arguments": '{"args": [2], "kwargs": {}}', "catch_up": "all"}
    staff("change").post(url("edit", "sums"), changed)
    after = stored()
    assert (after["args"], after["catch_up"], after["version"]) == ([2], "all", 1)
    assert (after["next_fire_at"], after["fire_count"], after["paused"]) == (factories.T0, 5, True)


def test_edit_opened_before_a_tick_and_saved_after_it_keeps_the_new_plan(
    store: BaseStore,
) -> None:
    """Case O9."""
    from tests.contract.test_schedules import fire

    opened = row(store, expression="0 3 * * *", timezone="Europe/Paris")
    client = staff("change")
    assert 'name="version" value="0"' in page(client, "sums", "edit")
    assert fire(store, opened)
    before = store.now()
    client.post(url("edit", "sums"), {**FORM, "expression": "*/5 * * * *"})
    after = stored()
    assert (after["expression"], after["fire_count"]) == ("*/5 * * * *", 1)
    assert after["next_fire_at"] > before
    assert LiveJob.objects.count() == 1


def test_edit_of_what_somebody_else_changed_is_refused(store: BaseStore) -> None:
    row(store, version=3)
    response = staff("change").post(url("edit", "sums"), FORM)
    assert "changed by somebody else" in response.content.decode()
    assert stored()["version"] == 3


def test_preview_shows_the_ticks_and_saves_nothing(store: BaseStore) -> None:
    row(store)
    before = stored()
    preview = {**FORM, "expression": "*/45 * * * *", "_preview": "Preview"}
    del preview["_save"]
    text = staff("change").post(url("edit", "sums"), preview).content.decode()
    assert "Preview, not saved" in text
    assert text.count("UTC</td>") == 10
    assert "does not divide 60" in text
    assert stored() == before


def test_hidden_arguments_stay_hidden_and_are_kept(store: BaseStore) -> None:
    with override_settings(WORKQUEUE={"REDACT": ["b"]}):
        row(store, kwargs={"b": 4711}, expression="0 3 * * *", timezone="Europe/Paris")
        client = staff("change")
        assert "4711" not in page(client, "sums") + page(client, "sums", "edit")
        arguments = '{"args": [9], "kwargs": {"b": "•••"}}'
        client.post(url("edit", "sums"), {**FORM, "arguments": arguments})
    assert (stored()["args"], stored()["kwargs"]) == ([9], {"b": 4711})


# Code's own


def test_schedule_of_code_is_read_and_paused_and_not_edited(store: BaseStore) -> None:
    row(store, source="code", module="shop.schedules")
    client = staff("change", "delete")
    text = page(client, "sums")
    assert "Declared in code, by shop.schedules" in text
    assert url("edit", "sums") not in text
    assert url("remove", "sums") not in text
    assert client.post(url("edit", "sums"), FORM).status_code == 403
    assert client.get(url("edit", "sums")).status_code == 403
    client.post(url("remove", "sums"), {"confirmed": "yes"})
    assert stored()["version"] == 0
    client.post(url("pause", "sums"))
    assert stored()["paused"]


def test_schedule_that_code_declares_no_more_can_be_deleted(store: BaseStore) -> None:
    row(store, source="code", module="shop.schedules", enabled=False, next_fire_at=None)
    client = staff("change", "delete")
    assert "declares it no more" in page(client, "sums")
    asked = client.post(url("remove", "sums"))
    assert "Delete the schedule sums?" in asked.content.decode()
    assert Schedule.objects.exists()
    client.post(url("remove", "sums"), {"confirmed": "yes"})
    assert not Schedule.objects.exists()


# Verbs


def test_pause_resume_and_run_now(store: BaseStore) -> None:
    row(store)
    client = staff("change")
    assert said(client.post(url("pause", "sums"), follow=True)) == [
        "Paused: its ticks make no jobs until it is resumed."
    ]
    assert "paused" in page(client, "sums")
    client.post(url("resume", "sums"))
    before = stored()
    assert not before["paused"]
    client.post(url("run", "sums"))
    job: Any = LiveJob.objects.get()
    assert (job.schedule, job.scheduled_for, job.state) == ("sums", None, "ready")
    assert job.payload == {"args": [1], "kwargs": {}}
    assert stored() == before, "its ticks stay as they are"
    assert "run by hand" in page(client, "sums")
    assert LogEntry.objects.count() == 3


def test_run_now_says_that_the_key_is_taken(store: BaseStore) -> None:
    factories.insert(store, task=TASK, unique_key="k")
    row(store, options={"unique_key": "k"})
    response = staff("change").post(url("run", "sums"), follow=True)
    assert said(response) == ["No job was made: its unique key is taken by a live job."]


@pytest.mark.parametrize("verb", ["pause", "resume", "run", "remove"])
def test_verb_takes_post_only_and_its_permission(store: BaseStore, verb: str) -> None:
    row(store)
    before = stored()
    allowed = staff("delete" if verb == "remove" else "change")
    assert allowed.get(url(verb, "sums")).status_code == 405
    client = staff()
    assert client.post(url(verb, "sums"), {"confirmed": "yes"}).status_code == 403
    assert "submit" not in page(client, "sums").split('id="content-main"')[1].split("footer")[0]
    assert Client().post(url(verb, "sums")).status_code == 302
    assert stored() == before
    assert not LiveJob.objects.exists()


def test_form_takes_its_permission(store: BaseStore) -> None:
    row(store)
    client = staff()
    assert client.get(url("edit", "sums")).status_code == 403
    assert client.get(url("add")).status_code == 403
    assert client.post(url("add"), FORM).status_code == 403
    assert Client().get(url("edit", "sums")).status_code == 302


# Shown


def test_next_ticks_mark_where_the_clocks_are_changed(store: BaseStore) -> None:
    row(store, expression="0 9 * * 0", timezone="Europe/Berlin", next_fire_at=factories.at(0))
    Schedule.objects.update(next_fire_at="2030-03-17T08:00:00Z")
    text = page(staff(), "sums")
    assert "The clocks were changed: UTC+01:00 before, UTC+02:00 now." in text
    assert len(re.findall(r"09:00:00 UTC\+0[12]:00", text)) == 10


def test_last_jobs_are_shown_with_what_became_of_them(store: BaseStore) -> None:
    row(store)
    given: dict[str, Any] = {"schedule": "sums", "scheduled_for": factories.T0}
    factories.finished(store, **given)
    factories.dead(store, **given)
    factories.insert(store, **given)
    factories.insert(store, schedule="another")
    text = page(staff(), "sums").split("Last ticks and their jobs")[1]
    for state in ("succeeded", "dead: terminal", "ready"):
        assert text.count(f"<td>{state}</td>") == 1
    assert text.count("/change/") == 3


@pytest.mark.parametrize(
    "columns",
    [
        {"expression": "nonsense", "error": "CronError: nonsense"},
        {"timezone": "No/Where"},
        {"task": "gone.away"},
        {"enabled": False, "next_fire_at": None},
        {"expression": "@every 90s"},
        {"name": "a/b c_'\"<b>"},
        {"args": [{"x": "<script>"}]},
    ],
    ids=str,
)
def test_any_row_has_a_page_and_is_listed(store: BaseStore, columns: dict[str, Any]) -> None:
    """Case 50 with USE_TZ off; N10 where the row is wrong."""
    made = row(store, **columns)
    client = staff("change")
    assert client.get(url("changelist")).status_code == 200
    text = page(client, made.pk)
    assert page(client, made.pk, "edit")
    assert "<script>" not in text.replace("<script src", "")
    if made.error:
        assert "It fires no more: CronError" in text


def test_schedule_that_is_not_there_leads_to_the_list() -> None:
    response = staff("change").get(url("change", "nobody"), follow=True)
    assert response.redirect_chain == [(url("changelist"), 302)]
    assert json.dumps(said(response))


def test_row_that_nobody_can_read_does_not_hide_the_others(store: BaseStore) -> None:
    """Case N10."""
    row(store, name="right", args=[4711])
    row(store, error="JSONDecodeError: no")
    with connection.cursor() as cursor:
        table = connection.ops.quote_name(Schedule._meta.db_table)
        cursor.execute(f"UPDATE {table} SET args = '[1' WHERE name = 'sums'")
    client = staff("change")
    text = client.get(url("changelist")).content.decode()
    assert "JSONDecodeError" in text
    assert "4711" in text
    for verb in ("change", "edit"):
        response = client.get(url(verb, "sums"), follow=True)
        assert said(response) == [
            "The arguments of sums are no JSON: correct its row in the database."
        ]
