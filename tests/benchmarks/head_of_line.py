"""What a key that always fails costs the others: `python -m tests.benchmarks.head_of_line`.

A relay delivers the messages of 49 keys in slices of as many each. In every other slice a fiftieth
key is tried, and fails, as often as its backoff lets it; in those between it rests. A slice is
compared with the two beside it, a second away at most, so that a machine that is now faster and now
slower decides nothing; the medians are said, with the middle half of what they are medians of.

The default backoff would let the key come due after 5 s, 10 s, 20 s and so on: it comes due once in
each of its slices instead, which is more often. Once more with a retry every 0.1 s.

The others' messages are as old as if all had been published after the failing one came due again,
which then is the first to be claimed. Published before, they would go first, and it would hardly be
tried while they last.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from tests.benchmarks.harness import arguments, cpu_seconds, database, forget_all, say, server_pids
from tests.benchmarks.trials import cpu_seconds_here

OTHERS: Final = [f"k{number:02}" for number in range(1, 50)]
FAILING: Final = "failing"
DAY: Final = 86_400.0
PATIENCE_SECONDS: Final = 600.0
WARM_UP: Final = 2

DELAYS: Final = {"the default backoff": 5.0, "a retry every 0.1 s": 0.1}


@dataclass
class Slice:
    """Deliveries of the others, and what they took; in seconds, and those of a processor."""

    fails: bool
    began: float = 0.0
    cpu_began: float = 0.0
    count: int = 0
    failures: int = 0
    seconds: float = 0.0
    cpu: float = 0.0

    def begin(self) -> None:
        self.cpu_began = cpu_seconds_here() + cpu_seconds(server_pids())
        self.began = time.perf_counter()

    def end(self) -> None:
        self.seconds = time.perf_counter() - self.began
        self.cpu = cpu_seconds_here() + cpu_seconds(server_pids()) - self.cpu_began


@dataclass
class Slices:
    """The handler: it refuses the failing key's messages, and ends each slice by the count."""

    size: int
    count: int
    delay_seconds: float
    done: threading.Event = field(default_factory=threading.Event)
    found: list[Slice] = field(default_factory=lambda: [Slice(fails=False)])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def handle(self, message: Any) -> None:
        with self._lock:
            current = self.found[-1]
            if message.key == FAILING:
                current.failures += 1
                raise ConnectionError("always")
            current.count += 1
            if current.count == self.size:
                current.end()
                if len(self.found) == self.count:
                    self.done.set()
                self._begin(Slice(fails=not current.fails))

    def delay(self, error: BaseException, message: Any) -> float:
        return self.delay_seconds if self.found[-1].fails else DAY

    def _begin(self, following: Slice) -> None:
        from django_workqueue.models import LiveJob
        from django_workqueue.store import get_store

        waiting = LiveJob.objects.filter(order_key=FAILING, state="scheduled")
        waiting.update(run_after=get_store().moment(None, 0.0 if following.fails else DAY))
        self.found.append(following)
        following.begin()


def publish_all(slices: Slices) -> None:
    """Write all messages, the failing key's first of all."""
    from django.db import transaction
    from django.db.models import F

    from django_workqueue.models import LiveJob
    from django_workqueue.outbox import destination, destinations

    destinations._declared.clear()  # each measurement declares its own handler
    options: dict[str, Any] = {"max_attempts": 10_000, "backoff": slices.delay}
    made = destination("events", **options)(slices.handle)
    per_key = slices.size * (slices.count + 1) // len(OTHERS) + 1
    with transaction.atomic():
        for number in range(per_key):
            for key in [FAILING, *OTHERS]:
                made.publish({"number": number, "key": key}, key=key)
        # A day less for the first of all: the claim's order is that of these moments.
        later = LiveJob.objects.exclude(order_key=FAILING)
        later.update(run_after=F("run_after") + timedelta(seconds=DAY))


def deliver(slices: Slices, threads: int) -> None:
    """Relay until all slices are there."""
    from django_workqueue.models import OutboxKey
    from django_workqueue.relay import Relays

    publish_all(slices)
    relays = Relays(
        "relay", lease_seconds=30, poll_seconds=1, threads=threads, on_settled=lambda settled: None
    )
    slices.found[0].begin()
    relays.start()
    if not slices.done.wait(PATIENCE_SECONDS):
        raise RuntimeError(f"all must be delivered, got {slices.found[-1]}")
    relays.close(30)
    forget_all()
    OutboxKey.objects.all().delete()


def beside(found: list[Slice], read: Callable[[Slice], float]) -> list[float]:
    """Return *read* of each slice in which the key fails, by that of the two beside it."""
    return [
        2 * read(now) / (read(before) + read(after))
        for before, now, after in zip(found, found[1:], found[2:], strict=False)
        if now.fails
    ]


def measure(name: str, size: int, count: int, threads: int) -> None:
    slices = Slices(size, 2 * count + 1 + WARM_UP, DELAYS[name])
    deliver(slices, threads)
    found = slices.found[WARM_UP : slices.count]
    failing = [each for each in found if each.fails]
    resting = [each for each in found if not each.fails]
    seconds, cpu = beside(found, lambda each: each.seconds), beside(found, lambda each: each.cpu)
    low, middle, high = statistics.quantiles(seconds, n=4)
    total = sum(each.seconds for each in failing)
    say(
        f"{name}: {len(failing)} of {len(found)} slices of {size} messages, "
        f"{sum(each.failures for each in failing) / total:.1f} failures/s in them, "
        f"{sum(each.failures for each in resting)} in the others\n"
        f"  {size * len(resting) / sum(each.seconds for each in resting):.0f}/s without it; "
        f"it costs the others {1 - 1 / middle:+.1%} of their throughput "
        f"(middle half {1 - 1 / low:+.1%} to {1 - 1 / high:+.1%}), "
        f"{statistics.median(cpu) - 1:+.1%} processor time"
    )


def main() -> None:
    given = arguments(
        "What a key that always fails costs the others.",
        size={"type": int, "default": 200, "help": "messages of a slice"},
        slices={"type": int, "default": 30, "help": "in which the key fails"},
        threads={"type": int, "default": 2, "help": "of the relay, as a worker has"},
        only={"choices": list(DELAYS), "default": None},
    )
    with database(given.database):
        for name in [given.only] if given.only else DELAYS:
            measure(name, given.size, given.slices, given.threads)


if __name__ == "__main__":
    main()
