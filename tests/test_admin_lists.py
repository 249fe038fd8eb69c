"""The admin's lists over tables of any size, and what they show of any content."""

from __future__ import annotations

import json
import re
import time
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_workqueue.admin import attempts, base, filters, livejobs, paging, showing
from django_workqueue.ids import new_id
from django_workqueue.models import DeadJob, LiveJob, Result
from django_workqueue.states import DeathReason, State
from django_workqueue.store import BaseStore, get_store
from django_workqueue.store.names import names_in
from tests import factories

pytestmark = pytest.mark.django_db

MOST_QUERIES = 12
LISTS: dict[str, type[Model]] = {"deadjob": DeadJob, "livejob": LiveJob, "result": Result}


@pytest.fixture
def store() -> BaseStore:
    return get_store()


@pytest.fixture
def staff() -> Client:
    """A client whose permissions have to be looked up, as a superuser's have not."""
    user = get_user_model().objects.create_user("ada", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="workqueue"))
    client = Client()
    client.force_login(user)
    return client


def address(model: str, **query: Any) -> str:
    parameters = "&".join(f"{name}={value}" for name, value in query.items())
    return f"{reverse(f'admin:workqueue_{model}_changelist')}?{parameters}"


def listed(client: Client, model: str = "deadjob", **query: Any) -> list[uuid.UUID]:
    """Return the ids that the list shows, in its order."""
    response = client.get(address(model, **query))
    assert response.status_code == 200, response
    return [row.pk for row in response.context["cl"].result_list]


def many_dead(count: int, **facts: Any) -> list[uuid.UUID]:
    """Write dead jobs in one statement, a second between two deaths; return ids, newest first."""
    defaults = {
        "queue_name": "default",
        "task": factories.TASK,
        "payload": {"args": [], "kwargs": {}},
        "max_attempts": 3,
        "run_after": factories.T0,
        "enqueued_at": factories.T0,
        "reason": DeathReason.EXHAUSTED,
    }
    rows = [
        DeadJob(id=new_id(), **{**defaults, **facts}, died_at=factories.at(second))
        for second in range(count)
    ]
    DeadJob.objects.bulk_create(rows)
    return [row.pk for row in reversed(rows)]


# Cost


@pytest.mark.parametrize("model", LISTS)
@pytest.mark.parametrize("query", [{}, {"q": "shop"}, {"p": 2}])
def test_list_counts_no_whole_table_and_reads_no_large_column(
    store: BaseStore, staff: Client, model: str, query: dict[str, Any]
) -> None:
    many_dead(120)
    for _ in range(3):
        factories.finished(store)
        factories.insert(store, queue_name="other")
    with CaptureQueriesContext(connection) as captured:
        staff.get(address(model, **query))
    assert len(captured) <= MOST_QUERIES
    table = LISTS[model]._meta.db_table
    about = [each["sql"] for each in captured.captured_queries if table in each["sql"]]
    assert about
    for sql in about:
        if "COUNT(" in sql:
            assert re.search(r"LIMIT \d+\) ", sql), sql
        assert "DISTINCT" not in sql
        for large in ("payload", "headers", "worker_ids", "unique_key", "value"):
            assert large not in sql
        # A piece of a bounded size, and only of the rows of the page.
        assert "errors" not in sql or re.search(r"(SUBSTR|RIGHT)\(.+ IN \(", sql)


def test_filtered_dead_list_keeps_within_its_queries(staff: Client, store: BaseStore) -> None:
    many_dead(120)
    query = {"reason": "exhausted", "died": "week", "queue": "default", "task": factories.TASK}
    with CaptureQueriesContext(connection) as captured:
        staff.get(address("deadjob", q="shop", **query))
    assert len(captured) <= MOST_QUERIES


def test_count_stops_and_says_that_there_is_more(
    staff: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paging, "COUNTED_ROWS", 60)
    monkeypatch.setattr(paging, "PAGES_AHEAD", 0)
    ids = many_dead(130)
    response = staff.get(address("deadjob"))
    assert response.context["cl"].result_count == 60
    assert "There are more than 60" in response.content.decode()
    assert listed(staff, p=2) == ids[50:100]


