"""Each statement walks the index that its docstring names (G14), and batches keep their size (O2).

Read from the plan of the very statement the store sends, with its parameters.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import pytest
from django.db import connection, transaction

from django_workqueue.models import LiveJob
from django_workqueue.states import HeldReason, Lane
from django_workqueue.store import Ack, BaseStore, Claim, get_store
from tests.factories import TASK, at, claim, error, insert, new_job

LIVE: Final = LiveJob._meta.db_table

EXPLAIN: Final = {"sqlite": "EXPLAIN QUERY PLAN ", "postgresql": "EXPLAIN ", "mysql": "EXPLAIN "}
HELD_ROWS: Final = {
    "sqlite": f"sqlite_autoindex_{LIVE}_1",
    "postgresql": f"{LIVE}_pkey",
    "mysql": "PRIMARY",
}
"""The primary key: rows of a holder are found by their ids."""

SORTS: Final = {"sqlite": "TEMP B-TREE", "postgresql": "Sort", "mysql": "filesort"}


class Plans:
    """Explains each statement on live jobs just before it is sent."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def __call__(
        self, execute: Callable[..., Any], sql: str, params: Any, many: Any, context: Any
    ) -> Any:
        if LIVE in sql:
            execute(EXPLAIN[connection.vendor] + sql, params, many, context)
            lines = context["cursor"].fetchall()
            self.found.append("\n".join(str(line) for line in lines))
        return execute(sql, params, many, context)


def plans_of(call: Callable[[], Any]) -> list[str]:
    plans = Plans()
    with connection.execute_wrapper(plans):
        call()
    assert plans.found
    return plans.found


def analyze() -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"ANALYZE TABLE {LIVE}" if connection.vendor == "mysql" else "ANALYZE")
        if connection.vendor == "mysql":
            cursor.fetchall()


@pytest.fixture
def plain(transactional_db: None) -> BaseStore:
    """A store without the look at every row after each call: there are thousands here.

    In autocommit, since ANALYZE TABLE commits on MariaDB.
    """
    return get_store()


@pytest.fixture
def taken(plain: BaseStore) -> list[Claim]:
    """Return 200 running jobs among 5,000 of every state and queue."""
    running = [new_job(queue_name="running", expires_seconds=9000.0) for _ in range(200)]
    plain.insert(running, now=at(0))
    taken = claim(plain, queue_name="running", limit=200)
    for each in taken[:50]:
        plain.hold(each, HeldReason.UNKNOWN, 60, error(each), now=at(1))
    jobs = [
        new_job(
            queue_name=f"q{number % 4}",
            kind="k" if number % 2 else "",
            priority=number % 7,
            run_after=at(100 + number) if number % 3 == 0 else None,
            expires_seconds=9000.0 + number if number % 10 == 0 else None,
        )
        for number in range(4800)
    ]
    plain.insert(jobs, now=at(0))
    analyze()
    return taken[50:]


def test_each_statement_walks_the_index_it_names(plain: BaseStore, taken: list[Claim]) -> None:
    calls: dict[str, tuple[str, Callable[[], Any]]] = {
        "claim": ("workqueue_live_ready", lambda: claim(plain, queue_name="q1", limit=5)),
        "claim of a kind": (
            "workqueue_live_ready",
            lambda: claim(plain, queue_name="q1", kind="k", exclude_tasks=["a", "b"]),
        ),
        "ready_queues": ("workqueue_live_ready", lambda: plain.ready_queues(Lane.TASK, now=at(1))),
        "look": (
            "workqueue_live_ready|workqueue_live_scheduled",
            lambda: plain.look(Lane.TASK, now=at(1)),
        ),
        "seconds_to_due": ("workqueue_live_scheduled", lambda: plain.seconds_to_due(now=at(1))),
        "promote": ("workqueue_live_scheduled", lambda: plain.promote(limit=50, now=at(120))),
        "unhold": (
            "workqueue_live_held",
            lambda: plain.unhold(HeldReason.UNKNOWN, [TASK], now=at(1)),
        ),
        "extend": (HELD_ROWS[connection.vendor], lambda: plain.extend(taken, 30, now=at(1))),
        "ack": (
            HELD_ROWS[connection.vendor],
            lambda: plain.ack([Ack(claim=each, value="1") for each in taken[:9]], now=at(1)),
        ),
        "glance": ("workqueue_live_running", plain.glance),
        "reclaim": ("workqueue_live_running", lambda: plain.reclaim(limit=5, now=at(31))),
        "expire": ("workqueue_live_expires", lambda: plain.expire(limit=5, now=at(9100))),
    }
    for name, (index, call) in calls.items():
        first = plans_of(call)[0]
        assert re.search(rf"\b({index})\b", first), f"{name}: {first:.2000}"


