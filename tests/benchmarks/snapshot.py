"""Claim time while an old snapshot is held: `python -m tests.benchmarks.snapshot`.

As many jobs a second as --rate says go through every transition, first with nothing held and then
while another transaction holds a snapshot from before the first of them. As in a worker, one thread
claims and another settles, each with a connection of its own.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from tests.benchmarks.growth import settle, timed_claim, truncate
from tests.benchmarks.harness import arguments, database, percentile, say

if TYPE_CHECKING:
    from django_workqueue.store import BaseStore, Claim

BATCH: Final = 10
"""Jobs enqueued a pass."""

BEGIN: Final = {
    "postgresql": "BEGIN ISOLATION LEVEL REPEATABLE READ",
    "mysql": "START TRANSACTION WITH CONSISTENT SNAPSHOT",
    "sqlite": "BEGIN",
}


def main() -> None:
    given = arguments(
        "Claim time while an old snapshot is held.",
        seconds={"type": float, "default": 300.0, "help": "for which it is held"},
        without={"type": float, "default": 60.0, "help": "seconds that none is held, before"},
        rate={"type": float, "default": 200.0, "help": "jobs a second"},
    )
    with database(given.database):
        from django_workqueue.store import get_store

        store = get_store()
        measure(store, "no snapshot", given.without, given.rate)
        truncate(store)
        with held(store):
            measure(store, "snapshot held", given.seconds, given.rate)


@contextmanager
def held(store: BaseStore) -> Iterator[None]:
    """Hold a snapshot of what is there now."""
    other = store.connection.copy()
    with other.cursor() as cursor:
        cursor.execute(BEGIN[other.vendor])
        cursor.execute("SELECT COUNT(*) FROM workqueue_livejob")
        cursor.fetchall()
    try:
        yield
    finally:
        other.close()


def measure(store: BaseStore, name: str, seconds: float, rate: float) -> None:
    """Take jobs through every transition; say how long the claim passes took, tenth by tenth."""
    claimed = SimpleQueue[list["Claim"] | None]()
    settler = threading.Thread(target=settle_all, args=(store, claimed))
    settler.start()
    passes, claims, enqueued = list[float](), list[float](), 0
    began = time.monotonic()
    try:
        while (now := time.monotonic() - began) < seconds:
            time.sleep(max((enqueued + BATCH) / rate - now, 0.0))
            # All that its moment has come for: a pass that took long is followed by a larger one.
            count = int((time.monotonic() - began) * rate) - enqueued
            timed, found = timed_claim(store, count, limit=2 * count)
            enqueued += count
            passes.append(timed.look_seconds + timed.claim_seconds)
            claims.append(timed.claim_seconds)
            claimed.put(found)
        came_to = enqueued / (time.monotonic() - began)
    finally:
        behind = claimed.qsize()
        claimed.put(None)
        settler.join()
    say(
        f"{name} for {seconds:.0f} s at {came_to:.0f} jobs/s, {len(passes)} passes, {behind} of "
        "them not settled at the end; ms p50/p95 of each tenth of them"
    )
    say(f"  claim pass  {by_tenths(passes)}   all {both(passes)}")
    say(f"  claim alone {by_tenths(claims)}   all {both(claims)}")


def by_tenths(seconds: Sequence[float]) -> str:
    cuts = [len(seconds) * n // 10 for n in range(11)]
    return "  ".join(both(seconds[a:b]) for a, b in itertools.pairwise(cuts))


def both(seconds: Sequence[float]) -> str:
    return f"{1000 * percentile(seconds, 50):.1f}/{1000 * percentile(seconds, 95):.1f}"


def settle_all(store: BaseStore, claimed: SimpleQueue[list[Claim] | None]) -> None:
    """Take the jobs of each pass through each end, until None comes."""
    try:
        while (claims := claimed.get()) is not None:
            settle_each(store, claims)
    finally:
        store.connection.close()


def settle_each(store: BaseStore, claims: list[Claim]) -> None:
    """Retry, release, hold and bury one job each of ten new ones; the rest have run."""
    from django_workqueue.states import DeathReason, HeldReason
    from tests.factories import error

    fresh = [each for each in claims if each.attempt == 1 and not each.unknown_since]
    ran = [each for each in claims if each not in fresh]
    while len(fresh) >= 4:
        retried, released, unknown, buried, *rest = fresh
        store.retry(retried, 0.05, error(retried))
        store.release(released, delay_seconds=0.05)
        store.hold(unknown, HeldReason.UNKNOWN, 0.05, error(unknown))
        store.bury(buried, DeathReason.TERMINAL, error(buried))
        ran += rest[: BATCH - 4]
        fresh = rest[BATCH - 4 :]
    store.unhold(HeldReason.UNKNOWN, {each.task for each in claims})
    settle(store, [*ran, *fresh])


if __name__ == "__main__":
    main()
