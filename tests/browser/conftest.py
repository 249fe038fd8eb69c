"""A real browser: Debian's chromium, driven by playwright, which downloads none of its own.

WORKQUEUE_TEST_CHROMIUM names another binary.
WORKQUEUE_TEST_SCREENSHOTS names a folder that gets a picture of each page the tests look at.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import services

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Route

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

PATIENCE_MILLISECONDS = 15_000


@pytest.fixture(scope="module")
def _async_is_allowed() -> Iterator[None]:
    # Playwright's synchronous calls keep an event loop running in this thread, and Django refuses
    # its database where one runs.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        yield


@pytest.fixture(scope="module")
def browser(_async_is_allowed: None) -> Iterator[Browser]:
    """Start chromium; skip what needs it, by name, where there is none.

    Once a module, not once a run: the event loop would be in the way of all other tests.
    """
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        services.skip_or_fail(
            services.ServiceMissing("The browser tests need the package playwright.")
        )
    binary = os.environ.get("WORKQUEUE_TEST_CHROMIUM") or shutil.which("chromium")
    if binary is None:
        services.skip_or_fail(
            services.ServiceMissing(
                "The browser tests need chromium on PATH (Debian: apt-get install chromium), "
                "or its binary named in WORKQUEUE_TEST_CHROMIUM."
            )
        )
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=binary, headless=True, args=ARGUMENTS)
        yield started
        started.close()


STRICT_POLICY = "default-src 'self'; img-src 'self' data:"


def _answer_under_policy(route: Route) -> None:
    """Let the server answer, and add the policy of a project that allows nothing inline."""
    if route.request.resource_type != "document":
        route.continue_()
        return
    answer = route.fetch(max_redirects=0)
    headers = {**answer.headers, "content-security-policy": STRICT_POLICY}
    route.fulfill(response=answer, headers=headers)


def _problem(said: ConsoleMessage) -> list[str]:
    """Return what the console *said* if it is a problem of ours: the site has no icon."""
    is_ours = said.type == "error" and not said.location["url"].endswith("favicon.ico")
    return [said.text] if is_ours else []


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Open a page; the test fails on an error of a script, or where the policy is broken."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, locale="en-GB")
    context.set_default_timeout(PATIENCE_MILLISECONDS)
    opened = context.new_page()
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda said: problems.extend(_problem(said)))
    context.route("**/admin/**", _answer_under_policy)
    yield opened
    # An answer on its way would otherwise find its page gone.
    context.unroute_all(behavior="wait")
    context.close()
    assert problems == []


@pytest.fixture
def look(page: Page) -> Callable[[str], Any]:
    """Return a function that keeps a picture of the page, where a folder for them is named."""
    folder = os.environ.get("WORKQUEUE_TEST_SCREENSHOTS")

    def keep(name: str) -> None:
        if folder:
            page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)

    return keep
