"""From enqueue to the start of the task, with an idle worker: `python -m tests.benchmarks.latency`.

Spaced jobs in autocommit; the time counts from before the call of ``enqueue``. Beside a bare loop
of the same database and the rivals that WORKQUEUE_PEERS_PYTHON can import, in turn: a machine that
is slow today is slow for all of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from tests.benchmarks import trials
from tests.benchmarks.comparing import compare, is_there
from tests.benchmarks.harness import arguments, database, percentile, say
from tests.benchmarks.spaced import Latencies

RIVALS: Final = {
    "postgresql": ("pgqueuer", "procrastinate", "huey", "django_tasks_db"),
    "sqlite": ("huey", "honker", "django_tasks_db"),
    "mariadb": ("django_tasks_db",),
}


def main() -> None:
    given = arguments(
        "Latency of spaced jobs.",
        jobs={"type": int, "default": 100, "help": "of each contestant, each time"},
        spacing={"type": float, "default": 0.1, "help": "seconds between two, on average"},
        repeat={"type": int, "default": 6},
        no_notify={"action": "store_true", "help": "WORKQUEUE NOTIFY off"},
        options={"default": "", "help": "options of runworker, in one text"},
        no_peers={"action": "store_true"},
    )
    settings = {"NOTIFY": False} if given.no_notify else {}
    ours = (json.dumps(settings), given.options)
    names = ["ours", "bare", *(() if given.no_peers else RIVALS[given.database])]
    with database(given.database):
        compare([("bare", "enqueue")], 2_000, 3)
        found: dict[str, list[Latencies]] = {name: [] for name in names if is_there(name)}
        for _ in range(given.repeat):
            for name, rounds in found.items():
                more = ours if name == "ours" else ()
                some = (name, "latency", given.jobs, given.spacing, *more)
                rounds.append(trials.run(Latencies, *some))
    say("ms from before a job was sent to the start of its task, and what ours took over that")
    for name, rounds in found.items():
        say(f"{name:15} {told(rounds, found['ours'])}")
    for each in found["ours"]:
        say(f"ours, meanwhile: {each.note}")


def told(rounds: Sequence[Latencies], ours: Sequence[Latencies]) -> str:
    """Return what was found, of all rounds together."""
    mine = [second for each in ours for second in each.started]
    all_of_them = [second for each in rounds for second in each.started]
    parts = [
        f"p{percent} {1000 * percentile(all_of_them, percent):7.2f} "
        f"({percentile(mine, percent) / percentile(all_of_them, percent):4.2f})"
        for percent in (50, 90, 99)
    ]
    middles = [1000 * percentile(each.started, 50) for each in rounds]
    sent = percentile([second for each in rounds for second in each.sent], 50)
    return (
        f"{'  '.join(parts)}  max {1000 * max(all_of_them):6.1f}; sending p50 {1000 * sent:.2f}; "
        f"p50 of a round {min(middles):.2f} to {max(middles):.2f}"
    )


if __name__ == "__main__":
    main()
