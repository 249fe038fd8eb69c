"""A storm: many publish, relays are killed, the destination fails; and what must hold after it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.processes import ROOT, UP, Process, environment, lines, wait_until

SETTINGS: Final = {"DJANGO_SETTINGS_MODULE": "tests.relaying.settings"}


def publisher(*arguments: object, **more: Any) -> subprocess.Popen[bytes]:
    """Start a process that publishes."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.relaying.publisher", *map(str, arguments)],
        cwd=ROOT,
        env=environment(**SETTINGS, **more),
        stdin=subprocess.DEVNULL,
    )


@dataclass
class Storm:
    """The processes of one test, and the two files they write."""

    folder: Path
    failures: float = 0.0
    stuck: str = ""
    relays: list[Process] = field(default_factory=list)
    killed: set[int] = field(default_factory=set)

    @property
    def published(self) -> Path:
        return self.folder / "published"

    @property
    def deliveries(self) -> Path:
        return self.folder / "deliveries"

    def start_relay(self) -> None:
        more: dict[str, Any] = {
            **SETTINGS,
            "WORKQUEUE_TEST_DELIVERIES": str(self.deliveries),
            "WORKQUEUE_TEST_FAILURES": str(self.failures),
            "WORKQUEUE_TEST_STUCK": self.stuck,
        }
        options = ("--processes", "0", "--threads", "1", "--verbosity", "1")
        self.relays.append(Process("runworker", *options, **more))

    def kill_one(self) -> None:
        """Kill the oldest relay, and start another in its place."""
        victim = self.relays.pop(0)
        self.killed.add(victim.pid)
        victim.kill()
        self.start_relay()

    def run(
        self, *, publishers: int, messages: int, keys: int, relays: int, kills: int, pause: float
    ) -> None:
        """Publish and relay; once messages arrive, kill a relay every *pause* seconds."""
        for _ in range(relays):
            self.start_relay()
        for relay in self.relays:
            relay.wait_for(UP)
        writers = [
            publisher(self.published, messages // publishers, keys, 0.3, seed)
            for seed in range(publishers)
        ]
        try:
            wait_until(lambda: len(self.received()) > 10, "the first deliveries")
            for _ in range(kills):
                self.kill_one()
                time.sleep(pause)
            assert [writer.wait(300) for writer in writers] == [0] * publishers
            while not self.is_delivered():
                wait_until(partial(self.goes_on, len(self.received())), "the next delivery")
        finally:
            for writer in writers:
                writer.kill()
                writer.wait()

    def end(self) -> None:
        for relay in self.relays:
            relay.kill()

    # What was done

    def committed(self) -> set[str]:
        return {each.split()[1] for each in lines(self.published) if each.startswith("committed")}

    def is_delivered(self) -> bool:
        return self.committed() <= {each for each, *_ in self.received()}

    def goes_on(self, count: int) -> bool:
        return len(self.received()) > count or self.is_delivered()

    def received(self) -> list[tuple[str, str, int]]:
        """Return id, key and process of every delivery, in order."""
        entries = (line.split() for line in lines(self.deliveries))
        return [(message_id, key, int(pid)) for message_id, key, pid in entries]

    def in_order(self) -> dict[str, list[str]]:
        """Return what was committed to each key, in the order of the commits."""
        committed, by_key = self.committed(), defaultdict(list)
        for line in lines(self.published):
            event, message_id, key = line.split()
            if event == "published" and message_id in committed:
                by_key[key].append(message_id)
        return dict(by_key)

    def conflicts(self) -> int:
        return sum(line.startswith("conflict") for line in lines(self.published))

    def assert_delivered(self) -> int:
        """Assert that all and only what was committed came, in order; return how often it was
        doubled, which only a killed process did.
        """
        received = self.received()
        assert {each for each, *_ in received} == self.committed()
        first: dict[str, list[str]] = defaultdict(list)
        by: dict[str, list[int]] = defaultdict(list)
        for message_id, key, pid in received:
            if message_id not in by:
                first[key].append(message_id)
            by[message_id].append(pid)
        assert dict(first) == self.in_order()
        doubled = {each: pids for each, pids in by.items() if len(pids) > 1}
        assert {pid for pids in doubled.values() for pid in pids[:-1]} <= self.killed
        return sum(Counter({each: len(pids) - 1 for each, pids in doubled.items()}).values())
