"""What ticks cost: `python -m tests.benchmarks.schedules`.

How long the next tick of an expression takes to find around changes of the clocks, and a tick with
ten due schedules among ten thousand, as a ratio to the same among a hundred, taken in turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from tests.benchmarks.harness import arguments, database, percentile, say

EXPRESSIONS: Final = (
    "* * * * *",
    "0 3 * * *",
    "*/7 */2 * * *",
    "0 9 29 2 *",
    "0 9 29 2 */7",
    "* 0-59 2 * * *",
    "0 0 * * 5#3",
)
DUE: Final = 10
T0: Final = datetime(2030, 1, 1, 12, tzinfo=UTC)


def main() -> None:
    given = arguments(
        "Cost of finding and firing ticks.",
        repeat={"type": int, "default": 20},
        many={"type": int, "default": 10_000},
        few={"type": int, "default": 100},
    )
    with database(given.database):
        say_next_ticks()
        say_due(given.few, given.many, given.repeat)


def say_next_ticks() -> None:
    from django_workqueue import cron
    from tests.cron.reference import ZONES, changes

    for expression in EXPRESSIONS:
        cron.check(expression)
        seconds = []
        for zone in ZONES:
            for change in changes(zone)[::3]:
                for minutes in range(-2160, 2161, 120):
                    after = change + timedelta(minutes=minutes)
                    began = time.perf_counter()
                    cron.next_tick(expression, zone, after)
                    seconds.append(time.perf_counter() - began)
        say(f"next tick of {expression!r}: {told(seconds)}, {len(seconds)} times")


def say_due(few: int, many: int, repeat: int) -> None:
    """Take turns, so that both meet the same machine."""
    fill("few", few)
    times: dict[int, list[float]] = {few: [], many: []}
    for number in range(2 * repeat):
        count = (few, many)[number % 2]
        fill("all", count)
        times[count].append(fire())
    for count, seconds in times.items():
        say(f"a tick of {DUE} due among {count}: {told(seconds)}")
    ratio = statistics.median(times[many]) / statistics.median(times[few])
    say(f"ratio of the medians: {ratio:.2f}")


def fill(name: str, count: int) -> None:
    """Leave *count* schedules, ten of them due at T0, and no job."""
    from django_workqueue.models import LiveJob, Schedule

    LiveJob.objects.all().delete()
    known = Schedule.objects.count()
    if known > count:
        Schedule.objects.all().delete()
        known = 0
    rows = [
        Schedule(name=f"s{number}", task="a.b", expression="@every 1h", next_fire_at=later())
        for number in range(known, count)
    ]
    Schedule.objects.bulk_create(rows, batch_size=500)
    due = [f"s{number}" for number in range(DUE)]
    Schedule.objects.filter(pk__in=due).update(next_fire_at=T0, last_fire_at=None)


def later() -> datetime:
    return T0 + timedelta(hours=1)


def fire() -> float:
    """Fire what is due; return the seconds it took."""
    from django_workqueue import conf, scheduler
    from django_workqueue.store import get_store

    store = get_store()
    began = time.perf_counter()
    report = scheduler.tick(store, conf.current(), now=T0 + timedelta(seconds=1))
    took = time.perf_counter() - began
    assert report.job_count == DUE, report
    return took


def told(seconds: Sequence[float]) -> str:
    median, high = statistics.median(seconds), percentile(seconds, 99)
    return f"median {median * 1e3:.3f} ms, p99 {high * 1e3:.3f} ms, max {max(seconds) * 1e3:.3f} ms"


if __name__ == "__main__":
    main()
