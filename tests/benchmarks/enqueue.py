"""Enqueued jobs a second, beside a bare insert: `python -m tests.benchmarks.enqueue`."""

from __future__ import annotations

from tests.benchmarks.comparing import compare
from tests.benchmarks.harness import arguments, database


def main() -> None:
    given = arguments(
        "Enqueued jobs a second.",
        jobs={"type": int, "default": 3_000, "help": "one by one"},
        many={"type": int, "default": 20_000, "help": "in one call"},
        repeat={"type": int, "default": 3},
    )
    with database(given.database):
        for measure, count in (("enqueue", given.jobs), ("enqueue_many", given.many)):
            compare([("bare", measure), ("ours", measure)], count, given.repeat)


if __name__ == "__main__":
    main()
