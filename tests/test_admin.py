"""Who may see and do what in the admin, and what a request changes."""

from __future__ import annotations

import json
import re
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import reverse

from django_workqueue.admin import operations
from django_workqueue.models import DeadJob, LiveJob, Lock, Queue, Result, Schedule, Worker
from django_workqueue.models.fields import EncodedJSON
from django_workqueue.states import DeathReason, State
from django_workqueue.store import BaseStore, get_store
from django_workqueue.tasks import task
from tests import factories, sound
from tests.outboxes import claim as outbox_claim
from tests.outboxes import declare, publish

pytestmark = pytest.mark.django_db(databases=["default", "other"])

VIEW = ("view_deadjob", "view_livejob", "view_result")


@task
def send_receipt(order_id: int, to: str = "", password: str = "") -> None:
    """Stands for a task of the project."""


@pytest.fixture
def store() -> BaseStore:
    return get_store()


def staff(*permissions: str) -> Client:
    """Return a client signed in as a staff user with these permissions and no others."""
    user = get_user_model().objects.create_user(f"u{uuid.uuid4().hex}", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    assert user.user_permissions.count() == len(permissions)
    client = Client()
    client.force_login(user)
    return client


def operator() -> Client:
    return staff(*VIEW, "requeue_deadjob", "discard_deadjob", "cancel_livejob")


def url(name: str, *args: Any) -> str:
    return reverse(f"admin:workqueue_{name}", args=args)


def page_of(job_id: uuid.UUID, model: str = "deadjob") -> str:
    return url(f"{model}_change", job_id)


def do(client: Client, name: str, *ids: uuid.UUID, confirmed: bool = True, **data: str) -> Any:
    """Post an operation, by default as its confirmation page does."""
    if confirmed:
        data["confirmed"] = "yes"
    return client.post(url(name), {"ids": "\n".join(map(str, ids)), **data}, follow=True)


def choose(client: Client, model: str, action: str, *ids: uuid.UUID, **data: Any) -> Any:
    """Post an action of the list, as its form does."""
    posted = {"action": action, "index": 0, "_selected_action": list(map(str, ids)), **data}
    return client.post(url(f"{model}_changelist"), posted)


def said(response: Any) -> list[str]:
    return [str(message) for message in response.context["messages"]]


def dead_task(store: BaseStore, *args: Any, **kwargs: Any) -> uuid.UUID:
    payload = json.dumps({"args": args, "kwargs": kwargs})
    return factories.dead(store, task=send_receipt.module_path, payload=payload).id


# Who may


OPERATIONS = [
    ("deadjob_requeue", "requeue_deadjob", "requeue"),
    ("deadjob_discard", "discard_deadjob", "discard"),
    ("livejob_cancel", "cancel_livejob", "cancel"),
]
PAGES = ["deadjob", "livejob", "result", "schedule", "lock", "queue", "worker"]


@pytest.mark.parametrize("model", PAGES)
def test_anonymous_is_led_to_the_login(model: str) -> None:
    response = Client().get(url(f"{model}_changelist"))
    assert response.status_code == 302
    assert response["Location"].startswith("/admin/login/")


@pytest.mark.parametrize(("name", "permission", "action"), OPERATIONS)
def test_anonymous_operation_is_led_to_the_login(
    store: BaseStore, name: str, permission: str, action: str
) -> None:
    job_id = factories.dead(store).id
    response = Client().post(url(name), {"ids": str(job_id), "confirmed": "yes"})
    assert response.status_code == 302
    assert response["Location"].startswith("/admin/login/")
    assert sound.place(job_id) == "dead"


@pytest.mark.parametrize("model", PAGES)
def test_list_is_refused_without_its_view_permission(model: str) -> None:
    assert staff().get(url(f"{model}_changelist")).status_code == 403


@pytest.mark.parametrize("model", ["deadjob", "livejob", "result"])
def test_page_is_refused_without_its_view_permission(store: BaseStore, model: str) -> None:
    assert staff().get(page_of(uuid.uuid4(), model)).status_code == 403


@pytest.mark.parametrize("model", [name for name in PAGES if name != "schedule"])
def test_nothing_is_added_changed_or_deleted_by_a_superuser(model: str) -> None:
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("ada"))
    assert client.get(url(f"{model}_add")).status_code == 403
    assert client.post(url(f"{model}_delete", uuid.uuid4())).status_code == 403


