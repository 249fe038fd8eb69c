"""Tasks of the tests. Those of one process do what a test gave them; the rest write to files."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django_workqueue.compat import BACKPORT
from django_workqueue.tasks import Backoff, Context, Terminal, task
from tests.app.files import append

if TYPE_CHECKING or not BACKPORT:
    from django.tasks import task as django_task
else:
    from django_tasks import task as django_task

bodies: dict[str, Callable[..., Any]] = {}
"""What the tasks below do in this process: `tests.jobs.body` puts it here."""


@task(backoff=0)
def run(name: str, *args: Any) -> Any:
    return bodies[name](*args)


@task(backoff=0, takes_context=True)
def run_with_context(context: Context, name: str, *args: Any) -> Any:
    return bodies[name](context, *args)


@task(backoff=0, atomic=True)
def run_atomically(name: str, *args: Any) -> Any:
    return bodies[name](*args)


@task(backoff=0, atomic=True, takes_context=True)
def run_with_context_atomically(context: Context, name: str, *args: Any) -> Any:
    return bodies[name](context, *args)


@task(max_attempts=5, backoff=0, retry_on=(ValueError, Terminal), terminal_on=(UnicodeError,))
def run_choosy(name: str) -> Any:
    return bodies[name]()


@task(backoff=0)
async def arun(name: str, *args: Any) -> Any:
    return await bodies[name](*args)


@task(backoff=0, takes_context=True)
async def arun_with_context(context: Context, name: str, *args: Any) -> Any:
    return await bodies[name](context, *args)


@task(backoff=0)
async def asleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


@django_task
def add(a: int, b: int = 2) -> int:
    """Return the sum: declared as Django declares a task, without options of ours."""
    return a + b


@task
def echo(value: Any = None, **more: Any) -> Any:
    return {"value": value, **more} if more else value


@task(backoff=Backoff(base=10, factor=2, jitter=False))
def fails_slowly(message: str) -> None:
    raise ValueError(message)


@task(backoff=0)
def note(path: str, name: str) -> None:
    """Write that the job ran."""
    append(path, name)


@task(backoff=0)
def start_and_end(path: str, name: str, seconds: float) -> None:
    """Write the start and, *seconds* later, the end."""
    append(path, f"start {name}")
    time.sleep(seconds)
    append(path, f"end {name}")


@task(backoff=0)
def start_and_wait(path: str, name: str, go_on: str, seconds: float = 60) -> None:
    """Write the start; write the end once the file *go_on* exists, or after *seconds*."""
    append(path, f"start {name} {os.getpid()}")
    ends = time.monotonic() + seconds
    while not Path(go_on).exists() and time.monotonic() < ends:
        time.sleep(0.01)
    append(path, f"end {name} {os.getpid()}")


@task(backoff=0)
def hold_interpreter(path: str, name: str, seconds: float) -> None:
    """Write the start, hold the interpreter's lock as a C extension may, write the end."""
    append(path, f"start {name}")
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))
    append(path, f"end {name}")


@task(max_attempts=1)
def leave(code: int) -> None:
    sys.exit(code)


@task(max_attempts=3, backoff=0)
def always_fails(path: str) -> None:
    append(path, "failed")
    raise ValueError


@task(max_attempts=3, backoff=0)
def exit_process(code: int) -> None:
    """End the whole process at once, as the kernel's killer of memory hogs does."""
    os._exit(code)
