"""Management commands in processes of their own, on the test's database; none outlives its test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.timescale import (
    GRACE_SECONDS,
    LEASE_SECONDS,
    PATIENCE_SECONDS,
    POLL_SECONDS,
    SWEEP_SECONDS,
)

ROOT: Final = Path(__file__).parent.parent
UP: Final = "clock     "
"""What a line of a worker's start block begins with, which is printed in one piece."""

SETTINGS: Final = {
    "LEASE_SECONDS": LEASE_SECONDS,
    "SWEEP_SECONDS": SWEEP_SECONDS,
    "POLL_SECONDS": POLL_SECONDS,
    "GRACE_SECONDS": GRACE_SECONDS,
}


def environment(**more: Any) -> dict[str, str]:
    """Return the environment of a child; *more* may hold ``settings``, the dict WORKQUEUE."""
    settings = more.pop("settings", SETTINGS)
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.child_settings",
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "error::ResourceWarning",
        "WORKQUEUE_TEST_SETTINGS": json.dumps(settings),
        **more,
    }


def command(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a management command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "django", *arguments],
        cwd=ROOT,
        env=environment(**more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_SECONDS,
    )


class Process:
    """A management command in a process; its output is read as it comes."""

    def __init__(self, *arguments: str, **more: Any) -> None:
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "django", *arguments],
            cwd=ROOT,
            env=environment(**more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # So that a test can end it with all that it started.
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def ended(self) -> bool:
        return self._popen.poll() is not None

    @property
    def output(self) -> str:
        with self._changed:
            return "".join(self.lines)

    def wait_for(self, text: str, count: int = 1) -> None:
        """Wait until *text* came *count* times; fail if the process ended before, or never says."""

        def said() -> bool:
            return "".join(self.lines).count(text) >= count or not self._reader.is_alive()

        with self._changed:
            self._changed.wait_for(said, PATIENCE_SECONDS)
        assert self.output.count(text) >= count, (
            f"{text!r} did not come {count} times: {self.output}"
        )

    def send(self, number: int) -> None:
        self._popen.send_signal(number)

    def end(self) -> int:
        """Wait for its end; return its exit code."""
        code = self._popen.wait(2 * PATIENCE_SECONDS)
        self._reader.join(PATIENCE_SECONDS)
        return code

    def kill(self) -> None:
        """End it as the kernel does, whatever it is doing."""
        if self._popen.poll() is None:
            self.send(signal.SIGKILL)
        self.end()
        assert self._popen.stdout is not None
        self._popen.stdout.close()

    def cpu_seconds(self) -> float:
        """Return the processor time it has used (Linux)."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            with self._changed:
                self.lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()


@contextmanager
def running(*arguments: str, **more: Any) -> Iterator[Process]:
    """Start a management command; kill it at the end of the block if it still runs."""
    process = Process(*arguments, **more)
    try:
        yield process
    finally:
        process.kill()


@contextmanager
def worker(*options: str, **more: Any) -> Iterator[Process]:
    """Start `runworker` and wait until it is up; one process, unless *options* say otherwise."""
    with running("runworker", *alone(options), **more) as process:
        process.wait_for(UP)
        yield process


def alone(options: Sequence[str]) -> Sequence[str]:
    """Return *options* of `runworker` with the one that makes its process the worker itself.

    Most tests mean that process when they stop, kill or ask it.
    """
    return options if "--processes" in options else ("--processes", "0", *options)


def wait_until(true: Callable[[], Any], what: str = "it") -> float:
    """Wait for what another process does and no event tells; return the seconds it took."""
    began = time.monotonic()
    while not true():
        if time.monotonic() - began > PATIENCE_SECONDS:
            pytest.fail(f"{what} did not come true in time")
        time.sleep(0.01)
    return time.monotonic() - began


def lines(path: Path) -> list[str]:
    """Return the whole lines that tasks have written to *path*."""
    return path.read_text().splitlines() if path.exists() else []
