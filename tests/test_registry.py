"""`registry`: only what is declared is ever called (G13)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings

from django_workqueue import registry
from django_workqueue.tasks import task
from tests.jobs import workqueue


def one() -> int:
    return 1


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_tasks", {})
    monkeypatch.setattr(registry, "_discovered", set())


def test_a_task_is_found_under_its_dotted_path() -> None:
    made = task(one)

    assert registry.get("tests.test_registry.one") is made
    assert registry.paths() == ["tests.test_registry.one"]


def test_a_function_declared_again_under_its_path_takes_its_place() -> None:
    task(one)

    def again() -> int:
        return 2

    again.__module__, again.__qualname__, again.__name__ = __name__, "one", "one"
    newer = task(again)

    assert registry.get("tests.test_registry.one") is newer


def test_what_is_not_declared_is_not_found_whatever_could_be_imported() -> None:
    assert registry.find("os.system") is None
    assert registry.find("tests.test_registry.one") is None


def test_no_path_makes_a_module_be_imported() -> None:
    registry.find("antigravity.fly")
    registry.get("antigravity.fly")

    assert "antigravity" not in sys.modules


def test_the_task_modules_of_installed_apps_are_discovered_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    errands = "from django_workqueue.tasks import task\n@task\ndef errand(): ...\n"
    package = tmp_path / "errand_app"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "errands.py").write_text(errands)
    monkeypatch.syspath_prepend(tmp_path)
    with override_settings(INSTALLED_APPS=["errand_app"]), workqueue(TASK_MODULES=("errands",)):
        found: Any = registry.find("errand_app.errands.errand")

    assert found is not None
    assert found.module_path == "errand_app.errands.errand"
