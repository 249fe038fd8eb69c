"""`locks`: one holder at a time, an end on the database's clock, a token that only rises (N20)."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, connections, transaction

from django_workqueue import clock
from django_workqueue.exceptions import InTransaction, LockHeld, LockLost
from django_workqueue.locks import lock, rows
from django_workqueue.models import Lock
from django_workqueue.store import get_store
from tests.database_clock import DatabaseClock
from tests.threads import PATIENCE_SECONDS, in_thread, together

pytestmark = pytest.mark.django_db(transaction=True)

EPOCH = datetime(2030, 1, 1, 0, 0, 0, 250_000, tzinfo=UTC)  # a quarter of a second past
EPOCH_MICROSECONDS = 1_893_456_000_250_000


@pytest.fixture
def database_clock(monkeypatch: pytest.MonkeyPatch) -> DatabaseClock:
    return DatabaseClock(EPOCH).install(monkeypatch)


@pytest.fixture
def frozen() -> Iterator[clock.Frozen]:
    with clock.Frozen() as frozen:
        yield frozen


def stored(name: str = "backup") -> dict[str, Any]:
    return dict(Lock.objects.values().get(pk=name))


def steal(name: str = "backup") -> dict[str, Any]:
    """Let another have the lock; return its row."""
    Lock.objects.filter(pk=name).update(owner="thief", token=stored(name)["token"] + 1)
    return stored(name)


def expire(name: str = "backup") -> dict[str, Any]:
    """Let the lock have ended a moment ago; return its row."""
    past = get_store().now() - timedelta(seconds=1)
    Lock.objects.filter(pk=name).update(expires_at=past)
    return stored(name)


# One holder


def test_a_lock_is_held_in_its_block_and_free_after(database_clock: DatabaseClock) -> None:
    with lock("backup", ttl=60, owner="me") as held:
        held.check()
        assert stored() == {
            "name": "backup",
            "owner": "me",
            "token": held.token,
            "expires_at": EPOCH + timedelta(seconds=60),
        }
        assert not lock("backup").acquire()

    assert stored()["expires_at"] == EPOCH
    assert lock("backup").acquire()


def test_a_lock_that_is_held_is_refused_at_once_and_says_by_whom(
    database_clock: DatabaseClock,
) -> None:
    assert lock("backup", owner="me").acquire()

    with pytest.raises(LockHeld) as caught, lock("backup"):
        pytest.fail("the block must not run")

    assert str(caught.value) == (
        "Lock 'backup' must be free, and it is held by 'me' until 2030-01-01 "
        "00:01:00.250000+00:00. Try again later, or wait for it with wait=seconds."
    )


def test_an_error_in_the_block_gives_the_lock_back() -> None:
    with pytest.raises(ZeroDivisionError), lock("backup"):
        raise ZeroDivisionError
    assert lock("backup").acquire()


def test_two_locks_of_one_process_exclude_each_other() -> None:
    with lock("backup"):
        assert not lock("backup").acquire()


def test_many_at_once_are_never_two_inside_and_each_token_is_larger() -> None:
    inside: list[int] = []
    tokens: list[int] = []

    def work() -> None:
        for _ in range(3):
            with lock("backup", wait=PATIENCE_SECONDS) as held:
                inside.append(held.token)
                assert inside == [held.token]
                tokens.append(held.token)
                inside.remove(held.token)

    together(6, work)

    assert len(tokens) == 18
    assert tokens == sorted(set(tokens))


def test_of_many_that_make_the_row_at_once_one_has_it() -> None:
    for number in range(5):
        answers = together(6, lambda name=f"lock-{number}": lock(name).acquire())  # type: ignore[misc]
        assert sorted(answers) == [False] * 5 + [True]


def test_n20_the_same_owner_acquires_again_and_its_former_claim_is_lost() -> None:
    first, second = lock("backup", owner="me"), lock("backup", owner="me")
    assert first.acquire()
    token = first.token

    assert second.acquire()
    assert second.token > token
    before = stored()
    with pytest.raises(LockLost):
        first.renew()
    assert first.release() is False
    assert stored() == before
    second.check()


def test_n20_acquiring_again_gives_the_whole_ttl_and_a_new_token(
    database_clock: DatabaseClock,
) -> None:
    held = lock("backup", ttl=10)
    held.acquire()
    token = held.token
    database_clock.advance(9)

    assert held.acquire()
    assert held.token > token
    assert stored()["expires_at"] == EPOCH + timedelta(seconds=19)


def test_o13_names_are_told_apart_exactly() -> None:
    assert all(lock(name).acquire() for name in ("Key", "key", "key "))
    assert not any(lock(name).acquire() for name in ("Key", "key", "key "))


# The token


def test_n20_the_token_rises_at_each_acquisition_however_fast() -> None:
    held = lock("backup")
    tokens = []
    for _ in range(20):
        assert held.acquire()
        tokens.append(held.token)
        assert held.release()
    assert tokens == sorted(set(tokens))


def test_the_token_is_the_databases_time_in_microseconds(database_clock: DatabaseClock) -> None:
    held = lock("backup")
    held.acquire()
    assert held.token == EPOCH_MICROSECONDS

    held.release()
    database_clock.advance(2.5)
    held.acquire()
    assert held.token == EPOCH_MICROSECONDS + 2_500_000


def test_the_token_of_the_real_clock_is_its_time_in_microseconds() -> None:
    before = get_store().now()
    held = lock("backup")
    held.acquire()
    moment = datetime.fromtimestamp(held.token / 1_000_000, UTC)
    assert abs(moment - before) < timedelta(seconds=PATIENCE_SECONDS)


def test_the_token_is_one_more_than_the_last_where_the_clock_stands(
    database_clock: DatabaseClock,
) -> None:
    held = lock("backup")
    held.acquire()
    held.release()
    held.acquire()
    assert held.token == EPOCH_MICROSECONDS + 1

    Lock.objects.update(token=EPOCH_MICROSECONDS * 2)
    held.acquire()
    assert held.token == EPOCH_MICROSECONDS * 2 + 1


def test_n20_a_lock_nobody_asks_for_again_is_swept_and_its_token_still_rises(
    database_clock: DatabaseClock,
) -> None:
    held = lock("backup", ttl=5)
    held.acquire()
    token = held.token
    database_clock.advance(4.999)
    assert get_store().purge(None)["locks"] == 0
    database_clock.advance(0.001)
    assert get_store().purge(None)["locks"] == 1
    assert not Lock.objects.exists()

    held.acquire()
    assert held.token > token


@pytest.mark.vendor("mysql")
def test_o12_the_zone_of_the_session_moves_neither_end_nor_token() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+05:00'")
    try:
        test_the_token_of_the_real_clock_is_its_time_in_microseconds()
        assert abs(stored()["expires_at"] - get_store().now()) < timedelta(seconds=61)
    finally:
        connection.close()


# The end


def test_o12_a_lock_ends_at_its_moment_and_not_before(database_clock: DatabaseClock) -> None:
    held = lock("backup", ttl=1.5)
    held.acquire()

    database_clock.advance(1.499)
    held.check()
    assert not lock("backup").acquire()
    database_clock.advance(0.001)
    with pytest.raises(LockLost):
        held.check()
    assert lock("backup").acquire()


def test_renew_gives_the_whole_ttl_from_now(database_clock: DatabaseClock) -> None:
    held = lock("backup", ttl=10)
    held.acquire()
    token = held.token
    database_clock.advance(9)

    held.renew()
    assert stored()["expires_at"] == EPOCH + timedelta(seconds=19)
    assert held.token == token


@pytest.mark.parametrize("lose", [steal, expire])
def test_n20_a_lock_that_was_lost_says_so_and_leaves_the_row(
    lose: Callable[[], dict[str, Any]],
) -> None:
    held = lock("backup")
    held.acquire()
    row = lose()

    with pytest.raises(LockLost) as caught:
        held.check()
    assert str(caught.value) == (
        f"Lock 'backup' must be held by {held.owner!r}, and it was not acquired, or it expired "
        "or was taken since. Nothing was written; stop what it protects."
    )
    with pytest.raises(LockLost):
        held.renew()
    assert held.release() is False
    assert stored() == row


@pytest.mark.parametrize("lose", [steal, expire])
def test_n20_renewing_a_lock_that_was_lost_leaves_the_row(
    lose: Callable[[], dict[str, Any]],
) -> None:
    held = lock("backup")
    held.acquire()
    row = lose()

    with pytest.raises(LockLost):
        held.renew()
    assert stored() == row


def test_a_lock_that_was_not_acquired_has_no_token_and_nothing_to_give_back() -> None:
    held = lock("backup")
    calls: list[Callable[[], object]] = [lambda: held.token, held.renew, held.check]
    for call in calls:
        with pytest.raises(LockLost):
            call()
    assert held.release() is False


def test_a_check_knows_its_own_end_without_the_database(frozen: clock.Frozen) -> None:
    held = lock("backup", ttl=60)
    held.acquire()
    frozen.advance(60)
    with transaction.atomic(), pytest.raises(LockLost):
        held.check()


# Waiting


def test_a_waiting_acquire_gets_the_lock_when_it_is_given_back(frozen: clock.Frozen) -> None:
    held = lock("backup")
    held.acquire()
    waiting = in_thread(lambda: lock("backup", wait=10).acquire())
    assert frozen.wait_for_waiters()

    held.release()
    frozen.advance(1)

    assert waiting() is True


def test_a_wait_ends_at_its_limit_and_asks_no_more_than_it_must(
    frozen: clock.Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock("backup").acquire()
    sleeps: list[float] = []

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        frozen.advance(seconds)

    monkeypatch.setattr(clock, "sleep", sleep)
    assert lock("backup", wait=10).acquire() is False

    assert sum(sleeps) == pytest.approx(10)
    assert len(sleeps) < 30
    assert max(sleeps) <= 1


def test_without_wait_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    lock("backup").acquire()
    monkeypatch.setattr(clock, "sleep", lambda seconds: pytest.fail("it slept"))
    assert lock("backup").acquire() is False
    assert lock("backup", wait=0).acquire() is False


# The block


def test_a_lock_is_renewed_while_its_block_runs(
    frozen: clock.Frozen, database_clock: DatabaseClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[Any] = []
    renew = rows.renew

    def watched(*args: Any) -> bool:
        used.append(connections["default"])
        return renew(*args)

    monkeypatch.setattr(rows, "renew", watched)
    with lock("backup", ttl=60) as held:
        for minutes in range(1, 10):
            assert frozen.wait_for_waiters()
            database_clock.advance(20)
            frozen.advance(20)
            assert frozen.wait_for_waiters()
            assert stored()["expires_at"] == EPOCH + timedelta(seconds=20 * minutes + 60)
        held.check()
        assert used[0].connection is not None

    assert len(used) == 9
    assert all(each is used[0] for each in used)
    assert used[0] is not connections["default"]
    assert used[0].connection is None
    assert not any(thread.name.startswith("renew") for thread in threading.enumerate())


def test_a_theft_is_noticed_by_the_renewal(
    frozen: clock.Frozen, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="django_workqueue"), lock("backup") as held:
        assert frozen.wait_for_waiters()
        row = steal()
        [renewer] = [t for t in threading.enumerate() if t.name.startswith("renew")]
        frozen.advance(20)
        renewer.join(PATIENCE_SECONDS)
        with pytest.raises(LockLost):
            held.check()

    assert stored() == row
    assert [record.message for record in caplog.records] == [
        "lock lost",
        "lock lost before its block ended",
    ]


def test_a_renewal_that_fails_is_tried_again_sooner(
    frozen: clock.Frozen, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[Any] = [OperationalError("cut"), True]

    def renew(*args: object) -> bool:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)

    monkeypatch.setattr(rows, "renew", renew)
    with caplog.at_level(logging.WARNING, logger="django_workqueue"), lock("backup", ttl=90):
        for pause in (30, 10):
            assert frozen.wait_for_waiters()
            frozen.advance(pause)
        assert frozen.wait_for_waiters()

    assert answers == []
    assert [record.message for record in caplog.records] == ["lock not renewed"]


def test_a_block_may_give_its_lock_back_early(
    frozen: clock.Frozen, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="django_workqueue"), lock("backup") as held:
        assert held.release()
        assert lock("backup", owner="next").acquire()

    assert stored()["owner"] == "next"
    assert caplog.records == []


def test_a_lock_that_cannot_be_given_back_does_not_fail_its_block(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def cut(*args: object) -> bool:
        raise OperationalError("cut")

    with caplog.at_level(logging.WARNING, logger="django_workqueue"), lock("backup"):
        monkeypatch.setattr(rows, "release", cut)

    assert [record.message for record in caplog.records] == ["lock not released"]


def test_a_lock_object_guards_one_block_at_a_time() -> None:
    held = lock("backup")
    with held, pytest.raises(RuntimeError, match="one block at a time"), held:
        pytest.fail("the block must not run")
    with held:
        held.check()


# Transactions


@pytest.mark.parametrize("call", ["acquire", "renew", "release"])
def test_what_writes_is_refused_inside_a_transaction(call: str) -> None:
    held = lock("backup")
    held.acquire()
    row = stored()
    with transaction.atomic(), pytest.raises(InTransaction) as caught:
        getattr(held, call)()

    assert str(caught.value) == (
        f"lock.{call}() must commit by itself, got an open transaction on 'default': others "
        "would wait for its end, and a rollback would undo the call. Call it outside of "
        "atomic(); in a view under ATOMIC_REQUESTS, decorate the view with "
        "transaction.non_atomic_requests(using='default')."
    )
    assert stored() == row
    assert held.release()


def test_a_block_may_hold_transactions() -> None:
    with lock("backup") as held, transaction.atomic():
        held.check()


@pytest.mark.django_db(transaction=False)
def test_a_test_case_may_lock_inside_its_own_transaction() -> None:
    with lock("backup") as held:
        held.check()
        assert not any(thread.name.startswith("renew") for thread in threading.enumerate())
    assert lock("backup").acquire()


# Arguments

NO_SECONDS = [-1, -0.5, math.nan, math.inf, True, "1"]


@pytest.mark.parametrize("ttl", [0, None, *NO_SECONDS, 367 * 86_400], ids=repr)
def test_n20_a_ttl_is_above_0_and_has_an_end(ttl: Any) -> None:
    with pytest.raises(ValueError, match=r"^ttl must be a number of seconds above 0 and at most"):
        lock("backup", ttl=ttl)


@pytest.mark.parametrize("wait", NO_SECONDS, ids=repr)
def test_a_wait_is_0_or_more(wait: Any) -> None:
    with pytest.raises(ValueError, match=r"^wait must be a number of seconds from 0 to"):
        lock("backup", wait=wait)


@pytest.mark.parametrize("name", ["", "x" * 256, "a\x00b", 7], ids=["none", "long", "nul", "7"])
def test_names_are_refused_by_name(name: Any) -> None:
    with pytest.raises(ValueError, match=r"^name must "):
        lock(name)
    with pytest.raises(ValueError, match=r"^owner must "):
        lock("backup", owner=name)
