"""The schedules that code declares in this process, and where it was looked for."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from django.apps import apps
from django.utils.module_loading import autodiscover_modules

from ..exceptions import ScheduleError
from .definition import DEFAULT_MAX_CATCH_UP, Definition, define

MODULE: Final = "schedules"


@dataclass(frozen=True, slots=True)
class Declared:
    """A definition, and the module that said it."""

    definition: Definition
    module: str


_declared: dict[str, Declared] = {}
_discovery = threading.Lock()
_discovered = False


def schedule(
    name: str,
    task: Any,
    *,
    cron: str | None = None,
    every: timedelta | None = None,
    timezone: str | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    catch_up: str = "latest",
    max_catch_up: int = DEFAULT_MAX_CATCH_UP,
    deadline: float | None = None,
    overlap: str = "allow",
    expires: float | None = None,
    jitter: float = 0,
    enabled: bool = True,
) -> None:
    """Declare that *task* becomes a job at each tick of *cron*, or *every* so often.

    *timezone* None is the project's TIME_ZONE. Queue, priority, attempts and the other options of
    the jobs are the task's: ``schedule(name, task.using(priority=5), …)`` gives others.
    Refused here, with an error that names the schedule, is whatever `define` refuses.
    """
    definition = define(
        name,
        task,
        cron=cron,
        every=every,
        timezone=timezone,
        args=args,
        kwargs=kwargs,
        catch_up=catch_up,
        max_catch_up=max_catch_up,
        deadline=deadline,
        overlap=overlap,
        expires=expires,
        jitter=jitter,
        enabled=enabled,
    )
    module = sys._getframe(1).f_globals.get("__name__", "")  # noqa: SLF001  # who declares it
    known = _declared.setdefault(name, Declared(definition, module))
    if known.definition != definition:
        places = f"in {known.module} and, otherwise, in {module}"
        if known.module == module:
            places = f"twice in {module}, in two ways"
        raise ScheduleError(
            f"A schedule's name must be its own, and {name!r} is declared {places}. "
            "Rename one of them."
        )


def declared() -> dict[str, Declared]:
    """Return what code declared in this process, by name."""
    return dict(_declared)


def discover() -> None:
    """Import the ``schedules`` module of every installed app, once."""
    global _discovered
    with _discovery:
        if not _discovered:
            autodiscover_modules(MODULE)
            _discovered = True


def looked_into() -> set[str]:
    """Return the modules whose schedules this process knows, all of them, or that there are none.

    Only of these it can say that they declare a schedule no more.
    """
    found = {each.module for each in _declared.values()}
    if _discovered:
        found |= {f"{app.name}.{MODULE}" for app in apps.get_app_configs()}
    return found
