"""The documentation's samples compile or run, and its links lead somewhere."""

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from django_workqueue.tasks import task
from tests.docpages import ROOT, Code, Page, page, pages
from tests.schedule_rows import no_declarations

PAGES = pages()
README = Page(ROOT / "README.md")


def python_samples() -> list[Any]:
    return [
        pytest.param(each, code, id=f"{each}:{code.line}")
        for each in PAGES
        for code in each.code("python")
    ]


@pytest.mark.parametrize(("where", "code"), python_samples())
def test_python_sample_compiles(where: Page, code: Code) -> None:
    compile(code.text, f"{where}:{code.line}", "exec", dont_inherit=True)


@pytest.mark.parametrize("where", [*PAGES, README], ids=lambda each: each.path.name)
def test_every_install_command_works_before_the_first_release(where: Page) -> None:
    commands = [
        line
        for code in where.code("console")
        for line in code.text.splitlines()
        if "pip install" in line and "django-workqueue" in line
    ]
    for command in commands:
        assert "/django-workqueue" in command, "no index has it yet: it is installed from a clone"
    assert not commands or "not on PyPI yet" in where.text


def run_sample(path: str, index: int = 0, into: ModuleType | None = None) -> dict[str, Any]:
    """Execute a page's Python sample, in a module where one is given; return its names."""
    namespace: dict[str, Any] = {} if into is None else into.__dict__
    code = list(page(path).code("python"))[index]
    exec(compile(code.text, path, "exec", dont_inherit=True), namespace)
    return namespace


def index_of(path: str, name: str) -> int:
    """Return which of a page's Python samples defines *name*."""
    samples = [code.text for code in page(path).code("python")]
    (found,) = (n for n, text in enumerate(samples) if f"class {name}(" in text)
    return found


@task
def nightly_report() -> None:
    """Stands for the task that the page about schedules declares a schedule of."""


class Order:
    """Stands for a saved order of the shop."""

    pk, customer_id = 17, 4
    objects = SimpleNamespace(create=lambda **fields: Order())

    def save(self) -> None:
        """There is nothing to write."""


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The modules of the shop that the samples speak of, to be filled from other pages."""
    names = ("shop", "shop.models", "shop.schedules", "shop.tasks", "shop.views", "requests")
    made = {name: ModuleType(name) for name in names}
    for name, module in made.items():
        parent, _, last = name.rpartition(".")
        module.__package__ = parent or name
        monkeypatch.setitem(sys.modules, name, module)
        if parent:
            setattr(made[parent], last, module)
    made["shop"].__path__ = []
    vars(made["shop.models"])["Order"] = Order
    return made


@pytest.mark.django_db
def test_monitoring_sample_counts_what_is_there() -> None:
    found = run_sample("howto/monitoring.md")
    assert found["waiting"] == []
    assert (found["overdue"], found["lapsed"]) == (0, 0)
    assert (found["unknown"], found["died"]) == ([], {})


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("path", "index", "call"),
    [
        ("howto/dead-jobs.md", 0, lambda found: found["requeue_after_outage"]() == 0),
        ("howto/deploys.md", 2, lambda found: found["is_used"]("shop.tasks.gone") is False),
        ("howto/priorities.md", 1, lambda found: found["pause_mail"]() is None),
        ("howto/priorities.md", 1, lambda found: found["resume_mail"]() is None),
    ],
)
def test_operating_sample_runs(
    path: str, index: int, call: Callable[[dict[str, Any]], bool]
) -> None:
    assert call(run_sample(path, index))


@pytest.mark.django_db
def test_sample_test_of_a_schedule_fits_the_schedule_of_its_page(
    shop: dict[str, ModuleType],
) -> None:
    tasks = {"nightly_report": nightly_report, "refresh_rates": nightly_report}
    vars(shop["shop.tasks"]).update(tasks)
    with no_declarations():
        run_sample("howto/schedules.md", into=shop["shop.schedules"])
        index = index_of("howto/testing.md", "NightlyReportTests")
        run_sample("howto/testing.md", index)["NightlyReportTests"]().test_report_is_made_at_three()


@pytest.mark.django_db
@pytest.mark.usefixtures("own_destinations")
def test_sample_test_of_the_outbox_fits_the_destination_of_its_page(
    shop: dict[str, ModuleType],
) -> None:
    vars(shop["requests"])["post"] = mock.Mock(side_effect=AssertionError("nothing is sent"))
    run_sample("howto/outbox.md", 0, into=shop["shop.tasks"])
    run_sample("howto/outbox.md", 1, into=shop["shop.views"])
    index = index_of("howto/testing.md", "OrderEventsTests")
    run_sample("howto/testing.md", index)["OrderEventsTests"]().test_order_is_told()


@pytest.mark.parametrize("where", PAGES, ids=str)
def test_links_lead_somewhere(where: Page) -> None:
    for target in where.links:
        path, _, anchor = target.partition("#")
        there = Page((where.path.parent / path).resolve()) if path else where
        assert there.path.exists(), target
        assert not anchor or anchor in there.anchors, target


@pytest.mark.parametrize("where", PAGES, ids=str)
def test_references_lead_somewhere(where: Page) -> None:
    known = set().union(*(each.labels for each in PAGES))
    assert set(where.references) <= known


def test_every_page_is_reached() -> None:
    """A page in no table of contents is found by nobody."""
    for where in PAGES:
        if where.path.stem == "index":
            continue
        index = Page(where.path.parent / "index.md")
        listed = "\n".join(code.text for code in index.code("{toctree}")).split()
        assert where.path.stem in listed or "*" in listed, f"{where} is not in {index}"
