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
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.benchmarks.harness import arguments, database, say

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
    )
    with database(given.database), other_database():
        for kind in filter(None, given.kinds.split(",")):
            few, many = measure(kind, given.rows)
            say(
                f"{kind:10} {FEW:,} rows {1000 * few:.2f} ms, {given.rows:,} rows "
                f"{1000 * many:.2f} ms, ratio {many / few:.2f}"
            )


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
    timed, claims = timed_claim(store, 10, limit=10)
    assert len(claims) == 10
    settle(store, claims)
    return timed.look_seconds + timed.claim_seconds


class Timed(NamedTuple):
    """What a claim pass took: to see which queues have ready jobs, and to claim from one."""

    look_seconds: float
    claim_seconds: float


def timed_claim(store: BaseStore, count: int, *, limit: int) -> tuple[Timed, list[Claim]]:
    """Enqueue *count* jobs, then claim up to *limit* as a worker does; return the time and them."""
    from django_workqueue.states import Lane

    store.insert([job(queue_name=DUE) for _ in range(count)])
    began = time.perf_counter()
    ready, _ = store.look(Lane.TASK)
    assert DUE in ready
    looked = time.perf_counter()
    claims = claim(store, DUE, limit)
    return Timed(looked - began, time.perf_counter() - looked), claims


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