def test_count_of_few_is_exact(staff: Client) -> None:
    many_dead(3)
    response = staff.get(address("deadjob"))
    assert response.context["cl"].result_count == 3
    assert "There are more than" not in response.content.decode()


def test_paging_leads_on_beyond_the_first_count(
    staff: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paging, "COUNTED_ROWS", 10)
    monkeypatch.setattr(paging, "PAGES_AHEAD", 1)
    ids = many_dead(170)
    seen = [job_id for page in (1, 2, 3, 4) for job_id in listed(staff, p=page)]
    assert seen == ids


def test_paging_ends_where_an_offset_would_cost_too_much(
    staff: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paging, "REACHED_ROWS", 100)
    many_dead(170)
    assert len(listed(staff, p=2)) == 50
    assert staff.get(address("deadjob", p=3)).status_code == 302


@pytest.mark.parametrize("page", ["0", "-1", "x", "9" * 30, "%D9%A3", "1e9"])
def test_page_that_makes_no_sense_is_no_error(staff: Client, page: str) -> None:
    many_dead(60)
    assert staff.get(address("deadjob", p=page), follow=True).status_code == 200


def test_names_are_read_from_the_index_one_entry_a_name() -> None:
    for name in ("a", "b", "B", "a ", ""):
        many_dead(30, queue_name=name)
    found = names_in(DeadJob, "queue_name", alias="default", limit=10)
    assert sorted(found) == ["", "B", "a", "a ", "b"]
    assert len(names_in(DeadJob, "queue_name", alias="default", limit=2)) == 2
    assert names_in(LiveJob, "unique_hash", alias="default", limit=2) == []


MILLION = 1_000_000
PAGE_SECONDS = 1.0


@pytest.mark.soak
@pytest.mark.vendor("postgresql", "sqlite")
def test_lists_of_a_million_rows_answer_within_a_second(staff: Client, store: BaseStore) -> None:
    for name in ("mail", "reports", "default"):
        many_dead(10, queue_name=name, task=f"shop.tasks.{name}")
    DeadJob.objects.update(errors=[error_record("shop.Boom", "x" * 500)] * 3)
    for _ in range(20):
        factories.insert(store)
    for table in (DeadJob, LiveJob):
        while table.objects.count() < MILLION:
            double(table)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    # Two filters that nothing matches both of are left out: one index is walked to its end then.
    pages: list[tuple[str, dict[str, Any]]] = [
        ("deadjob", {}),
        ("deadjob", {"p": 20}),
        ("deadjob", {"queue": "mail"}),
        ("deadjob", {"task": "shop.tasks.mail", "queue": "mail"}),
        ("deadjob", {"reason": "lost"}),
        ("deadjob", {"died": "hour"}),
        ("deadjob", {"q": "reports"}),
        ("deadjob", {"q": uuid.uuid4()}),
        ("livejob", {}),
        ("livejob", {"state": "ready"}),
        ("livejob", {"state": "running"}),
        ("livejob", {"q": "nowhere"}),
    ]
    seconds = {f"{model} {query}": timed(staff, model, query) for model, query in pages}
    assert {page: took for page, took in seconds.items() if took > PAGE_SECONDS} == {}


def double(table: type[Model]) -> None:
    """Write every row of *table* once more, under a new id."""
    columns = [field.column for field in table._meta.fields if field.column != "id"]
    names = ", ".join(connection.ops.quote_name(column or "") for column in columns)
    new = "gen_random_uuid()" if connection.vendor == "postgresql" else "lower(hex(randomblob(16)))"
    name = connection.ops.quote_name(table._meta.db_table)
    with connection.cursor() as cursor:
        cursor.execute(f'INSERT INTO {name} ("id", {names}) SELECT {new}, {names} FROM {name}')


def timed(client: Client, model: str, query: dict[str, Any]) -> float:
    """Return the seconds of the fastest of three requests for a page."""
    took = []
    for _ in range(3):
        started = time.monotonic()
        listed(client, model, **query)
        took.append(time.monotonic() - started)
    return min(took)


# Filters and search


