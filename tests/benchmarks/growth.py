"""Claim time against what else lies in the tables: `python -m tests.benchmarks.growth`.

Ten jobs are due each time; beside them, one kind of row at a time: a thousand in one database,
--rows in another on the same server. Both are claimed from in turn, so that whatever else the
machine does is in both figures.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tests.benchmarks.harness import arguments, database, percentile, say

if TYPE_CHECKING:
    from django_workqueue.store import BaseStore, Claim

FEW: Final = 1_000
CLAIMS: Final = 200
ALIASES: Final = ("default", "other")
DUE: Final = "due"


def main() -> None:
    given = arguments(
        "Claim time against rows of each kind.",
        rows={"type": int, "default": 1_000_000},
        kinds={"default": ",".join(KINDS), "help": "with commas"},
        snapshot={"type": float, "default": 0.0, "help": "seconds an old snapshot is held"},
    )
    with database(given.database), other_database():
        for kind in filter(None, given.kinds.split(",")):
            few, many = measure(kind, given.rows)
            say(
                f"{kind:10} {FEW:,} rows {1000 * few:.2f} ms, {given.rows:,} rows "
                f"{1000 * many:.2f} ms, ratio {many / few:.2f}"
            )
        if given.snapshot:
            hold_snapshot(given.snapshot)


@contextmanager
def other_database() -> Iterator[None]:
    """Make a database beside the first, as the alias "other"."""
    from django.db import connection, connections

    name = f"{connection.settings_dict['NAME']}_other"
    connections.settings["other"] = {
        **connection.settings_dict,
        "NAME": name,
        "TEST": {**connection.settings_dict["TEST"], "NAME": name},
    }
    creation = connections["other"].creation
    made = creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
    try:
        yield
    finally:
        creation.destroy_test_db(made, verbosity=0)


def measure(kind: str, rows: int) -> tuple[float, float]:
    """Return the median seconds of a claim pass of ten jobs beside FEW and *rows* rows."""
    from django_workqueue.store import get_store

    stores = [get_store(alias) for alias in ALIASES]
    for store, count in zip(stores, (FEW, rows), strict=True):
        truncate(store)
        KINDS[kind](store, count)
        analyze(store)
    took = [[claim_pass(store) for store in stores] for _ in range(CLAIMS)]
    few, many = (statistics.median(times) for times in zip(*took, strict=True))
    return few, many


def claim_pass(store: BaseStore) -> float:
    """Enqueue ten jobs, and return how long it takes to find and claim them."""
    took, claims = timed_claim(store, 10)
    assert len(claims) == 10
    settle(store, claims)
    return took


def timed_claim(store: BaseStore, limit: int) -> tuple[float, list[Claim]]:
    """Enqueue ten jobs; return the seconds it takes to find and claim up to *limit*, and them."""
    from django_workqueue.states import Lane

    store.insert([job(queue_name=DUE) for _ in range(10)])
    began = time.perf_counter()
    if store.seconds_to_due() == 0.0:
        store.promote()
    assert DUE in store.ready_queues(Lane.TASK)
    claims = claim(store, DUE, limit)
    return time.perf_counter() - began, claims


def hold_snapshot(seconds: float, rate: int = 200) -> None:
    """Run jobs at *rate* a second while another transaction holds an old snapshot.

    And as many, in turn, in the database of which it holds none. (MariaDB has one history for all
    its databases: there both are under the snapshot.)
    """
    from django.db import connection

    from django_workqueue.store import get_store

    stores = [get_store(alias) for alias in ALIASES]
    for store in stores:
        truncate(store)
    other = connection.copy()
    with other.cursor() as cursor:
        cursor.execute("BEGIN" if connection.vendor == "sqlite" else SNAPSHOT[connection.vendor])
        cursor.execute("SELECT COUNT(*) FROM workqueue_livejob")
        cursor.fetchall()
    took: list[list[float]] = [[], []]
    began = time.monotonic()
    while (now := time.monotonic() - began) < seconds:
        time.sleep(max(len(took[0]) * 10 / rate - now, 0.0))
        for store, times in zip(stores, took, strict=True):
            times.append(snapshot_pass(store))
    held = time.monotonic() - began
    for store, times in zip(stores, took, strict=True):
        late = times[-len(times) // 10 :]
        say(
            f"{store.alias}: {'snapshot held' if store is stores[0] else 'none'} for {held:.0f} s "
            f"at {10 * len(times) / held:.0f} jobs/s: claim pass p50 "
            f"{1000 * percentile(late, 50):.2f} ms, p95 {1000 * percentile(late, 95):.2f} ms in "
            f"the last tenth; {1000 * percentile(times, 95):.2f} ms in all"
        )
    other.close()


def snapshot_pass(store: BaseStore) -> float:
    """Enqueue ten jobs and take them through each end; return how long the claim pass took."""
    from django_workqueue.states import DeathReason, HeldReason
    from tests.factories import error

    took, claims = timed_claim(store, 20)
    fresh = [each for each in claims if each.attempt == 1 and not each.unknown_since]
    if fresh:
        retried, released, held, buried, *rest = fresh
        store.retry(retried, 0.05, error(retried))
        store.release(released, delay_seconds=0.05)
        store.hold(held, HeldReason.UNKNOWN, 0.05, error(held))
        store.bury(buried, DeathReason.TERMINAL, error(buried))
        store.unhold(HeldReason.UNKNOWN, [held.task])
        claims = [*rest, *(each for each in claims if each not in fresh)]
    settle(store, claims)
    return took


SNAPSHOT: Final = {
    "postgresql": "BEGIN ISOLATION LEVEL REPEATABLE READ",
    "mysql": "START TRANSACTION WITH CONSISTENT SNAPSHOT",
}


def job(**options: Any) -> Any:
    from tests.factories import new_job

    return new_job(**options)


def claim(store: BaseStore, queue_name: str, limit: int) -> list[Claim]:
    from tests import factories

    return factories.claim(store, queue_name=queue_name, limit=limit, now=None)


def settle(store: BaseStore, claims: list[Claim]) -> None:
    from django_workqueue.store import Ack

    store.ack([Ack(claim=each, value="null") for each in claims])


def fill(store: BaseStore, rows: int, **options: Any) -> None:
    """Insert *rows* jobs alike: some by the store, which are then copied by the database."""
    from django_workqueue.models import LiveJob

    first = min(rows, FEW)
    numbered = options.get("seq") is not None
    store.insert([job(**options | ({"seq": n + 2} if numbered else {})) for n in range(first)])
    multiply(store, LiveJob, first, rows, queue_name=options["queue_name"])


def multiply(store: BaseStore, model: Any, count: int, wanted: int, **where: str) -> None:
    """Copy the *count* rows that there are *where*, under other ids, until there are *wanted*."""
    q = store.quote
    columns = [field.attname for field in model._meta.local_fields if not field.primary_key]
    values = [f"{q(name)} + %s" if name == "seq" else q(name) for name in columns]
    condition = " AND ".join(f"{q(name)} = %s" for name in where)
    sql = (
        f"INSERT INTO {q(model._meta.db_table)} ({', '.join(map(q, ('id', *columns)))}) "
        f"SELECT {NEW_ID[store.connection.vendor]}, {', '.join(values)} "
        f"FROM {q(model._meta.db_table)} WHERE {condition or '1 = 1'} LIMIT %s"
    )
    while count < wanted:
        added = min(count, wanted - count)
        shift = [count] if "seq" in columns else []
        with store.connection.cursor() as cursor:
            cursor.execute(sql, [*shift, *where.values(), added])
        count += added


NEW_ID: Final = {
    "postgresql": "gen_random_uuid()",
    "mysql": "UUID()",
    "sqlite": "lower(hex(randomblob(16)))",
}


def ready(store: BaseStore, rows: int) -> None:
    """A backlog in three queues, one of them that of the due jobs, behind them."""
    for name in (DUE, "second", "third"):
        fill(store, rows // 3, queue_name=name, priority=-1)


def future(store: BaseStore, rows: int) -> None:
    """Of the highest priority, in the queue of the due jobs."""
    fill(store, rows, queue_name=DUE, priority=100, delay_seconds=86_400)


def paused(store: BaseStore, rows: int) -> None:
    fill(store, rows, queue_name="paused")
    store.pause("paused")


def payload(store: BaseStore, rows: int) -> None:
    from django_workqueue.states import Lane

    fill(store, rows, queue_name=DUE, lane=Lane.PAYLOAD)


def unknown(store: BaseStore, rows: int) -> None:
    """Held, as of an unknown task, in the queue of the due jobs."""
    from django_workqueue.models import LiveJob

    # Changed before they are copied: a change of all would leave as many old entries of indexes.
    fill(store, min(rows, FEW), queue_name=DUE)
    change(store, "state = 'held', held_reason = 'unknown', unknown_since = enqueued_at")
    multiply(store, LiveJob, min(rows, FEW), rows, queue_name=DUE)


def keyed(store: BaseStore, rows: int) -> None:
    """Messages behind one failing key."""
    from django_workqueue.states import Lane

    fill(store, rows, queue_name="outbox:events", lane=Lane.OUTBOX, order_key="k", seq=2)


def expired(store: BaseStore, rows: int) -> None:
    """Ready, expired and not swept, in a queue of their own."""
    fill(store, rows, queue_name="expired", expires_seconds=0.001)


def running(store: BaseStore, rows: int) -> None:
    """Held by another worker, of the same queue."""
    from django_workqueue.models import LiveJob

    store.insert([job(queue_name=DUE) for _ in range(FEW)])
    claim(store, DUE, FEW)
    multiply(store, LiveJob, FEW, rows, queue_name=DUE)


def finished(store: BaseStore, rows: int) -> None:
    from django_workqueue.models import Result

    store.insert([job(queue_name=DUE) for _ in range(FEW)])
    settle(store, claim(store, DUE, FEW))
    multiply(store, Result, FEW, rows, queue_name=DUE)


def dead(store: BaseStore, rows: int) -> None:
    from django_workqueue.models import DeadJob
    from tests.factories import dead as bury

    bury(store, now=None)
    multiply(store, DeadJob, 1, rows)


KINDS: Final[dict[str, Callable[[BaseStore, int], None]]] = {
    kind.__name__: kind
    for kind in (ready, future, paused, payload, unknown, keyed, expired, running, finished, dead)
}


def change(store: BaseStore, changes: str) -> None:
    with store.connection.cursor() as cursor:
        cursor.execute(f"UPDATE workqueue_livejob SET {changes}")


def truncate(store: BaseStore) -> None:
    verb = "DELETE FROM" if store.connection.vendor == "sqlite" else "TRUNCATE TABLE"
    with store.connection.cursor() as cursor:
        for table in ("livejob", "deadjob", "result", "queue"):
            cursor.execute(f"{verb} workqueue_{table}")


def analyze(store: BaseStore) -> None:
    """Let the planner know, as a server does by itself in a minute."""
    vendor = store.connection.vendor
    with store.connection.cursor() as cursor:
        for table in ("livejob", "deadjob", "result"):
            verb = "ANALYZE TABLE" if vendor == "mysql" else "ANALYZE"
            cursor.execute(f"{verb} workqueue_{table}")
            if cursor.description:
                cursor.fetchall()
        if vendor == "postgresql":
            cursor.execute("VACUUM workqueue_livejob")


if __name__ == "__main__":
    main()
