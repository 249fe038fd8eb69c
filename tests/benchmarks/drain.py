"""Drained jobs a second, beside the bare loop: `python -m tests.benchmarks.drain`."""

from __future__ import annotations

from tests.benchmarks.comparing import compare
from tests.benchmarks.harness import arguments, database

MEASURES = ("store_drain", "store_drain_without_results", "drain", "drain_without_results")


def main() -> None:
    given = arguments(
        "Drained jobs a second.",
        jobs={"type": int, "default": 20_000},
        repeat={"type": int, "default": 3},
        measures={"default": ",".join(MEASURES)},
    )
    with database(given.database):
        trials = [("bare", "drain"), *(("ours", name) for name in given.measures.split(","))]
        compare(trials, given.jobs, given.repeat)


if __name__ == "__main__":
    main()
