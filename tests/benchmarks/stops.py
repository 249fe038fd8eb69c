"""Kills and stops of a worker with load: `python -m tests.benchmarks.stops`.

A child killed in mid-job: when the job starts again, and what its neighbours lost. SIGTERM with
eight running jobs of a second and a hundred claimed: when it ends, and when the hundred start
elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.harness import (
    arguments,
    database,
    forget_all,
    say,
    session,
    wait_for_all,
    worker,
)
from tests.processes import Process, lines, wait_until


def main() -> None:
    given = arguments("Kills and stops under load.", repeat={"type": int, "default": 3})
    with database(given.database):
        for _ in range(given.repeat):
            for measure in (kill_a_child, stop_eight_of_many):
                with tempfile.TemporaryDirectory() as folder:
                    measure(Path(folder) / "naps")
                forget_all()


def naps(path: Path, count: int, seconds: float, first: int = 0) -> None:
    from tests.benchmarks.tasks import nap

    calls: Any = [((str(path), str(first + n), seconds), {}) for n in range(count)]
    nap.enqueue_many(calls)


def starts(path: Path) -> list[tuple[str, int, float]]:
    """Return name, process and moment of each start."""
    found = [line.split() for line in lines(path)]
    return [(name, int(pid), float(at)) for what, name, pid, at in found if what == "start"]


def tell(process: Process, number: int) -> None:
    """Send a signal to a worker and its children."""
    for pid in session(process.pid):
        os.kill(pid, number)


def kill_a_child(path: Path) -> None:
    from django_workqueue.models import Result

    with worker("--processes", "2", "--threads", "4", "--lease", "600") as process:
        naps(path, 40, 1.0)
        wait_until(lambda: len(starts(path)) >= 8, "eight starts")
        doomed = starts(path)[0][1]
        begun = {name for name, pid, _ in starts(path) if pid == doomed}
        os.kill(doomed, signal.SIGKILL)
        killed = time.monotonic()

        def again() -> list[float]:
            return [at for name, _, at in starts(path) if name in begun and at > killed]

        wait_until(again, "the second start")
        assert process.pid != doomed
        wait_for_all()
        attempts = list(Result.objects.values_list("attempts", flat=True))
        again_at = {name: at for name, _, at in reversed(starts(path)) if at > killed}
        later = max(again_at[name] for name in begun & again_at.keys())
        say(
            f"kill -9 of a child with {len(begun)} running: first starts again after "
            f"{min(again()) - killed:.2f} s, last after {later - killed:.2f} s; "
            f"{sum(n > 1 for n in attempts)} jobs charged twice, {len(attempts)} of 40 finished"
        )


def stop_eight_of_many(path: Path) -> None:
    from django_workqueue.models import LiveJob, Result

    options = ("--processes", "1", "--threads")
    with contextlib.ExitStack() as stack:
        # It is up, and takes nothing before the stop.
        other = stack.enter_context(worker(*options, "108"))
        tell(other, signal.SIGSTOP)
        process = stack.enter_context(worker(*options, "8", "--grace", "10"))
        naps(path, 108, 1.0)
        wait_until(lambda: len(starts(path)) >= 8, "eight starts")
        claimed = LiveJob.objects.filter(state="running").count()
        tell(other, signal.SIGCONT)
        process.send(signal.SIGTERM)
        asked = time.monotonic()
        code = process.end()
        ended = time.monotonic()
        wait_for_all()
        last = max(at for *_, at in starts(path))
        attempts = list(Result.objects.values_list("attempts", flat=True))
        say(
            f"SIGTERM with 8 running, {claimed} claimed: exit {code} after {ended - asked:.2f} s; "
            "of 108 the last start elsewhere came after "
            f"{last - asked:.2f} s; attempts above 1: {sum(n > 1 for n in attempts)}, "
            f"finished {len(attempts)}, starts {len(starts(path))}"
        )


if __name__ == "__main__":
    main()
