"""Worker processes that are made to suffer."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any, Final

from tests.processes import UP, Process, alone

OPTIONS: Final = {"DJANGO_SETTINGS_MODULE": "tests.crash.settings"}


class Fleet:
    """The workers of one test; all are killed at its end."""

    def __init__(self) -> None:
        self.workers: list[Process] = []

    def start(self, *options: str, count: int = 1, **more: Any) -> list[Process]:
        """Start *count* workers with the options of `runworker`; return them once they claim.

        *more* is the environment, and ``settings`` the dict WORKQUEUE.
        """
        started = [self.send_off(*options, **more) for _ in range(count)]
        for worker in started:
            worker.wait_for(UP)
        return started

    def send_off(self, *options: str, **more: Any) -> Process:
        """Start a worker and wait for nothing."""
        worker = Process("runworker", *alone(options), **OPTIONS, **more)
        self.workers.append(worker)
        return worker

    def start_scheduler(self, **more: Any) -> Process:
        """Start `runscheduler`, and wait for nothing."""
        scheduler = Process("runscheduler", **OPTIONS, **more)
        self.workers.append(scheduler)
        return scheduler

    def start_one(self, *options: str, **more: Any) -> Process:
        (worker,) = self.start(*options, **more)
        return worker

    def output(self) -> str:
        return "\n".join(worker.output for worker in self.workers)


@contextlib.contextmanager
def fleet_of_a_test() -> Iterator[Fleet]:
    """Yield a fleet; kill what is left of it, stopped processes too."""
    fleet = Fleet()
    try:
        yield fleet
    finally:
        for worker in fleet.workers:
            worker.kill()


def stop(worker: Process) -> None:
    """Stop the process as SIGSTOP does: its connections stay, and nothing of it moves."""
    worker.send(signal.SIGSTOP)


def go_on(worker: Process) -> None:
    worker.send(signal.SIGCONT)


def kill_group(worker: Process) -> None:
    """Kill the process and all that it started."""
    os.killpg(worker.pid, signal.SIGKILL)
    worker.end()
