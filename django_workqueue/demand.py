"""How many jobs a worker wants to claim: what its executors can start soon, and no more.

Short jobs are claimed ahead, so that they are not fetched one by one; long ones only as executors
are free, so that they are not kept from other workers. Nothing here looks at a clock or a row.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from .job import Job

HORIZON_SECONDS: Final = 0.1
"""How soon a job that is claimed ahead should start; one that takes longer is not."""
MOST_AHEAD: Final = 1_000
BYTES_AHEAD: Final = 16_000_000
"""Of their arguments: a thousand jobs may have a megabyte each."""
FIRST_GUESS_SECONDS: Final = 1.0
"""What a job takes before any has ended."""
FALL: Final = 0.8
"""What each shorter job leaves of the distance to a longer estimate."""


@dataclass(frozen=True, slots=True)
class Room:
    """How many more jobs are wanted for threads, for coroutines, and of both together."""

    threads: int
    coroutines: int
    total: int

    def of(self, *, is_async: bool) -> int:
        """Return how many more jobs of one kind are wanted."""
        return min(self.coroutines if is_async else self.threads, self.total)

    def at_most(self, total: int) -> Room:
        return Room(self.threads, self.coroutines, min(self.total, total))

    def less(self, jobs: Sequence[Job]) -> Room:
        """Return what is left after *jobs* came; more of a kind may come than were wanted."""
        coroutines = sum(job.is_async for job in jobs)
        return Room(
            self.threads - (len(jobs) - coroutines),
            self.coroutines - coroutines,
            self.total - len(jobs),
        )


NO_ROOM: Final = Room(0, 0, 0)


def estimate(known: float, seconds: Collection[float]) -> float:
    """Return what a job takes, after jobs that took *seconds*: rises at once, falls slowly.

    One long job among many short ones stops the claiming ahead for a while; the reverse would
    leave jobs behind a long one that another worker could run.
    """
    if not seconds:
        return known
    mean = sum(seconds) / len(seconds)
    return mean if mean >= known else mean + (known - mean) * FALL ** len(seconds)


def wanted(
    executors: int,
    *,
    waiting: int,
    running_seconds: Collection[float],
    job_seconds: float,
    job_bytes: float = 0.0,
) -> int:
    """Return how many jobs to claim for *executors*, of which some run, with *waiting* claimed.

    Ahead of the free executors as many as can start within the horizon, and these in batches: not
    before half of them have started.
    """
    # Who knows when these will end.
    lasting = sum(1 for seconds in running_seconds if seconds > HORIZON_SECONDS)
    free = executors - len(running_seconds)
    ahead = 0
    if job_seconds <= HORIZON_SECONDS:
        soon = (executors - lasting) * HORIZON_SECONDS / max(job_seconds, 1e-6)
        ahead = min(int(soon), MOST_AHEAD, int(BYTES_AHEAD / max(job_bytes, 1.0)))
    if waiting >= free and waiting > ahead // 2:
        return 0
    return max(free + ahead - waiting, 0)


def room_for(
    jobs: Collection[Job],
    now: float,
    *,
    threads: int,
    async_tasks: int,
    job_seconds: dict[bool, float],
    job_bytes: float = 0.0,
) -> Room:
    """Return the room beside *jobs* in flight; of each kind, *job_seconds* is what a job takes.

    *job_bytes* is how large one is.
    """
    waiting = {False: 0, True: 0}
    running: dict[bool, list[float]] = {False: [], True: []}
    for job in jobs:
        if job.ending:
            continue
        if job.started is None:
            waiting[job.is_async] += 1
        else:
            running[job.is_async].append(now - job.started)
    of_threads, of_coroutines = (
        wanted(
            executors,
            waiting=waiting[kind],
            running_seconds=running[kind],
            job_seconds=job_seconds[kind],
            job_bytes=job_bytes,
        )
        for kind, executors in ((False, threads), (True, async_tasks))
    )
    total = most_in_flight(threads, async_tasks) - len(jobs)
    return Room(of_threads, of_coroutines, total)


def most_in_flight(threads: int, async_tasks: int) -> int:
    """Return how many jobs a worker has at most, from their claim to their settle."""
    return 2 * (threads + async_tasks + MOST_AHEAD)
