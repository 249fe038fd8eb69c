"""A look for due schedules costs by what is due, and not by how many there are (G14)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_workqueue import conf, scheduler
from django_workqueue.models import Schedule
from django_workqueue.store import BaseStore, get_store
from tests.contract.test_plans import EXPLAIN, SORTS
from tests.factories import TASK, at

TABLE = Schedule._meta.db_table


@pytest.fixture
def plain(transactional_db: None) -> BaseStore:
    """In autocommit, since ANALYZE TABLE commits on MariaDB."""
    return get_store()


def fill(store: BaseStore, count: int, due: int = 10) -> None:
    """Write *count* schedules: *due* of them due, others in the future, overdue and paused, off."""
    columns: list[dict[str, Any]] = [
        {"next_fire_at": at(3600)},
        {"next_fire_at": at(-3600), "paused": True},
        {"next_fire_at": None, "enabled": False},
        {"next_fire_at": at(7200)},
    ]
    rows = [
        Schedule(
            name=f"s{number}",
            task=TASK,
            expression="@every 1h",
            **({"next_fire_at": at(0)} if number < due else columns[number % 4]),
        )
        for number in range(count)
    ]
    store.schedules().bulk_create(rows, batch_size=500)
    with connection.cursor() as cursor:
        cursor.execute(f"ANALYZE TABLE {TABLE}" if connection.vendor == "mysql" else "ANALYZE")
        if connection.vendor == "mysql":
            cursor.fetchall()


def plan_of(call: Callable[[], Any]) -> str:
    found: list[str] = []

    def explain(execute: Callable[..., Any], sql: str, params: Any, many: Any, context: Any) -> Any:
        execute(EXPLAIN[connection.vendor] + sql, params, many, context)
        found.append("\n".join(str(line) for line in context["cursor"].fetchall()))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(explain):
        call()
    return found[0]


def test_looks_walk_the_index_of_what_may_fire(plain: BaseStore) -> None:
    fill(plain, 2000)
    due = plan_of(lambda: plain.due_names(limit=100, now=at(1)))
    assert "workqueue_schedule_due" in due
    following = plan_of(lambda: plain.seconds_to_tick(now=at(1)))
    assert "workqueue_schedule_due" in following
    # What is due may be sorted, what is not is not even read.
    assert SORTS[connection.vendor] not in following


def test_a_tick_takes_the_same_statements_however_many_schedules_there_are(
    plain: BaseStore,
) -> None:
    counts = {}
    for count in (100, 2000):
        plain.schedules().all().delete()
        fill(plain, count)
        with CaptureQueriesContext(
            connection,
        ) as captured:
            assert scheduler.tick(plain, conf.current(), now=at(1)).job_count == 10
        counts[count] = len(captured)
    assert counts[100] == counts[2000] > 0
