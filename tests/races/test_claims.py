"""Claims at once: no job twice, and no "nothing" while there is one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from django.db import connection, connections, transaction

from django_workqueue.store import Ack, BaseStore, Claim, get_store
from tests.factories import claim, insert, new_job
from tests.races.conftest import Together
from tests.sound import rows
from tests.timescale import PATIENCE_SECONDS


def test_of_eight_claimers_one_gets_the_job(store: BaseStore, together: Together) -> None:
    for _ in range(10):
        job_id = insert(store, now=None)
        taken = together([lambda each: claim(each, now=None) for _ in range(8)])
        assert sorted(map(len, taken)) == [0, 0, 0, 0, 0, 0, 0, 1]
        assert rows()["live"][job_id]["attempt"] == 1


def test_control_a_claim_that_reads_and_then_saves_gives_one_job_to_several(
    store: BaseStore, together: Together
) -> None:
    job_id = insert(store, now=None)
    looked = threading.Barrier(8, timeout=PATIENCE_SECONDS)

    def naive(each: BaseStore) -> int:
        found = each.live().filter(pk=job_id, state="ready").count()
        looked.wait()
        return found

    assert sum(together([naive] * 8)) == 8


@pytest.mark.timeout(10 * PATIENCE_SECONDS)
def test_three_hundred_jobs_and_eight_processes(store: BaseStore) -> None:
    # L13, case 10.
    jobs = [new_job() for _ in range(300)]
    store.insert(jobs)
    with ExitStack() as ended:
        processes = [ended.enter_context(_claimer(f"w{n}", 1 + n % 4)) for n in range(8)]
        for each in processes:
            assert each.stdout is not None
            assert each.stdout.readline() == "connected\n"
        for each in processes:
            assert each.stdin is not None
            each.stdin.close()
            each.stdin = None  # communicate() would close it again.
        outputs = [each.communicate(timeout=5 * PATIENCE_SECONDS)[0] for each in processes]
    assert [each.returncode for each in processes] == [0] * 8
    taken = Counter(line for output in outputs for line in output.split())
    assert taken == Counter(str(job.id) for job in jobs)
    assert {job["attempt"] for job in rows()["live"].values()} == {1}


@contextmanager
def _claimer(name: str, limit: int) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.races.claimers", name, str(limit)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()  # Nothing, where it has ended. It would claim the next test's jobs.
        process.wait()


@pytest.mark.vendor("postgresql", "mysql")
def test_a_claim_passes_over_what_another_has_locked(store: BaseStore) -> None:
    # Case 123. SQLite has one writer: the second claim waits for the first.
    store.insert([new_job() for _ in range(20)])
    taken = _claim_beside_an_open_one(get_store())
    assert [len(each) for each in taken] == [5, 5]
    assert not {each.id for each in taken[0]} & {each.id for each in taken[1]}


@pytest.mark.vendor("mysql")
def test_control_a_claim_that_looks_once_finds_nothing_beside_an_open_one(
    store: BaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.insert([new_job() for _ in range(20)])
    blinkered: Any = get_store()
    look, looks = blinkered._candidates, [1]
    monkeypatch.setattr(
        blinkered, "_candidates", lambda *args: look(*args) if looks and looks.pop() else []
    )
    assert [len(each) for each in _claim_beside_an_open_one(blinkered)] == [5, 0]


def _claim_beside_an_open_one(second: BaseStore) -> tuple[list[Claim], list[Claim]]:
    """Claim five with *second* while a claim of five in another thread is not committed."""
    holding, seen = threading.Event(), threading.Event()
    first: list[Claim] = []

    def hold() -> None:
        try:
            with transaction.atomic():
                first.extend(claim(get_store(), now=None, limit=5))
                holding.set()
                seen.wait(PATIENCE_SECONDS)
        finally:
            connections.close_all()

    holder = threading.Thread(target=hold)
    holder.start()
    assert holding.wait(PATIENCE_SECONDS)
    try:
        return first, claim(second, now=None, limit=5)
    finally:
        seen.set()
        holder.join(PATIENCE_SECONDS)


def test_two_workers_of_one_name_share_nothing(store: BaseStore, together: Together) -> None:
    store.insert([new_job() for _ in range(40)])
    first, second = together(
        [lambda each: claim(each, now=None, worker_id="same", limit=20) for _ in range(2)]
    )
    assert len({each.id for each in (*first, *second)}) == 40
    # Neither settles with its own token what the other holds.
    mixed = [_with_token(mine, theirs.token) for mine, theirs in zip(first, second, strict=True)]
    assert store.ack([Ack(claim=each, value="1") for each in mixed]) == set()
    assert len(store.ack([Ack(claim=each, value="1") for each in (*first, *second)])) == 40


def _with_token(taken: Claim, token: uuid.UUID) -> Claim:
    return taken._replace(token=token)


@pytest.mark.vendor("mysql")
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
def test_claims_and_inserts_at_once_under_each_isolation_level(
    store: BaseStore, together: Together, level: str
) -> None:
    # Case 122: gap locks.
    def at_level(each: BaseStore) -> None:
        with each.connection.cursor() as cursor:
            cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")

    def produce(each: BaseStore) -> list[Any]:
        at_level(each)
        return [each.insert([new_job() for _ in range(5)]) for _ in range(10)]

    def work(each: BaseStore) -> list[Any]:
        at_level(each)
        done: list[Any] = []
        for _ in range(60):
            taken = claim(each, now=None, limit=4)
            done += each.ack([Ack(claim=one, value="1") for one in taken])
        return done

    produced = together([produce, work, produce, work, produce, work])
    left = claim(store, now=None, limit=200)
    finished = [hold for done in produced[1::2] for hold in done]
    assert len(set(finished)) == len(finished)
    assert len(finished) + len(left) == 150


@pytest.mark.vendor("mysql")
def test_a_cancel_in_an_old_snapshot_asks_whoever_runs_the_job_now(store: BaseStore) -> None:
    # Case 124.
    job_id = insert(store, now=None)
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    try:
        with transaction.atomic():
            assert store.live().get(pk=job_id).state == "ready"
            _in_another_thread(lambda: claim(get_store(), now=None))
            assert store.live().get(pk=job_id).state == "ready"
            assert store.cancel(job_id) == "asked"
    finally:
        connection.close()
    assert rows()["live"][job_id]["cancel_asked_at"] is not None


def _in_another_thread(call: Any) -> None:
    def run() -> None:
        try:
            call()
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(PATIENCE_SECONDS)