@pytest.mark.parametrize("limit", [1, 5, 50])
def test_a_claim_sorts_nothing(plain: BaseStore, taken: list[Claim], limit: int) -> None:
    # Case 123: a sort reads, and on MariaDB locks, every candidate.
    for plan in plans_of(lambda: claim(plain, queue_name="q1", limit=limit)):
        assert SORTS[connection.vendor] not in plan


@pytest.mark.vendor("postgresql")
@pytest.mark.parametrize("joins", ["on", "off"])
def test_stale_statistics_do_not_widen_a_batch(plain: BaseStore, joins: str) -> None:
    # O2: seen with a subquery in place of the CTE: LIMIT 5 took 61 of 61.
    first = insert(plain)
    analyze()
    plain.insert([new_job() for _ in range(60)], now=at(0))
    with connection.cursor() as cursor:
        cursor.execute(f"SET enable_hashjoin = {joins}; SET enable_mergejoin = {joins}")
    five = claim(plain, limit=5, lease_seconds=4)
    assert len(five) == 5
    assert five[0].id == first
    assert plain.live().filter(state="running").count() == 5
    assert len(plain.extend(five[:2], 4, now=at(0))) == 2
    claim(plain, limit=56, lease_seconds=5)
    assert len(plain.reclaim(limit=5, now=at(5))) == 5
    assert plain.live().filter(state="running").count() == 56
    assert plain.ack([Ack(claim=each, value="1") for each in five], now=at(6)) == set()
    with connection.cursor() as cursor:
        cursor.execute("RESET enable_hashjoin; RESET enable_mergejoin")