@pytest.mark.parametrize(("name", "permission", "action"), OPERATIONS)
def test_operation_is_refused_without_its_own_permission(
    store: BaseStore, name: str, permission: str, action: str
) -> None:
    others = {each for _, each, _ in OPERATIONS} - {permission}
    client = staff(*VIEW, *others)
    dead, live = factories.dead(store).id, factories.insert(store)
    before = sound.rows()
    for confirmed in (True, False):
        assert do(client, name, dead, live, confirmed=confirmed).status_code == 403
    model = name.partition("_")[0]
    assert choose(client, model, action, dead, live).status_code == 403
    assert sound.rows() == before


@pytest.mark.parametrize(("name", "permission", "action"), OPERATIONS)
def test_operation_is_refused_to_who_may_not_see_the_jobs(
    store: BaseStore, name: str, permission: str, action: str
) -> None:
    job_id = factories.dead(store).id
    assert do(staff(permission), name, job_id).status_code == 403
    assert sound.place(job_id) == "dead"


def test_buttons_and_actions_are_hidden_from_who_may_only_look(store: BaseStore) -> None:
    dead, live = factories.dead(store).id, factories.insert(store)
    client = staff(*VIEW)
    for model, job_id in (("deadjob", dead), ("livejob", live)):
        page = client.get(page_of(job_id, model)).content.decode()
        listed = client.get(url(f"{model}_changelist")).content.decode()
        for word in ("/requeue/", "/discard/", "/cancel/", "/correct/"):
            assert word not in page
        assert 'name="action"' not in listed
        assert str(job_id) in listed


def test_buttons_are_those_the_user_may_press(store: BaseStore) -> None:
    job_id = factories.dead(store).id
    page = staff("view_deadjob", "discard_deadjob").get(page_of(job_id)).content.decode()
    assert url("deadjob_discard") in page
    assert url("deadjob_requeue") not in page
    assert url("deadjob_correct", job_id) not in page


# What a request changes


@pytest.mark.parametrize(("name", "permission", "action"), OPERATIONS)
def test_get_of_an_operation_is_not_allowed(
    store: BaseStore, name: str, permission: str, action: str
) -> None:
    dead, live = factories.dead(store).id, factories.insert(store)
    before = sound.rows()
    for job_id in (dead, live):
        response = operator().get(url(name), {"ids": str(job_id), "confirmed": "yes"})
        assert response.status_code == 405
    assert sound.rows() == before


def test_get_of_any_page_changes_nothing(store: BaseStore) -> None:
    done, dead = factories.finished(store), factories.dead(store).id
    live = factories.insert(store)
    before = sound.rows()
    client = operator()
    for address in (
        page_of(dead),
        page_of(live, "livejob"),
        page_of(done.id, "result"),
        url("deadjob_correct", dead),
        url("deadjob_changelist") + "?action=requeue&confirmed=yes",
    ):
        assert client.get(address).status_code in (200, 400), address
    assert sound.rows() == before


@pytest.mark.parametrize("model", ["deadjob", "livejob", "result"])
def test_post_to_a_page_is_not_allowed(store: BaseStore, model: str) -> None:
    assert operator().post(page_of(factories.dead(store).id, model)).status_code == 405


def test_post_without_a_csrf_token_is_refused(store: BaseStore) -> None:
    job_id = factories.dead(store).id
    client = Client(enforce_csrf_checks=True)
    client.force_login(get_user_model().objects.create_superuser("ada"))
    response = client.post(url("deadjob_requeue"), {"ids": str(job_id), "confirmed": "yes"})
    assert response.status_code == 403
    assert sound.place(job_id) == "dead"


@pytest.mark.parametrize("action", ["requeue", "discard"])
def test_action_asks_first_and_states_the_count(store: BaseStore, action: str) -> None:
    ids = [factories.dead(store).id for _ in range(3)]
    factories.dead(store)
    before = sound.rows()
    response = choose(operator(), "deadjob", action, *ids)
    assert response.status_code == 200
    assert f"{action.capitalize()} 3 dead jobs?" in response.content.decode()
    assert sorted(response.context["ids"].split()) == sorted(map(str, ids))
    assert sound.rows() == before


