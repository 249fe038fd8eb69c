"""From enqueue to the start of the task, with an idle worker: `python -m tests.benchmarks.latency`.

Spaced jobs in autocommit; the time counts from before the call of ``enqueue``.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.harness import (
    arguments,
    cost,
    database,
    forget_all,
    percentile,
    say,
    wait_for_all,
    worker,
)
from tests.processes import lines


def main() -> None:
    given = arguments(
        "Latency of spaced jobs.",
        jobs={"type": int, "default": 200},
        spacing={"type": float, "default": 0.1, "help": "seconds between two, on average"},
        repeat={"type": int, "default": 3},
        no_notify={"action": "store_true", "help": "WORKQUEUE NOTIFY off"},
        options={"default": "", "help": "options of runworker, in one text"},
    )
    settings = {"NOTIFY": False} if given.no_notify else {}
    with database(given.database):
        for _ in range(given.repeat):
            measure(given.jobs, given.spacing, settings, given.options.split())
            forget_all()


def measure(count: int, spacing: float, settings: dict[str, Any], options: list[str]) -> None:
    from tests.benchmarks.tasks import stamp

    with tempfile.TemporaryDirectory() as folder, worker(*options, settings=settings) as process:
        path, enqueues = Path(folder) / "stamps", list[float]()
        time.sleep(2)
        with cost(process) as since:
            for _ in range(count):
                # Jittered, so that no rhythm of the worker's is met again and again.
                time.sleep(random.uniform(0.5, 1.5) * spacing)
                began = time.monotonic()
                stamp.enqueue(str(path), began)
                enqueues.append(1000 * (time.monotonic() - began))
            wait_for_all()
            spent = since()
        found = [1000 * float(line) for line in lines(path)]
        assert len(found) == count
    say(
        f"latency ms: p50 {percentile(found, 50):.2f}  p90 {percentile(found, 90):.2f}  "
        f"p99 {percentile(found, 99):.2f}  max {max(found):.2f}, of which the enqueue itself p50 "
        f"{percentile(enqueues, 50):.2f}   {spent}"
    )


if __name__ == "__main__":
    main()