def reads() -> int:
    """Return how many live rows this connection has read lately (PostgreSQL)."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = %s",
            [LIVE],
        )
        return int(cursor.fetchone()[0])


@pytest.mark.vendor("postgresql")
def test_a_glance_reads_no_backlog_where_statistics_still_know_of_running_jobs(
    plain: BaseStore,
) -> None:
    plain.insert([new_job() for _ in range(3000)], now=at(0))
    taken = claim(plain, limit=2000)
    analyze()
    assert len(plain.ack([Ack(claim=each, value="1") for each in taken], now=at(1))) == 2000
    plain.insert([new_job() for _ in range(2000)], now=at(0))
    before = reads()
    assert plain.glance()[1] is False
    assert reads() - before <= 10


@pytest.mark.vendor("postgresql")
def test_stale_statistics_do_not_widen_a_read(plain: BaseStore) -> None:
    # Seen: the update of each claimed row read all that was ready, 1,000,000 reads for 100 rows.
    insert(plain)
    analyze()
    plain.insert([new_job() for _ in range(3000)], now=at(0))
    plain.insert([new_job(delay_seconds=60) for _ in range(3000)], now=None)

    with transaction.atomic():
        with connection.cursor() as cursor:
            # A table as small as this one is read whole, rightly.
            cursor.execute("SET LOCAL enable_seqscan = off")
        claim(plain, limit=1000)
        before = reads()
        taken = claim(plain, limit=10)
        assert reads() - before <= 30, "a claim"
        before = reads()
        assert len(plain.extend(taken, 30, now=at(1))) == 10
        assert reads() - before <= 30, "an extension"
        before = reads()
        assert len(plain.ack([Ack(claim=each, value="1") for each in taken], now=at(2))) == 10
        assert reads() - before <= 30, "an ack"
        before = reads()
        assert len(plain.look(Lane.TASK)[0]) == 1
        assert reads() - before <= 30, "a look"


@pytest.mark.vendor("postgresql")
def test_a_look_for_queues_steps_over_nothing_that_was_claimed_before(plain: BaseStore) -> None:
    # Entries that no server may remove yet, as this transaction sees them: an old snapshot's, too.
    def entries() -> int:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_stat_get_xact_tuples_returned('workqueue_live_ready'::regclass)"
            )
            return int(cursor.fetchone()[0])

    empty()
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
        plain.insert([new_job() for _ in range(500)], now=at(0))
        assert len(claim(plain, limit=500)) == 500
        plain.insert([new_job() for _ in range(3)], now=at(1))
        before = entries()
        assert plain.ready_queues(Lane.TASK) == ["default"]
        looked = entries() - before
        assert len(claim(plain, limit=3)) == 3
        claimed = entries() - before - looked
    assert looked <= 3
    assert claimed >= 500, "the control"


def empty() -> None:
    """Leave nothing in the files of the table and its indexes of what other tests had in them."""
    with connection.cursor() as cursor:
        cursor.execute(f"VACUUM FULL {LIVE}")


def write_plan(call: Callable[[], Any]) -> str:
    """Return the plan of the one update that *call* sends."""
    (plan,) = (plan for plan in plans_of(call) if "Update on" in plan)
    return plan


@pytest.mark.vendor("postgresql")
@pytest.mark.parametrize("known", ["one row", "all rows"])
def test_what_becomes_ready_is_found_by_its_id(plain: BaseStore, known: str) -> None:
    # Seen: it was looked for a second time in the index of its state, past every entry that an
    # old snapshot kept there; or the table was read for a long list.
    empty()
    insert(plain, run_after=at(1))
    analyze()
    plain.insert([new_job(run_after=at(1 + number)) for number in range(4000)], now=at(0))
    if known == "all rows":
        analyze()
    by_id = rf"Index (Cond|Scan).*\b{LIVE}_pkey\b"
    assert re.search(by_id, write_plan(lambda: plain.promote(limit=500, now=at(5000))))
    unknown = claim(plain, limit=9)
    for each in unknown:
        plain.hold(each, HeldReason.UNKNOWN, 1, error(each), now=at(0))
    unhold = write_plan(lambda: plain.unhold(HeldReason.UNKNOWN, [TASK], now=at(1)))
    assert re.search(by_id, unhold)
    held = write_plan(lambda: plain.hold_ready(HeldReason.UNKNOWN, [TASK], 1, now=at(1)))
    assert re.search(by_id, held)


@pytest.mark.parametrize("verb", ["promote", "expire", "purge"])
def test_a_batch_is_no_wider_than_asked_with_stale_statistics(plain: BaseStore, verb: str) -> None:
    # O2.
    insert(plain, run_after=at(1), expires_seconds=1)
    analyze()
    options = {"run_after": at(1), "expires_seconds": 1.0}
    plain.insert([new_job(**options) for _ in range(60)], now=at(0))
    if verb == "promote":
        assert plain.promote(limit=5, now=at(1)) == 5
        assert plain.live().filter(state="ready").count() == 5
    else:
        assert len(plain.expire(limit=5, now=at(2))) == 5
        assert (plain.live().count(), plain.dead().count()) == (56, 5)
    if verb == "purge":
        assert plain.purge(0, limit=3, now=at(2))["dead"] == 3
        assert plain.dead().count() == 2