def test_button_asks_first_and_states_the_count(store: BaseStore) -> None:
    job_id = factories.dead(store).id
    response = do(operator(), "deadjob_requeue", job_id, confirmed=False)
    assert "Requeue 1 dead job?" in response.content.decode()
    assert sound.place(job_id) == "dead"


def test_confirmed_requeue_keeps_the_job_and_gives_a_new_budget(store: BaseStore) -> None:
    payload = '{"args":[1],"kwargs":{"to":"a"}}'
    options: dict[str, Any] = {"queue_name": "mail", "priority": 7, "payload": payload}
    job_id = factories.dead(store, unique_key="k", headers='{"tenant":"t"}', **options).id
    before = sound.rows()["dead"][job_id]
    response = do(operator(), "deadjob_requeue", job_id)
    assert said(response) == ["1 job was requeued."]
    after = sound.row(job_id)
    kept = {"queue_name", "task", "payload", "rank", "headers", "unique_key", "max_attempts"}
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert (after["state"], after["attempt"], after["rank"]) == (State.READY, 0, -7)
    assert not DeadJob.objects.filter(pk=job_id).exists()
    sound.assert_sound(job_id)


def test_requeue_twice_is_harmless_and_says_so(store: BaseStore) -> None:
    job_id = factories.dead(store).id
    client = operator()
    do(client, "deadjob_requeue", job_id)
    once = sound.rows()
    again = do(client, "deadjob_requeue", job_id)
    assert said(again) == ["1 job was not dead any more: nothing was done to it."]
    asked = do(client, "deadjob_requeue", job_id, confirmed=False)
    assert said(asked) == ["1 job was not dead any more: nothing was done to it."]
    assert sound.rows() == once


