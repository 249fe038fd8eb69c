"""Workers outlive their database (G12), and its standing still is not their death (G5)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection

from django_workqueue.models import DeadJob, LiveJob, Result
from tests.crash import tasks
from tests.crash.fleet import Fleet
from tests.crash.outages import OwnServer, cut_all, locked, own_server
from tests.ledger import END, START, Ledger
from tests.processes import SETTINGS, Process, wait_until
from tests.timescale import LEASE_SECONDS, PATIENCE_SECONDS, SCALE

pytestmark = pytest.mark.django_db(transaction=True)

PROGRESS_SECONDS = 10.0
"""Within which work goes on after a database came back (G12)."""


def naps(ledger: Ledger, length: float, count: int) -> list[uuid.UUID]:
    calls: Any = [((str(ledger), length), {})] * count
    return [uuid.UUID(each.id) for each in tasks.nap.enqueue_many(calls)]


def started(ledger: Ledger, count: int) -> Callable[[], bool]:
    return lambda: len(ledger.entries(START)) >= count


def all_ended() -> bool:
    return not LiveJob.objects.exists()


def assert_each_done_once(ledger: Ledger, ids: list[uuid.UUID], workers: list[Process]) -> None:
    """Assert that every job was started once and finished, and that no worker ended."""
    assert not any(worker.ended for worker in workers)
    assert not DeadJob.objects.exists()
    rows: Any = Result.objects.filter(pk__in=ids).values_list("outcome", "attempts", "errors")
    assert list(rows) == [("succeeded", 1, [])] * len(ids)
    assert ledger.started() == {str(job_id): 1 for job_id in ids}


# O3: one and a half leases without the database


def outage_with_idle_workers(
    fleet: Fleet, ledger: Ledger, *, cut: bool, **sweepers: Any
) -> Callable[[], list[uuid.UUID]]:
    """Start one worker of eight threads and four that only sweep.

    Returns a function that lets eight jobs of three leases meet an outage of one and a half: what
    was asked of the database meanwhile is done at its end or, with *cut*, has failed.
    The extender of the one worker reconnects as late as it may.
    """
    late: Any = {"WORKQUEUE_TEST_WITHOUT": "prompt_extending", "WORKQUEUE_TEST_BUSY_SECONDS": "0.1"}
    fleet.start("--threads", "8", "--no-sweep", **late)
    settings = {**SETTINGS, "SWEEP_SECONDS": SETTINGS["SWEEP_SECONDS"] / 5}
    fleet.start("--queues", "none", count=4, settings=settings, **{**late, **sweepers})

    def meet() -> list[uuid.UUID]:
        before = len(ledger.entries(START))
        ids = naps(ledger, 3 * LEASE_SECONDS, 8)
        wait_until(started(ledger, before + 8), "eight starts")
        with locked():
            time.sleep(1.5 * LEASE_SECONDS)
            if cut:
                cut_all()
        # A job that was taken back runs alone, after the others: that is not waited for.
        wait_until(lambda: taken_back() or all_ended(), "the end of every job")
        return ids

    return meet


def taken_back() -> bool:
    return LiveJob.objects.filter(suspect=True).exists()


@pytest.mark.parametrize("cut", [False, True], ids=["stall", "outage"])
def test_an_outage_longer_than_the_lease_starts_no_job_twice(
    cut: bool, fleet: Fleet, ledger: Ledger
) -> None:
    """Case O3."""
    ids = outage_with_idle_workers(fleet, ledger, cut=cut)()
    assert not taken_back()
    assert_each_done_once(ledger, ids, fleet.workers)


def test_control_without_the_hold_off_an_outage_starts_jobs_twice(
    fleet: Fleet, ledger: Ledger
) -> None:
    """Case O3, the control."""
    without: Any = {"WORKQUEUE_TEST_WITHOUT": "hold_off,prompt_extending"}
    meet = outage_with_idle_workers(fleet, ledger, cut=True, **without)
    for _ in range(4):
        meet()
        if taken_back():
            wait_until(lambda: max(ledger.started().values()) > 1, "a second start")
            return
    pytest.fail("four outages did no harm: the test beside this one tests nothing")


# Cut connections


@pytest.mark.vendor("postgresql", "mysql")
def test_connections_cut_every_second_cost_nothing(fleet: Fleet, ledger: Ledger) -> None:
    assert_cuts_cost_nothing(fleet, ledger, cut_count=4)


@pytest.mark.soak
@pytest.mark.vendor("postgresql", "mysql")
def test_half_a_minute_of_cuts(fleet: Fleet, ledger: Ledger) -> None:
    assert_cuts_cost_nothing(fleet, ledger, cut_count=30)


def assert_cuts_cost_nothing(fleet: Fleet, ledger: Ledger, *, cut_count: int) -> None:
    workers = fleet.start("--threads", "4", count=2)
    ids: list[uuid.UUID] = []
    cut_connections = 0
    for _ in range(cut_count):
        ids += naps(ledger, 0.05, 40)
        time.sleep(1.0)
        cut_connections += cut_all()
    last = time.monotonic()
    ids += naps(ledger, 0.05, 8)
    wait_until(all_ended, "the end of every job")
    assert time.monotonic() - last < PROGRESS_SECONDS * SCALE
    assert cut_connections >= cut_count
    assert "database cannot be used" in fleet.output()
    assert_each_done_once(ledger, ids, workers)


@pytest.mark.vendor("postgresql")
def test_a_listener_that_was_cut_listens_again(fleet: Fleet, ledger: Ledger) -> None:
    """Case E 111: with a poll of half a minute only the wake-up can be in time."""
    fleet.start("--poll", "30")
    for count in (1, 2, 3):
        # The first shows that it listens, which its start block does not.
        if count == 2:
            assert cut_all() >= 1
        naps(ledger, 0.0, 1)
        wait_until(started(ledger, count), "a start long before the poll")
        wait_until(all_ended, "its end")


# PostgreSQL stopped


@pytest.fixture
def server(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnServer]:
    with own_server() as server:
        monkeypatch.setenv("WORKQUEUE_TEST_PG_SOCKET", str(server.folder))
        monkeypatch.delenv("WORKQUEUE_TEST_DATABASE_URL", raising=False)
        monkeypatch.setenv("WORKQUEUE_TEST_DATABASE", "postgresql")
        yield server
        # Before the server ends, so that none of them has to do without it.
        for worker in fleet.workers:
            worker.kill()


@pytest.mark.vendor("postgresql")
@pytest.mark.parametrize("leases", [0.1, 1.5])
def test_workers_go_on_after_postgresql_was_stopped_in_immediate_mode(
    leases: float, fleet: Fleet, ledger: Ledger, server: OwnServer
) -> None:
    workers = fleet.start("--threads", "4", count=2)
    ids = naps(ledger, 0.05, 100)
    wait_until(lambda: len(ledger.entries(END)) > 8, "some ends")
    server.stop("immediate")
    connection.close()
    time.sleep(leases * LEASE_SECONDS)
    before = len(ledger.entries(START))
    server.start()
    took = wait_until(started(ledger, before + 1), "progress")
    assert took < PROGRESS_SECONDS
    ids += naps(ledger, 0.05, 8)
    wait_until(all_ended, "the end of every job")
    assert "database cannot be used" in fleet.output()
    assert_each_done_once(ledger, ids, workers)


@pytest.mark.vendor("postgresql")
def test_a_server_that_is_read_only_at_the_ack_delays_it(
    fleet: Fleet, ledger: Ledger, server: OwnServer
) -> None:
    """Cases A 34 and E 113: 25006 on a connection that is kept."""
    workers = fleet.start("--threads", "4", count=2)
    ids = naps(ledger, LEASE_SECONDS, 4)
    wait_until(started(ledger, 4), "four starts")
    read_only("on")
    wait_until(lambda: len(ledger.entries(END)) == 4, "the ends of the bodies")
    wait_until(lambda: "database cannot be used" in fleet.output(), "an ack that is refused")
    time.sleep(1.5 * LEASE_SECONDS)
    assert not Result.objects.exists()
    read_only("off")
    took = wait_until(all_ended, "the acks")
    assert took < PROGRESS_SECONDS
    assert_each_done_once(ledger, ids, workers)


def read_only(value: str) -> None:
    """Let every transaction, on connections that are open too, be read-only or not."""
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
        cursor.execute("SELECT pg_reload_conf()")


# SQLite


@pytest.mark.vendor("sqlite")
def test_a_writer_that_holds_sqlites_lock_for_longer_than_the_busy_timeout(
    fleet: Fleet, ledger: Ledger
) -> None:
    worker = fleet.start_one("--threads", "2", WORKQUEUE_TEST_BUSY_SECONDS="0.1")
    ids = naps(ledger, 0.5 * LEASE_SECONDS, 2)
    wait_until(started(ledger, 2), "two starts")
    with locked():
        worker.wait_for("database cannot be used")
        assert len(ledger.entries(END)) == 2
    took = wait_until(all_ended, "the acks")
    assert took < PATIENCE_SECONDS / 2
    assert_each_done_once(ledger, ids, fleet.workers)