def test_filters_offer_what_is_there(staff: Client) -> None:
    many_dead(2, queue_name="mail", task="shop.tasks.a")
    many_dead(1, queue_name="reports", task="")
    specs = staff.get(address("deadjob")).context["cl"].filter_specs
    choices = {spec.title: [str(label) for _, label in spec.lookup_choices] for spec in specs}
    assert sorted(choices["queue"]) == ["mail", "reports"]
    assert sorted(choices["task"]) == ["(no task)", "shop.tasks.a"]
    assert len(choices["reason"]) == len(DeathReason)


def test_each_filter_narrows_the_list(staff: Client) -> None:
    wanted = many_dead(2, queue_name="mail", task="shop.tasks.a", reason=DeathReason.LOST)
    many_dead(3)
    assert listed(staff, queue="mail") == wanted
    assert listed(staff, task="shop.tasks.a") == wanted
    assert listed(staff, reason="lost") == wanted
    assert listed(staff, reason="lost", queue="default") == []
    assert listed(staff, queue="gone") == []


@pytest.mark.parametrize(
    ("died", "expected"),
    [
        ("hour", ["minute"]),
        ("day", ["minute", "hours"]),
        ("week", ["minute", "hours", "days"]),
        ("month", ["minute", "hours", "days", "weeks"]),
        ("older", ["months"]),
        ("nonsense", ["minute", "hours", "days", "weeks", "months"]),
    ],
)
def test_died_filter_goes_by_the_databases_clock(
    staff: Client, store: BaseStore, died: str, expected: list[str]
) -> None:
    now = store.now()
    ages = {
        "minute": timedelta(minutes=1),
        "hours": timedelta(hours=2),
        "days": timedelta(days=3),
        "weeks": timedelta(days=20),
        "months": timedelta(days=90),
    }
    for task, age in ages.items():
        (job_id,) = many_dead(1, task=task)
        DeadJob.objects.filter(pk=job_id).update(died_at=now - age)
    tasks = dict(DeadJob.objects.values_list("pk", "task"))
    assert [tasks[job_id] for job_id in listed(staff, died=died)] == expected


def test_search_finds_an_exact_id_in_any_of_its_forms(staff: Client) -> None:
    wanted, *_ = many_dead(3)
    for form in (str(wanted), wanted.hex, f" {str(wanted).upper()} ", f"urn:uuid:{wanted}"):
        assert listed(staff, q=form) == [wanted]
    assert listed(staff, q=str(uuid.uuid4())) == []


def test_search_finds_part_of_a_task_without_looking_through_the_rows(staff: Client) -> None:
    wanted = many_dead(2, task="shop.tasks.Send_Receipt")
    many_dead(2, task="shop.tasks.other")
    with CaptureQueriesContext(connection) as captured:
        assert listed(staff, q="send_rec") == wanted
    assert not any("LIKE" in each["sql"] for each in captured.captured_queries)
    assert listed(staff, q="%") == []