def test_requeue_wakes_a_waiting_worker(store: BaseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr("django_workqueue.notifying.notify", lambda store: told.append(store.alias))
    job_id = factories.dead(store).id
    do(operator(), "deadjob_requeue", job_id)
    do(operator(), "deadjob_requeue", job_id)
    assert told == ["default"]


def test_requeue_refused_by_a_unique_key_names_the_holder_and_the_others_go_on(
    store: BaseStore,
) -> None:
    refused = factories.dead(store, unique_key="order-7").id
    holder = factories.insert(store, unique_key="order-7")
    other = factories.dead(store, queue_name="mail").id
    response = do(operator(), "deadjob_requeue", refused, other)
    done, stays = said(response)
    assert done == "1 job was requeued."
    assert stays.startswith("1 job stays dead, because its unique key is taken:")
    assert page_of(holder, "livejob") in stays
    assert page_of(refused) in stays
    assert (sound.place(refused), sound.place(other)) == ("dead", "ready")


def test_page_says_beforehand_who_holds_the_unique_key(store: BaseStore) -> None:
    refused = factories.dead(store, unique_key="order-7").id
    holder = factories.insert(store, unique_key="order-7")
    page = operator().get(page_of(refused)).content.decode()
    assert "A requeue will be refused now" in page
    assert page_of(holder, "livejob") in page


def test_confirmed_discard_deletes_and_nothing_else(store: BaseStore) -> None:
    gone, kept = factories.dead(store).id, factories.dead(store).id
    response = do(operator(), "deadjob_discard", gone)
    assert said(response) == ["1 job was discarded."]
    assert (sound.place(gone), sound.place(kept)) == (None, "dead")


def test_more_than_a_batch_is_done_in_batches(
    store: BaseStore, monkeypatch: pytest.MonkeyPatch, django_assert_max_num_queries: Any
) -> None:
    monkeypatch.setattr(operations, "BATCH", 2)
    ids = [factories.dead(store).id for _ in range(5)]
    sizes = [len(batch) for batch, _ in operations.apply(operations.REQUEUE, store, ids)]
    assert sizes == [2, 2, 1]
    assert LiveJob.objects.count() == 5


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_what_a_batch_committed_stays_whatever_happens_to_a_later_one(
    store: BaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "BATCH", 1)
    first, second = factories.dead(store).id, factories.dead(store).id
    batches = operations.apply(operations.REQUEUE, store, [first, second])
    next(batches)
    monkeypatch.setattr(type(store), "requeue", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        next(batches)
    assert (sound.place(first), sound.place(second)) == ("ready", "dead")


def test_all_that_match_are_asked_about_up_to_a_bound(
    store: BaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_workqueue.admin.confirming.MOST_JOBS", 3)
    ids = [factories.dead(store, now=factories.at(n)).id for n in range(5)]
    response = choose(operator(), "deadjob", "requeue", ids[0], select_across=1)
    assert "Requeue 3 dead jobs?" in response.content.decode()
    assert "More jobs match." in response.content.decode()
    assert response.context["ids"].split() == [str(pk) for pk in reversed(ids[2:])]


def test_operation_acts_on_the_jobs_it_asked_about_whatever_died_since(store: BaseStore) -> None:
    asked = factories.dead(store).id
    client = operator()
    response = choose(client, "deadjob", "requeue", asked, select_across=1)
    later = factories.dead(store).id
    do(client, "deadjob_requeue", *map(uuid.UUID, response.context["ids"].split()))
    assert (sound.place(asked), sound.place(later)) == ("ready", "dead")


def test_filters_survive_an_operation(store: BaseStore) -> None:
    job_id = factories.dead(store).id
    response = do(operator(), "deadjob_requeue", job_id, filters="reason=lost&p=9")
    assert response.redirect_chain == [(url("deadjob_changelist") + "?reason=lost", 302)]


@pytest.mark.parametrize("ids", ["", "x", "1 2", f"{uuid.uuid4()} '", "\x00"])
def test_ids_that_are_none_are_refused(ids: str) -> None:
    response = operator().post(url("deadjob_requeue"), {"ids": ids, "confirmed": "yes"})
    assert response.status_code == 400


def test_who_did_it_is_logged(store: BaseStore) -> None:
    client = operator()
    requeued, discarded = factories.dead(store).id, factories.dead(store).id
    do(client, "deadjob_requeue", requeued)
    do(client, "deadjob_discard", discarded)
    do(client, "deadjob_discard", discarded)
    logged = LogEntry.objects.values_list("object_id", "change_message", "user_id")
    user_id = int(client.session["_auth_user_id"])
    assert set(logged) == {
        (str(requeued), "Requeued.", user_id),
        (str(discarded), "Discarded.", user_id),
    }
    assert len(logged) == 2


# Cancel


def test_cancel_ends_what_waits_and_asks_who_runs(store: BaseStore) -> None:
    waits = factories.insert(store, queue_name="mail")
    runs = factories.running(store).id
    client = operator()
    asked = choose(client, "livejob", "cancel", waits, runs)
    assert "Cancel 2 live jobs?" in asked.content.decode()
    response = do(client, "livejob_cancel", waits, runs)
    assert said(response) == [
        "1 job was cancelled.",
        "1 job is running: its worker was asked to cancel it.",
    ]
    assert (sound.place(waits), sound.place(runs)) == ("finished", "running")
    assert sound.row(runs)["cancel_asked_at"] is not None
    again = do(client, "livejob_cancel", waits, runs)
    assert said(again)[0].startswith("2 jobs were not live any more")


# Correct and requeue


def correct(client: Client, job_id: uuid.UUID, value: Any, **data: Any) -> Any:
    """Post the form of a dead job's arguments as it was opened, with *value* in it."""
    form = client.get(url("deadjob_correct", job_id)).context["form"]
    text = value if isinstance(value, str) else json.dumps(value)
    posted = {"payload": text, "fence": form["fence"].value(), **data}
    return client.post(url("deadjob_correct", job_id), posted, follow=True)


def problems(response: Any) -> str:
    return str(response.context["form"].errors)


def test_corrected_arguments_take_the_place_of_the_old(store: BaseStore) -> None:
    job_id = dead_task(store, 7, to="wrong")
    right = {"args": [7], "kwargs": {"to": "ада@example.org", "password": "\u2028\U0001f600"}}
    response = correct(operator(), job_id, right)
    assert said(response) == ["1 job was requeued."]
    assert sound.row(job_id)["payload"] == right
    sound.assert_sound(job_id)


def test_arguments_left_alone_are_the_same_afterwards(store: BaseStore) -> None:
    odd = {"a": ["\x1b[31m", "\u202e", 1e16, 10**30, None, True, "<script>", "\n"]}
    job_id = dead_task(store, odd)
    client = operator()
    shown = client.get(url("deadjob_correct", job_id)).context["form"]["payload"].value()
    assert shown.isascii() or shown.replace("\n", "").isprintable()
    correct(client, job_id, shown.replace("\n", "\r\n"))
    assert sound.row(job_id)["payload"] == {"args": [odd], "kwargs": {}}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("{", "must be JSON"),
        ("", "required"),
        ('{"args": [NaN], "kwargs": {}}', "NaN is not JSON"),
        ([7], "must be an object with"),
        ({"args": [7]}, "must be an object with"),
        ({"args": {}, "kwargs": {}}, "must be an object with"),
        ({"args": ["\x00"], "kwargs": {}}, r"args[0] must hold no NUL"),
        ({"args": ["\ud800"], "kwargs": {}}, "lone surrogate"),
        ({"args": [], "kwargs": {}}, "must fit its signature"),
        ({"args": [7], "kwargs": {"<script>": 1}}, "&lt;script&gt;"),
        ({"args": ["x" * 3_000], "kwargs": {}}, "at most 2048 bytes"),
    ],
)
def test_arguments_that_an_enqueue_would_refuse_are_refused(
    store: BaseStore, settings: Any, value: Any, problem: str
) -> None:
    job_id = dead_task(store, 7)
    settings.WORKQUEUE = {"PAYLOAD_MAX_BYTES": 2_048}
    before = sound.rows()
    response = correct(operator(), job_id, value)
    assert response.status_code == 200
    assert problem in problems(response)
    assert "<script>" not in problems(response)
    assert sound.rows() == before


def test_unknown_task_is_corrected_with_a_warning(store: BaseStore) -> None:
    job_id = factories.dead(store, task="shop.tasks.gone").id
    client = operator()
    page = client.get(url("deadjob_correct", job_id)).content.decode()
    assert "This process does not know the task shop.tasks.gone" in page
    correct(client, job_id, {"args": [1, 2, 3], "kwargs": {"any": "thing"}})
    assert sound.row(job_id)["payload"] == {"args": [1, 2, 3], "kwargs": {"any": "thing"}}


def test_form_of_an_earlier_death_is_refused(store: BaseStore) -> None:
    job_id = dead_task(store, 7)
    client = operator()
    response = correct(client, job_id, {"args": [8], "kwargs": {}}, fence=0)
    assert "requeued and died again" in problems(response)
    assert sound.place(job_id) == "dead"


def test_correction_of_a_job_that_is_not_dead_leads_back(store: BaseStore) -> None:
    job_id = dead_task(store, 7)
    client = operator()
    store.requeue(job_id)
    posted = {"payload": '{"args": [8], "kwargs": {}}', "fence": 1}
    response = client.post(url("deadjob_correct", job_id), posted, follow=True)
    assert said(response)[0].startswith(f"There is no dead job {job_id}")
    assert sound.row(job_id)["payload"] == {"args": [7], "kwargs": {}}


def test_correction_refused_by_a_unique_key_names_the_holder(store: BaseStore) -> None:
    options: dict[str, Any] = {"unique_key": "order-7", "task": send_receipt.module_path}
    job_id = factories.dead(store, **options).id
    holder = factories.insert(store, **options)
    response = correct(operator(), job_id, {"args": [8], "kwargs": {}})
    assert page_of(holder, "livejob") in said(response)[0]
    assert sound.place(job_id) == "dead"


@pytest.mark.parametrize("permissions", [VIEW, (*VIEW, "discard_deadjob"), ("requeue_deadjob",)])
def test_correction_is_refused_without_the_permission_to_requeue(
    store: BaseStore, permissions: tuple[str, ...]
) -> None:
    job_id = dead_task(store, 7)
    client = staff(*permissions)
    posted = {"payload": '{"args": [8], "kwargs": {}}', "fence": 1}
    assert client.get(url("deadjob_correct", job_id)).status_code == 403
    assert client.post(url("deadjob_correct", job_id), posted).status_code == 403
    assert sound.place(job_id) == "dead"


# Redaction


@pytest.fixture
def _password_is_redacted(settings: Any) -> None:
    settings.WORKQUEUE = {"REDACT": ("password", "Authorization")}


@pytest.mark.usefixtures("_password_is_redacted")
@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((7,), {"password": "hunter2"}),
        ((7, "ada", "hunter2"), {}),
        (({"PASSWORD": ["hunter2"]},), {}),
        ((7,), {"to": {"deep": [{"password": {"x": "hunter2"}}]}}),
    ],
)
def test_redacted_names_hide_their_values(
    store: BaseStore, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    job_id = dead_task(store, *args, **kwargs)
    for address in (page_of(job_id), url("deadjob_correct", job_id)):
        page = operator().get(address).content.decode()
        assert "hunter2" not in page
        assert "•••" in page


@pytest.mark.usefixtures("_password_is_redacted")
def test_positional_arguments_of_an_unknown_task_are_all_hidden(store: BaseStore) -> None:
    payload = '{"args":["hunter2"],"kwargs":{"to":"ada"}}'
    job_id = factories.dead(store, task="shop.tasks.gone", payload=payload).id
    page = operator().get(page_of(job_id)).content.decode()
    assert "hunter2" not in page
    assert "ada" in page


@pytest.mark.usefixtures("_password_is_redacted")
def test_headers_are_redacted_too(store: BaseStore) -> None:
    job_id = factories.dead(store, headers='{"authorization":"Bearer t0k3n","tenant":"acme"}').id
    page = operator().get(page_of(job_id)).content.decode()
    assert "t0k3n" not in page
    assert "acme" in page


@pytest.mark.usefixtures("_password_is_redacted")
def test_text_that_is_no_json_is_hidden_as_it_has_no_names(store: BaseStore) -> None:
    job_id = dead_task(store, 7, password="hunter2")
    broken = EncodedJSON('{"args":[7],"kwargs":{"password":"hunter2"')
    assert DeadJob.objects.filter(pk=job_id).update(payload=broken, headers=broken) == 1
    for address in (page_of(job_id), url("deadjob_correct", job_id)):
        assert "hunter2" not in operator().get(address).content.decode()


@pytest.mark.usefixtures("_password_is_redacted")
def test_hidden_values_left_alone_are_kept_by_a_correction(store: BaseStore) -> None:
    job_id = dead_task(store, 7, "wrong", password="hunter2")
    correct(operator(), job_id, {"args": [7, "right"], "kwargs": {"password": "•••"}})
    assert sound.row(job_id)["payload"] == {
        "args": [7, "right"],
        "kwargs": {"password": "hunter2"},
    }


@pytest.mark.usefixtures("_password_is_redacted")
def test_hidden_values_are_replaced_where_they_were_written_out(store: BaseStore) -> None:
    job_id = dead_task(store, 7, password="hunter2")
    correct(operator(), job_id, {"args": [7], "kwargs": {"password": "new"}})
    assert sound.row(job_id)["payload"]["kwargs"] == {"password": "new"}


@pytest.mark.usefixtures("_password_is_redacted")
def test_mask_moved_to_another_place_is_refused(store: BaseStore) -> None:
    job_id = dead_task(store, 7, password="hunter2")
    response = correct(operator(), job_id, {"args": [7, "•••"], "kwargs": {}})
    assert "args[1] must be written out" in problems(response)
    assert sound.place(job_id) == "dead"


@pytest.mark.usefixtures("_password_is_redacted")
def test_no_parameter_of_a_list_probes_hidden_arguments(store: BaseStore) -> None:
    dead_task(store, 7, password="hunter2")
    for probe in ("payload__contains=hunter2", "errors__icontains=x", "fence=1"):
        response = operator().get(url("deadjob_changelist") + f"?{probe}")
        assert response.status_code == 400


# Which database


def test_admin_works_on_the_queues_database_whatever_the_router_reads(settings: Any) -> None:
    settings.WORKQUEUE = {"DATABASE": "other"}
    store = get_store()
    assert store.alias == "other"
    dead, live = factories.dead(store).id, factories.insert(store, queue_name="mail")
    client = operator()
    assert str(dead) in client.get(url("deadjob_changelist")).content.decode()
    assert str(live) in client.get(url("livejob_changelist")).content.decode()
    assert client.get(page_of(dead)).status_code == 200
    assert said(do(client, "deadjob_requeue", dead)) == ["1 job was requeued."]
    assert said(do(client, "livejob_cancel", live)) == ["1 job was cancelled."]
    assert LiveJob.objects.using("other").filter(pk=dead).exists()
    assert Result.objects.using("other").filter(pk=live).exists()
    assert not LiveJob.objects.using("default").exists()


# Read-only lists


def test_small_tables_are_listed(store: BaseStore) -> None:
    now = store.now()
    Lock.objects.create(name="nightly", owner="web-1", token=1, expires_at=now)
    Queue.objects.create(name="mail", paused_until=now + timedelta(hours=1), reason="smtp down")
    store.pause("reports")
    queues: Any = ["mail"]
    Worker.objects.create(
        id="web-1:7", host="web-1", pid=7, queues=queues, started_at=now, last_seen_at=now
    )
    kwargs: Any = {"to": "<b>"}
    Schedule.objects.create(
        name="nightly-report",
        task="shop.tasks.report",
        kwargs=kwargs,
        expression="0 3 * * *",
    )
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("ada"))
    wanted = {
        "lock": "web-1",
        "queue": "smtp down",
        "worker": "web-1:7",
        "schedule": "0 3 * * *",
    }
    names = {"lock": "NIGHT", "queue": "Mai", "worker": "WEB", "schedule": "Nightly-R"}
    for model, text in wanted.items():
        found = client.get(url(f"{model}_changelist") + f"?q={names[model]}")
        assert text in found.content.decode()
        assert text not in client.get(url(f"{model}_changelist") + "?q=nowhere").content.decode()
        for query in ("", "?q=n", "?q=\x00", "?q=%00'"):
            response = client.get(url(f"{model}_changelist") + query)
            assert response.status_code == 200
        assert text in client.get(url(f"{model}_changelist")).content.decode()
    assert "until it is resumed" in client.get(url("queue_changelist")).content.decode()
    assert "<b>" not in client.get(url("schedule_changelist")).content.decode()


