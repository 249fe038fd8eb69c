"""Claim time against what else lies in the tables: `python -m tests.benchmarks.growth`.

Ten jobs are due each time; beside them, one kind of row at a time, from a thousand to --rows.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tests.benchmarks.harness import arguments, database, percentile, say

if TYPE_CHECKING:
    from django_workqueue.store import BaseStore, Claim

FEW: Final = 1_000
CLAIMS: Final = 60
BATCH: Final = 5_000
DUE: Final = "due"


def main() -> None:
    given = arguments(
        "Claim time against rows of each kind.",
        rows={"type": int, "default": 1_000_000},
        kinds={"default": ",".join(KINDS), "help": "with commas"},
        snapshot={"type": float, "default": 0.0, "help": "seconds an old snapshot is held"},
    )
    with database(given.database):
        for kind in filter(None, given.kinds.split(",")):
            few, many = (measure(kind, rows) for rows in (FEW, given.rows))
            say(
                f"{kind:10} {FEW:,} rows {1000 * few:.2f} ms, {given.rows:,} rows "
                f"{1000 * many:.2f} ms, ratio {many / few:.2f}"
            )
        if given.snapshot:
            hold_snapshot(given.snapshot)


def measure(kind: str, rows: int) -> float:
    """Return the median seconds of a claim pass of ten jobs beside *rows* rows of a kind."""
    from django_workqueue.store import get_store

    truncate()
    store = get_store()
    KINDS[kind](store, rows)
    analyze()
    return statistics.median(claim_pass(store) for _ in range(CLAIMS))


def claim_pass(store: BaseStore) -> float:
    """Enqueue ten jobs, and return how long it takes to find and claim them."""
    from django_workqueue.states import Lane

    store.insert([job(queue_name=DUE) for _ in range(10)])
    began = time.perf_counter()
    if store.seconds_to_due() == 0.0:
        store.promote()
    assert DUE in store.ready_queues(Lane.TASK)
    claims = claim(store, DUE, 10)
    took = time.perf_counter() - began
    assert len(claims) == 10
    settle(store, claims)
    return took


def hold_snapshot(seconds: float, rate: int = 200) -> None:
    """Run jobs at *rate* a second while another transaction holds an old snapshot."""
    from django.db import connection

    from django_workqueue.store import get_store

    truncate()
    store, other = get_store(), connection.copy()
    with other.cursor() as cursor:
        cursor.execute("BEGIN" if connection.vendor == "sqlite" else SNAPSHOT[connection.vendor])
        cursor.execute("SELECT COUNT(*) FROM workqueue_livejob")
        cursor.fetchall()
    took: list[float] = []
    began = time.monotonic()
    for number in range(int(seconds * rate / 10)):
        time.sleep(max(began + number * 10 / rate - time.monotonic(), 0.0))
        took.append(claim_pass(store))
    late = took[-len(took) // 10 :]
    say(
        f"snapshot held for {time.monotonic() - began:.0f} s at {rate} jobs/s: claim pass p50 "
        f"{1000 * percentile(late, 50):.2f} ms, p95 {1000 * percentile(late, 95):.2f} ms in the "
        f"last tenth, p95 {1000 * percentile(took[:60], 95):.2f} ms in the first 60"
    )
    other.close()


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
    for start in range(0, rows, BATCH):
        store.insert([job(**options) for _ in range(min(BATCH, rows - start))])


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
    fill(store, rows, queue_name=DUE)
    change("state = 'held', held_reason = 'unknown', unknown_since = enqueued_at")


def keyed(store: BaseStore, rows: int) -> None:
    """Messages behind one failing key."""
    from django_workqueue.states import Lane

    fill(store, rows, queue_name="outbox:events", lane=Lane.OUTBOX, order_key="k", seq=2)


def expired(store: BaseStore, rows: int) -> None:
    """Ready, expired and not swept, in a queue of their own."""
    fill(store, rows, queue_name="expired", expires_seconds=0.001)


def finished(store: BaseStore, rows: int) -> None:
    fill(store, rows, queue_name=DUE)
    while claims := claim(store, DUE, 1_000):
        settle(store, claims)


def dead(store: BaseStore, rows: int) -> None:
    """Copied from one dead job: burying is one job at a time."""
    from django.db import connection

    from django_workqueue.ids import new_id
    from django_workqueue.models import DeadJob
    from tests.factories import dead as bury

    bury(store, now=None)
    row = DeadJob.objects.get()
    for start in range(0, rows, BATCH):
        copies = []
        for _ in range(min(BATCH, rows - start)):
            row.pk = new_id()
            copies.append(DeadJob(**{f.attname: getattr(row, f.attname) for f in row._meta.fields}))
        DeadJob.objects.using(connection.alias).bulk_create(copies)


KINDS: Final[dict[str, Callable[[BaseStore, int], None]]] = {
    kind.__name__: kind
    for kind in (ready, future, paused, payload, unknown, keyed, expired, finished, dead)
}


def change(changes: str) -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE workqueue_livejob SET {changes}")


def truncate() -> None:
    from django.db import connection

    verb = "DELETE FROM" if connection.vendor == "sqlite" else "TRUNCATE TABLE"
    with connection.cursor() as cursor:
        for table in ("livejob", "deadjob", "result", "queue"):
            cursor.execute(f"{verb} workqueue_{table}")


def analyze() -> None:
    """Let the planner know, as a server does by itself in a minute."""
    from django.db import connection

    with connection.cursor() as cursor:
        for table in ("livejob", "deadjob", "result"):
            verb = "ANALYZE TABLE" if connection.vendor == "mysql" else "ANALYZE"
            cursor.execute(f"{verb} workqueue_{table}")
            if cursor.description:
                cursor.fetchall()
        if connection.vendor == "postgresql":
            cursor.execute("VACUUM workqueue_livejob")


if __name__ == "__main__":
    main()
