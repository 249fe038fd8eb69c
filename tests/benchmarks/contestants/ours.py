"""The queue of this package, through what a user calls."""

from __future__ import annotations

import dataclasses
import json
from typing import Final

import django

django.setup()


from django.db.models import Count, Max, Min  # noqa: E402  # settings come first

from django_workqueue.ids import new_token  # noqa: E402
from django_workqueue.models import Result  # noqa: E402
from django_workqueue.states import Lane  # noqa: E402
from django_workqueue.store import Ack, get_store  # noqa: E402
from django_workqueue.tuning import tuned  # noqa: E402
from django_workqueue.worker import Options, Worker  # noqa: E402
from tests.benchmarks import tasks  # noqa: E402
from tests.benchmarks.harness import (  # noqa: E402
    MODULE,
    cost,
    forget_all,
    wait_for_all,
    worker,
)
from tests.benchmarks.spaced import Latencies, first, spaced, stamps  # noqa: E402
from tests.benchmarks.tasks import nothing  # noqa: E402
from tests.benchmarks.trials import Figure, timed  # noqa: E402
from tests.processes import command  # noqa: E402

BATCH: Final = 100


def enqueue(count: int) -> Figure:
    """Call ``enqueue`` in autocommit, one job after another."""
    forget_all()
    nothing.enqueue()
    return timed(count, lambda: _enqueue_each(count))


def _enqueue_each(count: int) -> None:
    for _ in range(count):
        nothing.enqueue()


def latency(count: int, spacing: float, settings: str, options: str) -> Latencies:
    """Enqueue spaced jobs in autocommit, for a worker that was idle.

    *settings* is WORKQUEUE in JSON, *options* are those of `runworker`.
    """
    forget_all()
    with stamps() as path, worker(*options.split(), settings=json.loads(settings)) as process:
        first(tasks.stamp.enqueue, path)
        with cost(process) as since:
            found = spaced(count, spacing, tasks.stamp.enqueue, path)
            wait_for_all()
            return dataclasses.replace(found, note=str(since()))


def enqueue_many(count: int) -> Figure:
    """Call ``enqueue_many`` once."""
    forget_all()
    nothing.enqueue()
    return timed(count, lambda: nothing.enqueue_many([((), {})] * count))


def drain(count: int) -> Figure:
    """Run all jobs in one worker of four threads, results kept."""
    return _drain(count, result_ttl=None)


def drain_without_results(count: int) -> Figure:
    """The same with ``result_ttl=0``."""
    return _drain(count, result_ttl=0)


def drain_in_two(count: int) -> Figure:
    """Run all jobs in two processes, results kept; from the first start to the last end."""
    forget_all()
    nothing.enqueue_many([((), {})] * count)
    options = ("--processes", "2", "--drain", "--verbosity", "0", "--no-sweep")
    done = command("runworker", *options, settings={}, DJANGO_SETTINGS_MODULE=MODULE)
    assert done.returncode == 0, done.stderr
    times = Result.objects.aggregate(
        first=Min("started_at"), last=Max("finished_at"), n=Count("pk")
    )
    assert times["n"] == count
    return Figure(count, (times["last"] - times["first"]).total_seconds())


def _drain(count: int, result_ttl: float | None) -> Figure:
    forget_all()
    nothing.using(result_ttl=result_ttl).enqueue_many([((), {})] * count)
    worker = Worker(Options(drain=True))
    # As runworker does.
    with tuned():
        figure = timed(count, worker.run)
    assert worker.drained
    return figure


def store_drain(count: int) -> Figure:
    """Claim and acknowledge batches of 100 through the store alone, results kept."""
    return _store_drain(count, result_ttl=None)


def store_drain_without_results(count: int) -> Figure:
    """The same with ``result_ttl=0``."""
    return _store_drain(count, result_ttl=0)


def _store_drain(count: int, result_ttl: float | None) -> Figure:
    forget_all()
    nothing.using(result_ttl=result_ttl).enqueue_many([((), {})] * count)
    store = get_store()

    def loop() -> None:
        while claims := store.claim(
            Lane.TASK,
            "default",
            worker_id="benchmark",
            token=new_token(),
            limit=BATCH,
            lease_seconds=30,
        ):
            acks = [Ack(claim=each, value="null", started_at=each.claimed_at) for each in claims]
            assert len(store.ack(acks)) == len(claims)

    return timed(count, loop)
