"""Which queues a claimer looks at, and when it asks for them again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_workqueue.claimer import MAX_PROBE_SECONDS, PASS_SECONDS, PROBE_SECONDS, Claimer
from django_workqueue.clock import Frozen
from django_workqueue.demand import Room
from django_workqueue.job import Job
from django_workqueue.states import Lane
from django_workqueue.store import BaseStore, get_store
from tests.factories import TASK, insert, new_job
from tests.jobs import enqueue

pytestmark = pytest.mark.django_db


class Claims:
    """What one claimer claims, and how often it asked which queues have jobs."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        queues: tuple[str, ...] | None = None,
        on_look: Callable[[], object] = lambda: None,
    ):
        store = get_store()
        self.looks = 0
        look = type(store).look

        def counted(store: BaseStore, lane: Lane) -> object:
            self.looks += 1
            on_look()
            return look(store, lane)

        self.on_claim: Callable[[], object] = lambda: None
        claim = type(store).claim

        def noted(*args: Any, **options: Any) -> object:
            self.on_claim()
            return claim(*args, **options)

        monkeypatch.setattr(type(store), "look", counted)
        monkeypatch.setattr(type(store), "claim", noted)
        self._claimer = Claimer(store, "w1", queues, 30.0)
        self.note_unknown = self._claimer.note_unknown

    def claim(self, count: int, *, told: bool = False) -> list[str]:
        """Claim up to *count* jobs of any kind; return the queues they came from."""
        taken: list[Job] = []
        self._claimer.claim(Room(count, count, count), taken.extend, told=told)
        return [job.claim.queue_name for job in taken]


def idle(monkeypatch: pytest.MonkeyPatch, *served: str, queues: tuple[str, ...] = ()) -> Claims:
    """Return the claims of one that has *served* these queues, and found nothing since."""
    claims = Claims(monkeypatch, queues or None)
    for name in served:
        enqueue(lambda: None, queue_name=name)
        assert claims.claim(1) == [name]
    assert claims.claim(1) == []
    claims.looks = 0
    return claims


def test_a_claimer_that_finds_all_it_asks_for_looks_for_queues_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for _ in range(9):
        enqueue(lambda: None)
    with Frozen() as clock:
        claims = Claims(monkeypatch)
        assert [len(claims.claim(2)) for _ in range(3)] == [2, 2, 2]
        assert claims.looks == 1
        clock.advance(PROBE_SECONDS)
        assert len(claims.claim(2)) == 2
        assert claims.looks == 2


