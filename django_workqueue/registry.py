"""Dotted path to task. Only what is registered here is ever called (G13).

Filled as tasks are declared: no row makes a module be imported.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from django.utils.module_loading import autodiscover_modules

from . import conf

if TYPE_CHECKING:
    from .compat import Task

_tasks: dict[str, Any] = {}
_discovery = threading.Lock()
_discovered: set[tuple[str, ...]] = set()


def add(task: Task[..., Any]) -> None:
    """Register *task* under its dotted path.

    A copy with other options (``using``) does not take the declared task's place; a function
    declared again under the same path does.
    """
    known = _tasks.get(task.module_path)
    if known is None or known.func is not task.func:
        _tasks[task.module_path] = task


def get(path: str) -> Any | None:
    """Return the task declared under *path*, or None."""
    return _tasks.get(path)


def paths() -> list[str]:
    """Return the dotted paths of all declared tasks."""
    return sorted(_tasks)


def discover() -> None:
    """Import the task modules of every installed app, once for each value of TASK_MODULES."""
    names = tuple(conf.current().task_modules)
    with _discovery:
        if names not in _discovered:
            autodiscover_modules(*names)
            _discovered.add(names)


def find(path: str) -> Any | None:
    """Return the task declared under *path*, looking in the apps' task modules; or None."""
    if path not in _tasks:
        discover()
    return _tasks.get(path)
