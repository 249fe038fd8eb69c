"""Worker processes that are made to suffer."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.timescale import PATIENCE_SECONDS

ROOT: Final = Path(__file__).resolve().parents[2]
LOOK_SECONDS: Final = 0.02


def eventually(
    holds: Callable[[], bool], what: str, *, within_seconds: float = PATIENCE_SECONDS
) -> float:
    """Wait until *holds()*; return the seconds it took. Fails the test when the time is over."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > within_seconds:
            pytest.fail(f"within {within_seconds:g} s it should have come to this: {what}")
        time.sleep(LOOK_SECONDS)
    return time.monotonic() - began


class WorkerProcess:
    """One `runworker`, the leader of a process group of its own."""

    def __init__(self, options: tuple[str, ...], env: Mapping[str, str], log: Path) -> None:
        self._log = log
        self.output = log.open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.manage", *options],
            cwd=ROOT,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.crash.settings", **env},
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def log(self) -> str:
        """Return what the process wrote so far."""
        return self._log.read_text(errors="replace")

    def wait_until_up(self) -> None:
        """Wait for its start block: from then on it claims."""
        eventually(lambda: "  tasks     " in self.log() or not self.alive, "a worker is up")
        assert self.alive, f"the worker ended with {self.process.returncode}: {self.log()}"

    def kill(self) -> None:
        """Kill it as the kernel does, and wait until it is gone."""
        self.send(signal.SIGKILL)
        self.process.wait(PATIENCE_SECONDS)

    def kill_group(self) -> None:
        """Kill it and all it started."""
        os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_SECONDS)

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)


class Fleet:
    """The workers of one test; all are killed at its end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.workers: list[WorkerProcess] = []

    def start(
        self, *options: str, count: int = 1, env: Mapping[str, str] | None = None
    ) -> list[WorkerProcess]:
        """Start *count* workers with the options of `runworker`; wait until they are up."""
        started = [self.start_command("runworker", *options, env=env or {}) for _ in range(count)]
        for worker in started:
            worker.wait_until_up()
        return started

    def start_command(self, *options: str, env: Mapping[str, str]) -> WorkerProcess:
        """Start one management command; wait for nothing."""
        log = self._folder / f"worker-{len(self.workers)}.log"
        worker = WorkerProcess(options, env, log)
        self.workers.append(worker)
        return worker

    def logs(self) -> str:
        return "\n".join(worker.log() for worker in self.workers)

    def end(self) -> None:
        """Kill what still runs, stopped processes too."""
        for worker in self.workers:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(worker.pid, signal.SIGKILL)
        for worker in self.workers:
            worker.process.wait(PATIENCE_SECONDS)
            worker.output.close()


@contextlib.contextmanager
def fleet_in(folder: Path) -> Iterator[Fleet]:
    """Yield a fleet whose logs are in *folder*."""
    fleet = Fleet(folder)
    try:
        yield fleet
    finally:
        fleet.end()
