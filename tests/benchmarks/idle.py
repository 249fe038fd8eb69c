"""What workers cost that have nothing to do: `python -m tests.benchmarks.idle`."""

from __future__ import annotations

import time

from tests.benchmarks.harness import arguments, cost, database, memory_bytes, say, session, worker


def main() -> None:
    given = arguments(
        "Cost of an idle worker.",
        seconds={"type": float, "default": 30.0},
        repeat={"type": int, "default": 3},
        options={"default": "--processes 2", "help": "options of runworker, in one text"},
    )
    with database(given.database), worker(*given.options.split()) as process:
        time.sleep(5)
        for _ in range(given.repeat):
            with cost(process) as since:
                time.sleep(given.seconds)
                say(f"idle {given.options}: {since()}")
        sizes = ", ".join(f"{memory_bytes(pid) / 1e6:.1f}" for pid in session(process.pid))
        say(f"memory of their own, MB: {sizes}")


if __name__ == "__main__":
    main()
