"""The rivals: what each needs to be measured, and which of them are there."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Final

from tests.processes import ROOT

PYTHON: Final = os.environ.get("WORKQUEUE_PEERS_PYTHON", "")
"""A Python that has the dependency group ``benchmarks``; without one no peer is measured."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A rival: its *package*, and what else it runs on.

    *max_count* bounds the jobs of a trial of the slow ones, whose rate depends little on how many.
    """

    package: str
    max_count: int | None = None
    also: tuple[str, ...] = ()
    binaries: tuple[str, ...] = ()

    def bounded(self, count: int) -> int:
        return count if self.max_count is None else min(count, self.max_count)

    def missing(self) -> str:
        """Return why it cannot be measured, empty if it can."""
        if not PYTHON:
            return "WORKQUEUE_PEERS_PYTHON is not set"
        for package in (self.package, *self.also):
            if not _is_importable(package):
                return f"{package} is not installed"
        for binary in self.binaries:
            if shutil.which(binary) is None:
                return f"{binary} is not installed"
        return ""

    def version(self) -> str:
        """Return the version that is installed."""
        code = f"import importlib.metadata as m; print(m.version({self.package!r}))"
        return _ran(code).stdout.strip()


PEERS: Final = {
    "celery_redis": Peer("celery", 2_000, also=("redis",), binaries=("redis-server",)),
    "django_tasks_db": Peer("django_tasks_db", 1_000, also=("django.tasks",)),
    "honker": Peer("honker"),
    "huey": Peer("huey"),
    "pgqueuer": Peer("pgqueuer", also=("asyncpg",)),
    "procrastinate": Peer("procrastinate", 1_000),
}
"""By the name of their module in contestants."""


def python_of(contestant: str) -> str:
    """Return the Python that runs a trial of it."""
    return PYTHON if contestant in PEERS else sys.executable


@functools.cache
def _is_importable(package: str) -> bool:
    return _ran(f"import {package}").returncode == 0


def _ran(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PYTHON, "-c", code], cwd=ROOT, capture_output=True, text=True)