@pytest.mark.parametrize(("took", "good"), [(0.02, 0.4), (5.0, MAX_PROBE_SECONDS)])
def test_a_look_that_took_long_is_good_for_longer(
    took: float, good: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(9):
        enqueue(lambda: None)
    with Frozen() as clock:
        claims = Claims(monkeypatch, on_look=lambda: clock.advance(took))
        assert len(claims.claim(2)) == 2
        clock.advance(0.9 * good)
        assert (len(claims.claim(2)), claims.looks) == (2, 1)
        clock.advance(0.1 * good)
        assert (len(claims.claim(2)), claims.looks) == (2, 2)


def test_a_claim_that_comes_back_short_sees_the_other_queues_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    enqueue(lambda: None, queue_name="first")
    with Frozen():
        claims = Claims(monkeypatch)
        assert claims.claim(1) == ["first"]
        enqueue(lambda: None, queue_name="second")
        assert claims.claim(1) == ["second"]


def test_a_queue_that_ran_empty_is_no_queue_without_the_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The tests' tasks are of both kinds, so that the front of a queue is looked at first.
    enqueue(lambda: None)
    with Frozen():
        claims = Claims(monkeypatch)
        assert claims.claim(1) == ["default"]
        assert claims.claim(1) == []
        enqueue(lambda: None)
        assert claims.claim(1) == ["default"]


def test_who_is_told_of_a_job_tries_the_queue_served_last_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claims = idle(monkeypatch, "first")
    enqueue(lambda: None, queue_name="first")
    assert (claims.claim(9, told=True), claims.looks) == (["first"], 0)
    assert (claims.claim(9), claims.looks) == ([], 1)
    enqueue(lambda: None, queue_name="first")
    assert (claims.claim(9), claims.looks) == (["first"], 2)


def test_a_job_of_another_queue_is_found_when_one_was_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claims = idle(monkeypatch, "first")
    enqueue(lambda: None, queue_name="second")
    assert (claims.claim(9, told=True), claims.looks) == (["second"], 1)


def test_no_job_is_claimed_before_the_preferred_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    # The job that was guessed may run for an hour, in the only thread there is.
    claims = idle(monkeypatch, "low", queues=("high", "low"))
    for name in ("low", "high"):
        enqueue(lambda: None, queue_name=name)
    assert claims.claim(1, told=True) == ["high"]


def test_of_queues_in_order_the_first_is_tried_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    claims = idle(monkeypatch, "low", "high", queues=("high", "low"))
    for name in ("low", "high"):
        enqueue(lambda: None, queue_name=name)
    assert (claims.claim(1, told=True), claims.looks) == (["high"], 0)


@pytest.mark.parametrize("only", [False, True])
@pytest.mark.parametrize("name", ["a", "z"])
def test_no_number_of_queues_that_are_busy_hides_another(
    name: str, only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Seen: a look named a hundred, and of a tenant before those nothing was ever begun.
    claims = Claims(monkeypatch, (name,) if only else None)
    busy = [new_job(queue_name=f"busy{number % 150:03}") for number in range(300)]
    get_store().insert([*busy, new_job(queue_name=name)])
    assert name in {taken for _ in range(160) for taken in claims.claim(1)}


@pytest.mark.parametrize("listed", [False, True])
def test_a_pass_over_many_queues_ends_in_time_to_settle_and_the_next_goes_on_behind_it(
    listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Seen on MariaDB: 1,000 queues with a job each kept a worker from settling for 3 seconds.
    names = [f"{number:02}" for number in range(24)]
    get_store().insert([new_job(queue_name=name) for name in names])
    with Frozen() as clock:
        on_look = functools.partial(clock.advance, MAX_PROBE_SECONDS)
        claims = Claims(monkeypatch, tuple(names) if listed else None, on_look)
        # So that the fifth after the first that found some is the last.
        claims.on_claim = functools.partial(clock.advance, PASS_SECONDS / 4.5)
        taken = [claims.claim(99) for _ in range(4)]
        assert taken == [names[:6], names[6:12], names[12:18], names[18:]]
        # Of queues in an order, those that were emptied would be tried first again.
        assert claims.looks == (4 if listed else 1)
        assert claims.claim(99) == []


def test_a_pass_that_finds_nothing_goes_on_and_has_its_time_where_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Or the jobs of those behind would never be come to, or one queue in each pass.
    for name in ("y", "z"):
        enqueue(lambda: None, queue_name=name)
    get_store().insert([new_job(queue_name=f"{number:02}") for number in range(20)])
    with Frozen() as clock:
        claims = Claims(monkeypatch)
        claims.on_claim = functools.partial(clock.advance, 0.9 * PASS_SECONDS)
        claims.note_unknown(TASK)
        assert claims.claim(99) == ["y", "z"]


def test_while_jobs_are_ready_nothing_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    claims = Claims(monkeypatch, ("high", "low"))
    for name in ("low", "low"):
        enqueue(lambda: None, queue_name=name)
    with Frozen() as clock:
        assert claims.claim(1) == ["low"]
        clock.advance(PROBE_SECONDS)
        enqueue(lambda: None, queue_name="high")
        assert claims.claim(1, told=True) == ["high"]


@pytest.mark.vendor("postgresql")
def test_what_becomes_ready_in_a_pass_costs_it_one_statement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # While an old snapshot is held each more would walk all that it keeps in the indexes.
    store = get_store()
    claims = idle(monkeypatch, "due")
    statements = []
    for due in (False, True):
        insert(store, now=None, queue_name="due", run_after=store.now() if due else None)
        with CaptureQueriesContext(connection) as sent:
            assert claims.claim(9) == ["due"]
        statements.append([query["sql"].split()[0] for query in sent])
    without, with_due = statements
    assert without[0] == "WITH"
    assert with_due == ["WITH", "UPDATE", *without[1:]]
