"""Dotted path to task. Only what is registered here is ever called (G13).

Filled as tasks are declared: no row makes a module be imported.
"""

from __future__ import annotations

import threading
from collections.abc import Set as AbstractSet
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from django.utils.module_loading import autodiscover_modules

from . import conf

if TYPE_CHECKING:
    from .compat import Task

_tasks: dict[str, Any] = {}
_coroutines: set[str] = set()
# Of each queue, whether tasks declared for it are coroutines: False, True, or both.
_kinds: dict[str, set[bool]] = {}
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
        if iscoroutinefunction(task.func):
            _coroutines.add(task.module_path)
        else:
            _coroutines.discard(task.module_path)
        _kinds.setdefault(task.queue_name, set()).add(task.module_path in _coroutines)


def get(path: str) -> Any | None:
    """Return the task declared under *path*, or None."""
    return _tasks.get(path)


def is_async(path: str) -> bool:
    """Tell whether the task declared under *path* is a coroutine."""
    return path in _coroutines


def has_coroutines() -> bool:
    """Tell whether any declared task is a coroutine."""
    return bool(_coroutines)


def kinds(queue_name: str) -> AbstractSet[bool]:
    """Tell of the tasks declared for a queue whether they are coroutines: True, False, or both."""
    return _kinds.get(queue_name, frozenset())


def paths_of(*, is_async: bool) -> list[str]:
    """Return the dotted paths of all coroutines, or of all other tasks."""
    return [path for path in paths() if (path in _coroutines) is is_async]


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