def test_empty_list_of_queues_says_when_a_row_appears() -> None:
    client = staff("view_queue")
    note = "A row appears when a queue is paused"
    assert note in client.get(url("queue_changelist")).content.decode()
    Queue.objects.create(name="mail")
    assert note not in client.get(url("queue_changelist")).content.decode()


def test_result_page_shows_its_value(store: BaseStore) -> None:
    done = factories.finished(store)
    page = operator().get(page_of(done.id, "result")).content.decode()
    assert "Finished: succeeded" in page
    assert re.search(r"<pre[^>]*>42</pre>", page)


@pytest.mark.parametrize("reason", list(DeathReason))
def test_each_reason_of_death_says_what_to_do_next(store: BaseStore, reason: DeathReason) -> None:
    page = operator().get(page_of(factories.dead(store, reason=reason).id)).content.decode()
    assert "What to do next:" in page
    assert "does not know the reason" not in page


def test_reason_that_this_code_does_not_know_is_shown_as_it_is(store: BaseStore) -> None:
    job_id = factories.dead(store).id
    DeadJob.objects.filter(pk=job_id).update(reason="from_the_future")
    client = operator()
    assert "from_the_future" in client.get(page_of(job_id)).content.decode()
    assert "from_the_future" in client.get(url("deadjob_changelist")).content.decode()


