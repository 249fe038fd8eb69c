"""The documentation's samples compile or run, and its links lead somewhere."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.docpages import ROOT, Code, Page, page, pages

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


def run_sample(path: str, index: int = 0) -> dict[str, Any]:
    """Execute a page's Python sample; return its names."""
    namespace: dict[str, Any] = {}
    code = list(page(path).code("python"))[index]
    exec(compile(code.text, path, "exec", dont_inherit=True), namespace)
    return namespace


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
