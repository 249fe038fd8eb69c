"""The way of an operator through the admin, in a browser: what a test client cannot see."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth import get_user_model

from django_workqueue.models import DeadJob, LiveJob
from django_workqueue.states import DeathReason, Lane, State
from django_workqueue.store import get_store
from django_workqueue.tasks import task
from tests import factories, sound

if TYPE_CHECKING:
    from playwright.sync_api import Page, expect
else:
    try:
        from playwright.sync_api import expect
    except ImportError:
        expect = None  # The fixture "browser" skips these tests, or fails them, by name.

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "other"]),
    # What a browser shows does not depend on the database; the pages' own tests run on each.
    pytest.mark.vendor("sqlite"),
]

ADDRESS = "nobody@@example..org"


@task
def send_receipt(order_id: int, to: str, locale: str = "en") -> None:
    """Stands for a task of the project."""


@pytest.fixture
def dead_ids() -> list[uuid.UUID]:
    """Three dead jobs: one with three attempts and bad arguments, and two of other reasons."""
    store = get_store()
    payload = json.dumps({"args": [1017], "kwargs": {"to": ADDRESS, "locale": "fr"}})
    options = {"task": send_receipt.module_path, "payload": payload, "queue_name": "mail"}
    taken = factories.running(store, now=None, **options)
    while store.retry(taken, 0, smtp_error(taken)) != "dead":
        store.promote()
        (taken,) = factories.claim(store, now=None, queue_name="mail")
    lost = factories.dead(store, now=None, reason=DeathReason.LOST, queue_name="reports")
    expired = factories.dead(store, now=None, reason=DeathReason.EXPIRED, task="shop.tasks.gone")
    return [taken.id, lost.id, expired.id]


def smtp_error(taken: Any) -> Any:
    record = factories.error(taken, message=f"bad recipient {ADDRESS}\nsecond <b>line</b>")
    frames = "".join(
        f'  File "/srv/shop/mail.py", line {line}, in deliver\n    smtp.send(message)\n'
        for line in range(10, 34)
    )
    stack = f"Traceback (most recent call last):\n{frames}ValueError: {record.message}\n"
    return type(record)(**{**record_values(record), "traceback": stack})


def record_values(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in type(record).__dataclass_fields__}


@pytest.fixture
def signed_in(page: Page, live_server: Any) -> Page:
    get_user_model().objects.create_superuser("ada", "ada@example.org", "lovelace")
    page.goto(f"{live_server.url}/admin/")
    page.get_by_label("Username").fill("ada")
    page.get_by_label("Password").fill("lovelace")
    page.get_by_role("button", name="Log in").click()
    return page


def open_receipt(page: Page) -> None:
    """Open the page of the dead job with bad arguments, from the list."""
    open_list(page, "Dead jobs")
    row = page.get_by_role("row").filter(has_text=send_receipt.module_path)
    row.get_by_role("link").first.click()


def open_list(page: Page, name: str) -> None:
    page.get_by_role("link", name=name, exact=True).first.click()


def test_dead_job_is_found_read_and_requeued(
    signed_in: Page, dead_ids: list[uuid.UUID], look: Callable[[str], None]
) -> None:
    page = signed_in
    look("01-index")
    open_list(page, "Dead jobs")
    look("02-dead-list")
    row = page.get_by_role("row").filter(has_text=send_receipt.module_path)
    expect(row).to_contain_text("ValueError: bad recipient")
    row.get_by_role("link").first.click()
    expect(page.get_by_role("heading", name=re.compile("Dead: attempts exhausted"))).to_be_visible()
    expect(page.get_by_text("What to do next:")).to_be_visible()
    expect(page.get_by_text("second <b>line</b>").first).to_be_visible()
    look("03-dead-job")
    page.get_by_role("button", name="Requeue …").click()
    expect(page.get_by_role("heading", name="Requeue 1 dead job?")).to_be_visible()
    assert DeadJob.objects.count() == 3
    look("04-confirm-requeue")
    page.get_by_role("button", name="Requeue 1 job").click()
    expect(page.get_by_text("1 job was requeued.")).to_be_visible()
    look("05-requeued")
    assert LiveJob.objects.get(pk=dead_ids[0]).state == State.READY
    sound.assert_sound(dead_ids[0])


def test_arguments_are_corrected_and_requeued(
    signed_in: Page, dead_ids: list[uuid.UUID], look: Callable[[str], None]
) -> None:
    page = signed_in
    open_receipt(page)
    page.get_by_role("link", name="Correct and requeue …").click()
    box = page.get_by_label("Arguments")
    right = box.input_value().replace(ADDRESS, "ada@example.org")
    box.fill(right.replace('"to"', '"too"'))
    page.get_by_role("button", name="Correct and requeue").click()
    expect(page.get_by_text("Nothing was changed.")).to_be_visible()
    look("06-correct-error")
    page.get_by_label("Arguments").fill(right)
    page.get_by_role("button", name="Correct and requeue").click()
    expect(page.get_by_text("1 job was requeued.")).to_be_visible()
    payload: Any = LiveJob.objects.get(pk=dead_ids[0]).payload
    assert payload == {"args": [1017], "kwargs": {"to": "ada@example.org", "locale": "fr"}}


def test_several_are_discarded_from_the_list(
    signed_in: Page, dead_ids: list[uuid.UUID], look: Callable[[str], None]
) -> None:
    page = signed_in
    open_list(page, "Dead jobs")
    page.get_by_label(re.compile("Select all")).first.check()
    page.get_by_label("Action:").select_option("discard")
    page.get_by_role("button", name=re.compile("^(Go|Run)$")).click()
    expect(page.get_by_role("heading", name="Discard 3 dead jobs?")).to_be_visible()
    look("07-confirm-discard")
    page.get_by_role("button", name="Discard 3 jobs").click()
    expect(page.get_by_text("3 jobs were discarded.")).to_be_visible()
    assert DeadJob.objects.count() == 0


def test_live_jobs_are_looked_at_in_the_dark(
    signed_in: Page, dead_ids: list[uuid.UUID], look: Callable[[str], None]
) -> None:
    store = get_store()
    factories.running(store, now=None, queue_name="mail", worker_id="web-1:4242:0:6f1d")
    factories.insert(store, now=None, queue_name="mail", delay_seconds=3600)
    factories.insert(store, now=None, lane=Lane.PAYLOAD, kind="review", task="")
    page = signed_in
    page.emulate_media(color_scheme="dark")
    open_list(page, "Live jobs")
    look("08-live-list-dark")
    page.get_by_role("row").filter(has_text="running").get_by_role("link").first.click()
    expect(page.get_by_role("heading", name="Live: running")).to_be_visible()
    look("09-live-job-dark")
    open_receipt(page)
    look("10-dead-job-dark")


def test_narrow_screen_shows_all_of_a_dead_job(
    signed_in: Page, dead_ids: list[uuid.UUID], look: Callable[[str], None]
) -> None:
    page = signed_in
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto(page.url + f"workqueue/deadjob/{dead_ids[0]}/change/")
    look("11-dead-job-narrow")
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 400
