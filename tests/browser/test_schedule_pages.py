"""The way of an operator through the schedules, in a browser."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from django_workqueue.models import LiveJob, Schedule
from django_workqueue.store import get_store
from tests import factories
from tests.browser.test_admin_pages import open_list, signed_in

if TYPE_CHECKING:
    from playwright.sync_api import Page, expect
else:
    try:
        from playwright.sync_api import expect
    except ImportError:
        expect = None  # The fixture "browser" skips these tests, or fails them, by name.

__all__ = ["signed_in"]

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "other"]),
    # What a browser shows does not depend on the database; the pages' own tests run on each.
    pytest.mark.vendor("sqlite"),
]

TASK = "tests.app.tasks.add"


@pytest.fixture
def rows() -> None:
    """Schedules of code and of a person: on, paused, disabled and wrong."""
    store = get_store()
    soon = store.now() + timedelta(hours=5)
    code: dict[str, Any] = {"module": "shop.schedules", "task": TASK, "next_fire_at": soon}
    factories.schedule(
        store, "nightly-report", expression="0 3 * * *", timezone="Europe/Paris", args=[1], **code
    )
    factories.schedule(store, "heartbeat", expression="@every 90s", **code)
    factories.schedule(store, "invoices", expression="0 9 * * 1-5", paused=True, **code)
    wrong = "CronError: A time zone must be a name of the IANA database, got 'Mars/Base'."
    factories.schedule(store, "digest", timezone="Mars/Base", error=wrong, **code)
    gone = {**code, "next_fire_at": None}
    factories.schedule(store, "old-export", enabled=False, **gone)
    given: dict[str, Any] = {"schedule": "nightly-report", "task": TASK}
    for day in range(3, 0, -1):
        tick = store.now().replace(hour=2, minute=0, second=0, microsecond=0) - timedelta(days=day)
        make = factories.dead if day == 2 else factories.finished
        make(store, now=None, scheduled_for=tick, **given)


def test_schedules_are_looked_at_paused_and_run(
    rows: None, signed_in: Page, look: Callable[[str], None]
) -> None:
    page = signed_in
    open_list(page, "Schedules")
    look("20-schedules")
    page.get_by_role("link", name="nightly-report").click()
    expect(page.get_by_role("heading", name="at 03:00")).to_be_visible()
    expect(page.get_by_text("dead: terminal")).to_be_visible()
    look("21-schedule")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("Paused: its ticks make no jobs")).to_be_visible()
    look("22-paused")
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("button", name="Run now").click()
    expect(page.get_by_text("was made; the ticks stay as they are.")).to_be_visible()
    assert LiveJob.objects.filter(schedule="nightly-report").count() == 1


def test_schedule_is_added_tried_and_deleted(
    rows: None, signed_in: Page, look: Callable[[str], None]
) -> None:
    page = signed_in
    open_list(page, "Schedules")
    page.get_by_role("link", name="Add schedule").click()
    look("23-empty-form")
    page.get_by_label("Name:").fill("weekly-sums")
    page.get_by_label("Task:").select_option(TASK)
    page.get_by_label("Arguments:").fill('{"args": [1], "kwargs": {}}')
    page.get_by_label("When:").fill("*/45 2 * * 0")
    page.get_by_label("Time zone:").fill("Bogota")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Did you mean 'America/Bogota'")).to_be_visible()
    look("24-refused")
    page.get_by_label("Time zone:").fill("Europe/Berlin")
    page.get_by_role("button", name="Preview the next ticks").click()
    expect(page.get_by_text("Preview, not saved")).to_be_visible()
    expect(page.get_by_text("does not divide 60")).to_be_visible()
    assert not Schedule.objects.filter(pk="weekly-sums").exists()
    look("25-preview")
    page.get_by_label("When:").fill("0 2 * * 0")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("The schedule was saved.")).to_be_visible()
    look("26-saved")
    page.get_by_role("button", name="Delete").click()
    look("27-delete")
    page.get_by_role("button", name="Delete the schedule").click()
    expect(page.get_by_text("The schedule was deleted.")).to_be_visible()


def test_narrow_window_shows_a_schedule(
    rows: None, signed_in: Page, look: Callable[[str], None]
) -> None:
    page = signed_in
    page.set_viewport_size({"width": 390, "height": 800})
    open_list(page, "Schedules")
    page.get_by_role("link", name="digest").click()
    expect(page.get_by_text("It fires no more")).to_be_visible()
    look("28-narrow")
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 390
