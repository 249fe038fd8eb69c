"""How long a worker takes to its first job, and its memory: `python -m tests.benchmarks.starts`."""

from __future__ import annotations

import statistics
import time

from tests.benchmarks.harness import arguments, database, memory_bytes, say, session, worker


def main() -> None:
    given = arguments("Start of a worker.", repeat={"type": int, "default": 5})
    with database(given.database):
        found: dict[str, list[float]] = {"0": [], "1": []}
        sizes: dict[str, list[str]] = {}
        for _ in range(given.repeat):
            # In turn, so that both meet the same moments of the machine.
            for processes, seconds in found.items():
                began = time.monotonic()
                with worker("--processes", processes) as process:
                    seconds.append(time.monotonic() - began)
                    own = session(process.pid)
                    sizes[processes] = [f"{memory_bytes(pid) / 1e6:.1f}" for pid in own]
        for processes, seconds in found.items():
            say(
                f"--processes {processes}: first job after {statistics.median(seconds):.2f} s "
                f"({min(seconds):.2f} to {max(seconds):.2f}), "
                f"memory of their own {' + '.join(sizes[processes])} MB"
            )


if __name__ == "__main__":
    main()
