"""The layers: a module imports only from modules to its left, and every module has its place.

Read from the source, so that an import inside a function counts as well: it can close a circle just
as one at the top can. What only a type checker imports (`if TYPE_CHECKING:`) does not count.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = "django_workqueue"
ROOT = Path(__file__).parent.parent / PACKAGE

ORDER = """
    __init__ compat ids exceptions clock states backoff cron payload arguments transactions binding
    conf registry
    models
    store
    faults watching wakeup notifying locks limits results
    enqueueing moving tasks calls backend queues schedules outbox
    board job outcomes announcing connecting blocking executor starting demand loop extender kinds
    settler claimer deadlines suspects ending memory
    atomically coroutines threads flight intake sweeper delivery relay_thread relay parent worker
    scheduler presence child supervisor doctor logs tuning vanishing
    checks admin apps commands
    contrib testing pytest_plugin
""".split()  # noqa: SIM905 - a line a group, as the design draws them

NEEDS_APPS = {"models", "store"}
"""Layers that cannot be imported before Django's apps are ready."""

EARLY = ["tasks", "backend", "queues", "schedules", "outbox", "locks"]
"""Layers that a project's own models.py may import, and that therefore need no apps at the top."""


class Import(NamedTuple):
    layer: str
    line: int
    at_top: bool


def layer_of(module: str) -> str:
    """Return the layer of a dotted *module* of the package, the name ORDER knows it by."""
    match module.split(".")[1:]:
        case []:
            return "__init__"
        case ["management", *_]:
            return "commands"
        case ["migrations", *_]:
            return "models"
        case [layer, *_]:
            return layer
    raise AssertionError(module)


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(source: str, *, package: str, known: set[str]) -> Iterator[Import]:
    """Yield what *source*, a module in *package*, imports from ours; *known* are our modules."""
    pending: list[tuple[ast.AST, bool]] = [(ast.parse(source), True)]
    while pending:
        node, at_top = pending.pop()
        for module in _modules_named(node, package, known):
            if module == PACKAGE or module.startswith(f"{PACKAGE}."):
                yield Import(layer_of(module), getattr(node, "lineno", 0), at_top)
        at_top = at_top and not isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
        )
        children: list[ast.AST] = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            children = list(node.orelse)
        pending += [(child, at_top) for child in children]


def _modules_named(node: ast.AST, package: str, known: set[str]) -> list[str]:
    """Return the full names of the modules that one import statement *node* loads."""
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=module, names=names, level=level):
            parents = package.split(".")
            base = ".".join(parents[: len(parents) - level + 1] if level else [])
            base = ".".join(filter(None, [base, module or ""]))
            submodules = [f"{base}.{alias.name}" for alias in names]
            # `from package import name` loads a module where there is one of that name.
            return [name if name in known else base for name in submodules]
    return []


def modules() -> dict[str, Path]:
    return {module_of(path): path for path in sorted(ROOT.rglob("*.py"))}


MODULES = modules()


def imports_of_module(module: str) -> list[Import]:
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return list(imports_of(path.read_text(), package=package, known=set(MODULES)))


def test_package_is_found() -> None:
    assert PACKAGE in MODULES


def test_no_layer_is_listed_twice() -> None:
    assert len(ORDER) == len(set(ORDER))


@pytest.mark.parametrize("module", MODULES)
def test_module_has_its_place(module: str) -> None:
    layer = layer_of(module)
    assert layer in ORDER, (
        f"every module must have a layer, {module} has none. Add {layer!r} to ORDER "
        "in tests/test_layers.py, right of all it imports and left of all that import it."
    )


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_only_from_its_left(module: str) -> None:
    layer = layer_of(module)
    allowed = set(ORDER[: ORDER.index(layer) + 1]) if layer in ORDER else set(ORDER)
    wrong = [
        f"{MODULES[module].relative_to(ROOT.parent)}:{line} imports {imported}"
        for imported, line, _ in imports_of_module(module)
        if imported not in allowed
    ]
    assert not wrong, (
        f"{layer!r} may import only what stands to its left in ORDER of tests/test_layers.py:\n"
        + "\n".join(wrong)
    )


@pytest.mark.parametrize("layer", EARLY)
def test_module_for_early_import_needs_no_apps(layer: str) -> None:
    reached: dict[str, str] = {layer: layer}
    pending = [layer]
    while pending:
        current = pending.pop()
        for module in MODULES:
            if layer_of(module) != current:
                continue
            for imported, line, at_top in imports_of_module(module):
                if at_top and imported not in reached:
                    reached[imported] = f"{reached[current]} > {imported} ({module}:{line})"
                    pending.append(imported)
    wrong = [reached[needing] for needing in NEEDS_APPS & reached.keys()]
    assert not wrong, (
        f"{layer!r} must be importable before Django's apps are ready, it loads at the top:\n"
        + "\n".join(wrong)
        + "\nImport inside the function that needs it."
    )


KNOWN = {PACKAGE, f"{PACKAGE}.store", f"{PACKAGE}.store.base", f"{PACKAGE}.tasks"}


@pytest.mark.parametrize(
    ("source", "layers"),
    [
        ("import django_workqueue.store.base as x", ["store"]),
        ("from django_workqueue.store import base", ["store"]),
        ("from django_workqueue import store, __version__", ["store", "__init__"]),
        ("from . import base", ["store"]),
        ("from .. import tasks", ["tasks"]),
        ("from ..tasks import task", ["tasks"]),
        ("import os, django.tasks\nfrom django_workqueues import x", []),
        ("def f():\n    from django_workqueue import tasks", ["tasks"]),
        ("try:\n    from django_workqueue import tasks\nexcept ImportError: pass", ["tasks"]),
        ("if TYPE_CHECKING:\n    from django_workqueue import tasks", []),
        ("if typing.TYPE_CHECKING:\n    from django_workqueue import tasks", []),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    from django_workqueue import tasks", ["tasks"]),
    ],
)
def test_imports_are_read_in_every_form(source: str, layers: list[str]) -> None:
    found = imports_of(source, package=f"{PACKAGE}.store", known=KNOWN)
    assert [layer for layer, _, _ in found] == layers


def test_only_an_import_outside_of_functions_runs_at_import() -> None:
    source = """
import django_workqueue
class A:
    import django_workqueue.tasks
    def f(self):
        import django_workqueue.store
"""
    found = imports_of(source, package=PACKAGE, known=KNOWN)
    assert {layer: at_top for layer, _, at_top in found} == {
        "__init__": True,
        "tasks": True,
        "store": False,
    }