def test_search_of_live_jobs_looks_at_the_newest(
    staff: Client, store: BaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [factories.insert(store, task=f"shop.tasks.t{n}") for n in range(4)]
    assert listed(staff, "livejob", q="TASKS.t") == ids[::-1]
    monkeypatch.setattr(base, "SEARCHED_ROWS", 2)
    assert listed(staff, "livejob", q="tasks.t") == ids[:1:-1]
    assert listed(staff, "livejob", q=ids[0]) == [ids[0]]
    assert listed(staff, "livejob", q="default") == ids[:1:-1]


def test_live_jobs_of_a_state_stand_in_the_order_of_its_index(
    staff: Client, store: BaseStore
) -> None:
    later = factories.insert(store, delay_seconds=60)
    sooner = factories.insert(store, delay_seconds=30)
    running = factories.running(store, now=store.now(), queue_name="r").id
    lapsed = factories.running(
        store, now=store.now() - timedelta(hours=1), queue_name="l", lease_seconds=1
    ).id
    low = factories.insert(store, queue_name="q", priority=-5)
    high = factories.insert(store, queue_name="q", priority=5)
    held = factories.held(store, queue_name="h").id
    assert listed(staff, "livejob", state="scheduled") == [sooner, later]
    assert listed(staff, "livejob", state="running") == [lapsed, running]
    assert listed(staff, "livejob", state="lapsed") == [lapsed]
    assert listed(staff, "livejob", state="ready") == [high, low]
    assert listed(staff, "livejob", state="held") == [held]
    assert listed(staff, "livejob", state="nonsense") == []
    assert len(listed(staff, "livejob")) == 7


def test_every_state_filter_has_its_order() -> None:
    assert livejobs.ORDERINGS.keys() == {*State, filters.StateFilter.lapsed}


@pytest.mark.vendor("postgresql", "sqlite")
def test_first_page_of_dead_jobs_walks_an_index(store: BaseStore, staff: Client) -> None:
    many_dead(2_000)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    with CaptureQueriesContext(connection) as captured:
        staff.get(address("deadjob"))
    table = DeadJob._meta.db_table
    pages = [q["sql"] for q in captured.captured_queries if f'FROM "{table}"' in q["sql"]]
    (page,) = [sql for sql in pages if "ORDER BY" in sql]
    assert "workqueue_dead_died" in explain(page)


def explain(sql: str) -> str:
    prefix = "EXPLAIN QUERY PLAN " if connection.vendor == "sqlite" else "EXPLAIN "
    with connection.cursor() as cursor:
        cursor.execute(prefix + sql.replace("%", "%%"))
        return "\n".join(str(row[-1]) for row in cursor.fetchall())


# What is shown


def test_last_error_is_its_class_and_first_line(staff: Client, store: BaseStore) -> None:
    job_id = factories.dead(store).id
    record = {**error_record("shop.errors.Bounced", "no such box\nsecond line"), "attempt": 2}
    first = error_record("builtins.KeyError", "'first'")
    DeadJob.objects.filter(pk=job_id).update(errors=[first, record])
    page = staff.get(address("deadjob")).content.decode()
    assert "Bounced: no such box<" in page
    assert "KeyError" not in page
    assert "second line" not in page


def error_record(name: str, message: str, traceback: str = "") -> dict[str, Any]:
    return {
        "attempt": 1,
        "worker": "w1",
        "started": "2030-01-01T12:00:00+00:00",
        "ended": "2030-01-01T12:00:01.5+00:00",
        "outcome": "failed",
        "exception_class": name,
        "message": message,
        "traceback": traceback or f"Traceback ...\n{name}: {message}\n",
        "cut": False,
    }


def stored(records: list[dict[str, Any]]) -> str:
    return json.dumps(records, separators=(",", ":"))


@pytest.mark.parametrize(
    ("records", "line"),
    [
        ([], ""),
        ([error_record("a.b.Boom", "x")], "Boom: x"),
        ([error_record("Boom", "")], "Boom"),
        ([error_record("", 'said {"attempt":1}]')], 'said {"attempt":1}]'),
        ([error_record("E", "old"), error_record("E", 'é\\"]')], 'E: é\\"]'),
        ([error_record("E", "\n\n  first\nsecond")], "E: first"),
    ],
)
def test_line_of_the_last_record_is_read_from_the_tail(
    records: list[dict[str, Any]], line: str
) -> None:
    assert attempts.line_from_tail(stored(records)[-attempts.TAIL_CHARS :]) == line


@pytest.mark.parametrize("message", ["boom", 'naïve \\ "quoted" 👾'])
def test_record_longer_than_the_tail_is_told_by_its_tracebacks_last_line(message: str) -> None:
    stack = "Traceback:\n" + '  File "x", line 1\n' * 9_000 + f"shop.Boom: {message}\n"
    text = stored([error_record("shop.Boom", message, stack)])
    assert attempts.line_from_tail(text[-attempts.TAIL_CHARS :]) == f"shop.Boom: {message}"


@pytest.mark.parametrize("tail", ["", "x", "[{", '{"attempt":', "\\n", '\\n","cut":', "null", "]"])
def test_tail_that_is_no_record_gives_no_line_and_no_error(tail: str) -> None:
    assert attempts.line_from_tail(tail) == ""


HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e\"'&{{ x }}{% y %}"


@pytest.mark.parametrize("model", ["deadjob", "livejob"])
def test_hostile_content_is_shown_escaped_and_visible(
    staff: Client, store: BaseStore, model: str
) -> None:
    facts: dict[str, Any] = {
        "task": HOSTILE,
        "queue_name": HOSTILE,
        "unique_key": HOSTILE,
        "payload": json.dumps({"args": [HOSTILE, "\x00"], "kwargs": {HOSTILE: HOSTILE}}),
        "headers": json.dumps({HOSTILE: HOSTILE}),
        "worker_id": HOSTILE,
    }
    make = factories.dead if model == "deadjob" else factories.running
    job_id = make(store, **facts).id
    table: Any = LISTS[model]
    errors = [{**error_record(HOSTILE, HOSTILE), "outcome": HOSTILE, "worker": HOSTILE}]
    table.objects.filter(pk=job_id).update(errors=errors)
    page_url = reverse(f"admin:workqueue_{model}_change", args=[job_id])
    pages = [staff.get(address(model)), staff.get(page_url)]
    name = {"deadjob": "requeue", "livejob": "cancel"}[model]
    pages.append(staff.post(reverse(f"admin:workqueue_{model}_{name}"), {"ids": str(job_id)}))
    if model == "deadjob":
        pages.append(staff.get(reverse("admin:workqueue_deadjob_correct", args=[job_id])))
    for response in pages:
        assert response.status_code == 200
        assert "<script>alert" not in response.content.decode()
        # Labels of Django's own checkboxes are heard, not seen, and are plain text in any case.
        text = re.sub(r'aria-label="[^"]*"', "", response.content.decode())
        assert "&lt;script&gt;" in text
        for hidden in "\x00\x1b":
            assert hidden not in text
    assert "\\u202e" in pages[1].content.decode()


def test_error_as_large_as_a_row_takes_is_listed_and_opened(
    staff: Client, store: BaseStore
) -> None:
    job_id = factories.dead(store).id
    # 40 MB as it is stored; MariaDB takes statements of at most 16 MB where nobody says otherwise.
    lines = 1_000_000 if connection.vendor == "mysql" else 4_000_000
    stack = "Traceback:\n" + "  é\n" * lines + "shop.Boom: at last\n"
    DeadJob.objects.filter(pk=job_id).update(errors=[error_record("shop.Boom", "at last", stack)])
    assert "shop.Boom: at last" in staff.get(address("deadjob")).content.decode()
    response = staff.get(reverse("admin:workqueue_deadjob_change", args=[job_id]))
    assert len(response.content) < 1_000_000
    assert "characters are not shown" in response.content.decode()


def test_long_arguments_are_shown_in_part(staff: Client, store: BaseStore) -> None:
    payload = json.dumps({"args": ["x" * 900_000], "kwargs": {}})
    job_id = factories.dead(store, payload=payload).id
    response = staff.get(reverse("admin:workqueue_deadjob_change", args=[job_id]))
    assert len(response.content) < 300_000


def test_page_of_a_job_that_is_gone_leads_to_the_list(staff: Client) -> None:
    for text in (str(uuid.uuid4()), "x", "'"):
        response = staff.get(reverse("admin:workqueue_deadjob_change", args=[text]), follow=True)
        assert response.redirect_chain == [(reverse("admin:workqueue_deadjob_changelist"), 302)]
        assert "There is no dead job" in response.content.decode()


def test_moments_are_shown_in_the_current_time_zone(staff: Client, store: BaseStore) -> None:
    job_id = factories.dead(store).id
    page = staff.get(reverse("admin:workqueue_deadjob_change", args=[job_id])).content.decode()
    assert "2030-01-01 07:00:00 EST" in page
    assert 'title="2030-01-01 12:00:00.000000 UTC"' in page


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 seconds ago"), (1, "1 second ago"), (59, "59 seconds ago"), (60, "1\xa0minute ago")],
)
def test_age_of_less_than_a_minute_is_in_seconds(seconds: int, text: str) -> None:
    assert text in showing.age(factories.T0, factories.at(seconds))
    if seconds:
        assert f"in {text[:-4]}" in showing.age(factories.at(seconds), factories.T0)