@pytest.mark.parametrize("model", ["livejob", "deadjob"])
def test_lost_attempt_is_shown_with_the_worker_that_was_lost(store: BaseStore, model: str) -> None:
    """Case A 35."""
    taken = factories.running(store, worker_id="w-of-a-dead-host", lease_seconds=1)
    store.reclaim(now=factories.at(1))
    if model == "deadjob":
        (again,) = factories.claim(store, now=factories.at(2))
        store.bury(again, DeathReason.TERMINAL, factories.error(again), now=factories.at(3))
    page = operator().get(page_of(taken.id, model)).content.decode()
    assert "worker lost: w-of-a-dead-host stopped extending its lease" in page
    assert re.search(r"Attempt 1\b", page)
    assert re.search(r"\blost\b", page)


# Messages of the outbox


@pytest.fixture
def dead_message(store: BaseStore, own_destinations: None) -> uuid.UUID:
    """The first of two messages of a key: dead, and the other waits for what becomes of it."""
    events = declare(lambda message: None)
    first, _ = publish(events, {"order": 7}, {"order": 8}, key="7")
    (taken,) = outbox_claim()
    store.bury(taken, DeathReason.TERMINAL, factories.error(taken))
    return first


def test_a_dead_message_is_seen_under_its_destination(dead_message: uuid.UUID) -> None:
    client = staff(*VIEW)
    listed = client.get(url("deadjob_changelist")).content.decode()
    assert "outbox:events" in listed
    page = client.get(page_of(dead_message)).content.decode()
    assert "outbox:events" in page
    assert "&quot;order&quot;: 7" in page


