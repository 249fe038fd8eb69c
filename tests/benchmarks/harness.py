"""What the benchmarks share: a database with durable settings, workers, counters and medians.

A benchmark is a module with ``main()``, which begins with :func:`arguments` and :func:`database`.
Figures say what was measured; nothing here is a test, and nothing asserts a time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import django

from tests.processes import Process, wait_until

DATABASES: Final = ("sqlite", "postgresql", "mariadb")
MODULE: Final = "tests.benchmarks.settings"


def arguments(about: str, **options: dict[str, Any]) -> argparse.Namespace:
    """Read the command line: ``--database``, and *options* by name as add_argument takes them."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--database", choices=DATABASES, default="sqlite")
    for name, given in options.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **given)
    return parser.parse_args()


@contextlib.contextmanager
def database(name: str) -> Iterator[None]:
    """Set Django up on an empty database *name* of durable settings; this and every child uses it.

    PostgreSQL is started for it with the server's defaults, from PG_BINDIR or the wheel.
    """
    from tests import services

    if name == "postgresql":
        os.environ["WORKQUEUE_TEST_PG_SOCKET"] = services.start_postgresql(durable=True)
    os.environ |= {"WORKQUEUE_TEST_DATABASE": name, "DJANGO_SETTINGS_MODULE": MODULE}
    django.setup()
    from django.db import connection

    made = connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
    if name == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
    say(f"{about_database()}, {about_machine()}")
    try:
        yield
    finally:
        connection.creation.destroy_test_db(made, verbosity=0)


def about_database() -> str:
    from django.db import connection

    version = ".".join(map(str, connection.get_database_version()))
    return f"{connection.display_name} {version}, Django {django.__version__}"


def about_machine() -> str:
    """Return Python's version, the number of cores and how busy they are."""
    load = os.getloadavg()[0]
    return f"Python {platform.python_version()}, {os.cpu_count()} cores, load {load:.1f}"


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


# Workers


@contextlib.contextmanager
def worker(*options: str, settings: dict[str, Any] | None = None, **more: str) -> Iterator[Process]:
    """Start a quiet `runworker` on WORKQUEUE=*settings*; kill it and its children at the end.

    It is up once it has run a first job, which leaves nothing behind.
    """
    from tests.benchmarks.tasks import nothing

    process = Process(
        "runworker",
        "--verbosity",
        "0",
        *options,
        settings=settings or {},
        DJANGO_SETTINGS_MODULE=MODULE,
        **more,
    )
    try:
        nothing.using(result_ttl=0).enqueue()
        wait_for_all()
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            for pid in session(process.pid):
                os.kill(pid, 9)
        process.kill()


def wait_for_all() -> float:
    """Wait until no job is live; return the seconds it took."""
    from django_workqueue.models import LiveJob

    return wait_until(lambda: not LiveJob.objects.exists(), "the end of all jobs")


def forget_all() -> None:
    """Empty the tables of jobs."""
    from django_workqueue.models import DeadJob, LiveJob, Result

    for model in (LiveJob, DeadJob, Result):
        model.objects.all().delete()


# What it cost


def session(leader: int) -> list[int]:
    """Return the processes of a session (Linux): a worker that `Process` started, and its own."""
    found = []
    for pid, fields in _stats():
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(pid)
    return sorted(found)


def descendants(ancestor: int) -> list[int]:
    """Return a process and all that it started, and they (Linux)."""
    parents = {pid: int(fields[1]) for pid, fields in _stats()}
    found = [ancestor]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def cpu_seconds(pids: Sequence[int]) -> float:
    """Return the processor time that living *pids* have used, and what they started (Linux).

    Of that, what has ended and was waited for: a server's process of a connection, say.
    """
    ticks = 0
    for pid, fields in _stats():
        if pid in pids:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_bytes(pid: int) -> int:
    """Return the memory of its own that a process has: resident, without what files back."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


def server_pids() -> list[int]:
    """Return the processes of the PostgreSQL server that :func:`database` started; else none."""
    folder = os.environ.get("WORKQUEUE_TEST_PG_SOCKET")
    if folder is None:
        return []
    return descendants(int((Path(folder) / "data" / "postmaster.pid").read_text().split()[0]))


def statement_count() -> int | None:
    """Return how many statements the server has run, this one apart; None where none counts."""
    from django.db import connection

    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "SELECT coalesce(sum(calls), 0) FROM pg_stat_statements "
                "WHERE query NOT LIKE '%pg_stat_statements%'"
            )
            return int(cursor.fetchone()[0])
        if connection.vendor == "mysql":
            cursor.execute("SHOW GLOBAL STATUS LIKE 'Questions'")
            return int(cursor.fetchone()[1])
    return None


def _stats() -> Iterator[tuple[int, list[str]]]:
    """Yield each process with its fields of /proc/PID/stat from the state on."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            yield int(stat.parent.name), stat.read_text().rpartition(")")[2].split()


@dataclass(frozen=True, slots=True)
class Cost:
    """What some seconds cost. *statements* None: the database does not count them."""

    seconds: float
    worker_cpu: float
    server_cpu: float
    statements: int | None

    def __str__(self) -> str:
        counted = (
            "" if self.statements is None else f"{self.statements / self.seconds:.2f} stmt/s, "
        )
        return (
            f"{counted}worker {self.worker_cpu / self.seconds:.2%} of a core "
            f"({60 * self.worker_cpu / self.seconds:.2f} CPU s/min), "
            f"server {self.server_cpu / self.seconds:.2%}"
        )


@contextlib.contextmanager
def cost(process: Process) -> Iterator[Callable[[], Cost]]:
    """Yield a function that returns what *process*, its children and the server used since."""
    workers, servers = session(process.pid), server_pids()
    began, statements = time.monotonic(), statement_count()
    worker_cpu, server_cpu = cpu_seconds(workers), cpu_seconds(servers)

    def since() -> Cost:
        used_worker = cpu_seconds(workers) - worker_cpu
        used_server = cpu_seconds(servers) - server_cpu
        seconds, counted = time.monotonic() - began, statement_count()
        count = None if counted is None or statements is None else counted - statements
        return Cost(seconds, used_worker, used_server, count)

    yield since


# Medians


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value that *percent* of *values* do not exceed."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)]


def median_of(count: int, measure: Callable[[], float]) -> tuple[float, float]:
    """Measure *count* times; return the median and the spread, as a part of it."""
    values = [measure() for _ in range(count)]
    middle = statistics.median(values)
    return middle, (max(values) - min(values)) / middle if middle else 0.0
