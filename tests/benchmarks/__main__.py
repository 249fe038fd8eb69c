"""The figures of docs/explanation/performance.md: `python -m tests.benchmarks`.

Enqueue, bulk enqueue and drain beside the bare loop of the same database, and beside the rivals
that WORKQUEUE_PEERS_PYTHON can import; then latency, idle cost and memory, by their own commands.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from tests.benchmarks.comparing import Trial, compare
from tests.benchmarks.drain import references
from tests.benchmarks.harness import arguments, database, say
from tests.processes import ROOT

PEERS: Final[dict[str, dict[str, list[Trial]]]] = {
    "postgresql": {
        "enqueue": [
            ("pgqueuer", "enqueue"),
            ("procrastinate", "enqueue"),
            ("django_tasks_db", "enqueue"),
            ("celery_redis", "enqueue"),
        ],
        "drain": [
            ("pgqueuer", "drain_without_results"),
            ("procrastinate", "drain_without_results"),
            ("django_tasks_db", "drain"),
            ("celery_redis", "drain_without_results"),
        ],
    },
    "sqlite": {
        "enqueue": [("huey", "enqueue"), ("honker", "enqueue"), ("django_tasks_db", "enqueue")],
        "drain": [("huey", "drain"), ("honker", "drain"), ("django_tasks_db", "drain")],
    },
    "mariadb": {
        "enqueue": [("django_tasks_db", "enqueue")],
        "drain": [("django_tasks_db", "drain")],
    },
}
"""Celery is beside one database: it uses none."""


def main() -> None:
    given = arguments(
        "All figures of one database.",
        jobs={"type": int, "default": 20_000, "help": "drained, and enqueued in one call"},
        single={"type": int, "default": 2_000, "help": "enqueued one by one"},
        repeat={"type": int, "default": 3},
        only_throughput={"action": "store_true"},
    )
    peers = PEERS[given.database]
    with database(given.database):
        ours: list[Trial] = [("bare", "enqueue"), ("ours", "enqueue")]
        compare([*ours, *peers.get("enqueue", [])], given.single, given.repeat)
        compare([("bare", "enqueue_many"), ("ours", "enqueue_many")], given.jobs, given.repeat)
        drains = ("store_drain", "drain", "drain_without_results", "drain_in_two")
        ours = [*references(given.database), *(("ours", name) for name in drains)]
        compare([*ours, *peers.get("drain", [])], given.jobs, given.repeat)
    if given.only_throughput:
        return
    for name in ("latency", "idle", "memory"):
        say(name)
        command = [sys.executable, "-m", f"tests.benchmarks.{name}", "--database", given.database]
        subprocess.run(command, cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