def advice(client: Client, job_id: uuid.UUID, model: str = "livejob") -> str:
    """Return what a job's page says to do next, as HTML."""
    page = client.get(page_of(job_id, model)).content.decode()
    found = re.search(r"What to do next:</strong>(.*?)</p>", page, re.DOTALL)
    assert found is not None
    return found[1]


def test_a_message_behind_a_dead_one_of_its_key_says_which_and_what_to_do(
    dead_message: uuid.UUID,
) -> None:
    waits = LiveJob.objects.get().pk
    said = advice(operator(), waits)
    assert "An earlier message of its key is dead" in said
    assert f'href="{page_of(dead_message)}"' in said
    without = advice(staff("view_livejob"), waits)
    assert "href" not in without
    assert str(dead_message) in without


def test_a_message_behind_a_live_one_of_its_key_says_which(
    store: BaseStore, dead_message: uuid.UUID
) -> None:
    waits = LiveJob.objects.get().pk
    do(operator(), "deadjob_requeue", dead_message)
    said = advice(operator(), waits)
    assert "This one goes when that one is done" in said
    assert f'href="{page_of(dead_message, "livejob")}"' in said


def test_a_message_with_nothing_before_it_waits_for_the_sweep(dead_message: uuid.UUID) -> None:
    DeadJob.objects.update(kind="skippable")
    assert "The next sweep makes it ready" in advice(operator(), LiveJob.objects.get().pk)


