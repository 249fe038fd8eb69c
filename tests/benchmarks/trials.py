"""One timed run in a process of its own: `python -m tests.benchmarks.trials CONTESTANT MEASURE`.

Started by the commands that compare, in the environment that `harness.database` has made; the last
line it writes is the figure, as JSON.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TypeVar

from tests.benchmarks.harness import cpu_seconds, server_pids
from tests.benchmarks.peers import python_of
from tests.processes import ROOT

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Figure:
    """What a run took: *count* jobs, seconds by the clock, and of a processor: here, at the server.

    The server's are known where `harness.database` started it.
    """

    count: int
    seconds: float
    cpu_seconds: float = 0.0
    server_seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.count / self.seconds


def timed(count: int, call: Callable[[], object]) -> Figure:
    """Return what *call* took."""
    server = server_pids()
    at_server, cpu, began = cpu_seconds(server), cpu_seconds_here(), time.perf_counter()
    call()
    seconds, used = time.perf_counter() - began, cpu_seconds_here() - cpu
    return Figure(count, seconds, used, cpu_seconds(server_pids()) - at_server)


def cpu_seconds_here() -> float:
    """Return the processor time that this process has used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def run(kind: type[Found], contestant: str, measure: str, *given: float | str) -> Found:
    """Run one trial in a process of its own; return what it found, which is of that *kind*."""
    done = subprocess.run(
        [python_of(contestant), "-m", __name__, contestant, measure, *map(json.dumps, given)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the trial {contestant} {measure} must end with 0: {done.stdout}")
    return kind(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("contestant", help="a module of tests.benchmarks.contestants")
    parser.add_argument("measure", help="a function of it")
    parser.add_argument("given", nargs="+", type=json.loads, help="a count, and more as JSON")
    given = parser.parse_args()
    module = importlib.import_module(f"tests.benchmarks.contestants.{given.contestant}")
    found = getattr(module, given.measure)(*given.given)
    sys.stdout.write(f"{json.dumps(asdict(found))}\n")


if __name__ == "__main__":
    main()
