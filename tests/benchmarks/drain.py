"""Drained jobs a second, beside the bare loop: `python -m tests.benchmarks.drain`."""

from __future__ import annotations

from tests.benchmarks.comparing import Trial, compare
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
        ours = [("ours", name) for name in given.measures.split(",")]
        compare([*references(given.database), *ours], given.jobs, given.repeat)


def references(database: str) -> list[Trial]:
    """Return the bare loops: the first is that of the ratios, where its planner knows the least."""
    more = [("bare", "drain_analyzed")] if database == "postgresql" else []
    return [("bare", "drain"), *more]


if __name__ == "__main__":
    main()