@pytest.mark.usefixtures("own_destinations")
def test_a_message_that_is_ready_asks_for_a_worker_that_declares_its_destination() -> None:
    (message,) = publish(declare(lambda message: None), {"order": 7})
    said = advice(operator(), message)
    assert "OUTBOX_DATABASES" in said
    assert "does not declare" not in said
    LiveJob.objects.update(queue_name="outbox:gone")
    assert "does not declare the destination gone" in advice(operator(), message)


@pytest.mark.parametrize("reason", ["terminal", "exhausted"])
def test_advice_about_a_dead_message_speaks_of_its_payload(
    dead_message: uuid.UUID, reason: str
) -> None:
    DeadJob.objects.update(reason=reason)
    said = advice(operator(), dead_message, "deadjob")
    assert "payload" in said
    assert "arguments" not in said


def test_a_requeued_message_goes_before_the_later_ones_of_its_key(
    store: BaseStore, dead_message: uuid.UUID
) -> None:
    do(operator(), "deadjob_requeue", dead_message)
    assert [(job.pk == dead_message, job.state) for job in LiveJob.objects.order_by("seq")] == [
        (True, "ready"),
        (False, "held"),
    ]


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_a_discarded_message_lets_the_later_ones_of_its_key_go(
    store: BaseStore, dead_message: uuid.UUID
) -> None:
    do(operator(), "deadjob_discard", dead_message)
    assert not DeadJob.objects.exists()
    assert [job.state for job in LiveJob.objects.all()] == ["ready"]
