"""How much a child's memory grows over many no-op jobs: `python -m tests.benchmarks.memory`."""

from __future__ import annotations

from tests.benchmarks.harness import (
    arguments,
    database,
    descendants,
    forget_all,
    memory_bytes,
    say,
    wait_for_all,
    worker,
)

BATCH = 5_000


def main() -> None:
    given = arguments(
        "Memory over many no-op jobs.",
        jobs={"type": int, "default": 50_000},
        debug={"action": "store_true", "help": "with Django's DEBUG"},
    )
    debug = str(int(given.debug))
    # One child: it is the youngest of the command's processes.
    with (
        database(given.database),
        worker("--processes", "1", WORKQUEUE_BENCH_DEBUG=debug) as process,
    ):
        child = max(descendants(process.pid))
        run(BATCH)
        first = memory_bytes(child)
        sizes = [first]
        for _ in range(given.jobs // BATCH):
            run(BATCH)
            sizes.append(memory_bytes(child))
        grown = (sizes[-1] - first) / 1e6
        told = " ".join(f"{size / 1e6:.1f}" for size in sizes)
        say(f"memory of the child, MB, each {BATCH} jobs (DEBUG={debug}): {told}; grew {grown:.1f}")
        assert child in descendants(process.pid), "the child was replaced: nothing was measured"


def run(count: int) -> None:
    from tests.benchmarks.tasks import nothing

    nothing.enqueue_many([((), {})] * count)
    wait_for_all()
    forget_all()


if __name__ == "__main__":
    main()
