"""Workers that die by SIGKILL, or are stopped for longer than their lease."""

from __future__ import annotations

import functools
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from django_workqueue.models import DeadJob, LiveJob, Result
from django_workqueue.store import BaseStore
from tests.crash import tasks
from tests.crash.fleet import Fleet, go_on, kill_group, stop
from tests.ledger import END, START, Entry, Ledger, seconds
from tests.processes import SETTINGS, Process, wait_until
from tests.sound import place
from tests.timescale import LEASE_SECONDS, PATIENCE_SECONDS, RECLAIM_SECONDS, SCALE, SWEEP_SECONDS

pytestmark = pytest.mark.django_db(transaction=True)

SLACK_SECONDS = 2.0 * SCALE
"""For the machine, beside what the promise allows."""

LONG = 60.0


def nap(ledger: Ledger, length: float, **options: Any) -> uuid.UUID:
    return uuid.UUID(tasks.nap.using(**options).enqueue(str(ledger), length).id)


def naps(ledger: Ledger, length: float, count: int, **options: Any) -> list[uuid.UUID]:
    calls: Any = [((str(ledger), length), {})] * count
    return [uuid.UUID(each.id) for each in tasks.nap.using(**options).enqueue_many(calls)]


def started(ledger: Ledger, count: int) -> Callable[[], bool]:
    return lambda: len(ledger.entries(START)) >= count


def holder_and_other(fleet: Fleet, ledger: Ledger) -> tuple[Process, Process]:
    """Return, of two workers, the one that has started the only job, and the idle one."""
    wait_until(started(ledger, 1), "the first start")
    (entry,) = ledger.entries(START)
    holder, other = sorted(fleet.workers, key=lambda worker: worker.pid != entry.pid)
    assert holder.pid == entry.pid
    return holder, other


def lapsed_now(store: BaseStore) -> int:
    return store.live().filter(store.lapsed()).count()


def test_a_killed_workers_job_runs_again_within_a_lease_and_a_sweep(
    fleet: Fleet, ledger: Ledger
) -> None:
    """Case A 1."""
    fleet.start(count=2)
    job_id = nap(ledger, LONG)
    doomed, _ = holder_and_other(fleet, ledger)
    killed_at = seconds()
    doomed.kill()
    wait_until(started(ledger, 2), "the second start")
    first, second = ledger.entries(START)
    assert second.at - killed_at <= RECLAIM_SECONDS + SLACK_SECONDS
    assert (second.attempt, second.fence) == (2, 2)
    job: Any = LiveJob.objects.get(pk=job_id)
    assert (job.state, job.attempt, job.deaths, job.suspect) == ("running", 2, 1, True)
    assert [error["outcome"] for error in job.errors] == ["lost"]
    assert job.worker_ids != [job.worker_id]
    # Case A 35: the loss is told, with the job.
    assert "job taken back" in fleet.output()
    assert first.pid != second.pid


def test_a_job_killed_in_its_last_attempt_is_dead_and_its_key_is_free(
    fleet: Fleet, ledger: Ledger
) -> None:
    """Cases A 2 and 15."""
    fleet.start(count=2)
    job_id = nap(ledger, LONG, max_attempts=1, unique_key="only one")
    doomed, _ = holder_and_other(fleet, ledger)
    doomed.kill()
    wait_until(lambda: place(job_id) == "dead", "the death")
    job: Any = DeadJob.objects.get(pk=job_id)
    assert (job.reason, job.attempt) == ("lost", 1)
    assert nap(ledger, 0.0, max_attempts=1, unique_key="only one") != job_id
    wait_until(started(ledger, 2), "the job with the same key")


def test_deploys_that_kill_leave_no_zombie(fleet: Fleet, ledger: Ledger, store: BaseStore) -> None:
    """Case A 3."""
    naps(ledger, LEASE_SECONDS, 8, max_attempts=20)
    for _ in range(3):
        before = len(ledger.entries(START))
        doomed = fleet.start("--threads", "2", count=2)
        wait_until(started(ledger, before + 1), "a start")
        for worker in doomed:
            worker.kill()
    fleet.start("--threads", "8")
    wait_until(lambda: not LiveJob.objects.exists(), "the end of every job")
    assert lapsed_now(store) == 0
    assert Result.objects.count() == 8
    assert ledger.cut_short()


def test_dead_workers_leave_room_for_the_living(
    fleet: Fleet, ledger: Ledger, store: BaseStore
) -> None:
    """Case A 31."""
    naps(ledger, LONG, 4)
    doomed = fleet.start_one("--threads", "4")
    wait_until(started(ledger, 4), "four starts")
    doomed.kill()
    new = nap(ledger, 0.0)
    # As many slots as dead rows: they take none of them.
    fleet.start_one("--threads", "4", settings={**SETTINGS, "SWEEP_SECONDS": 60.0})
    wait_until(lambda: place(new) == "finished", "the new job")
    assert len(ledger.entries(START)) == 5
    # What ran when its worker died runs alone, so the four come one after the other.
    fleet.start_one("--threads", "4")
    wait_until(lambda: started(ledger, 6)() and lapsed_now(store) == 0, "the four again")


def test_a_parent_killed_with_all_its_children_loses_nothing(fleet: Fleet, ledger: Ledger) -> None:
    """Nobody is left who saw the children die: the lease is what tells."""
    parent = fleet.start_one("--processes", "2", "--threads", "2")
    ids = naps(ledger, LEASE_SECONDS, 4, max_attempts=5)
    wait_until(started(ledger, 4), "four starts in two children")
    children = {entry.pid for entry in ledger.entries(START)}
    assert parent.pid not in children
    parent.send(signal.SIGKILL)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    parent.end()
    wait_until(lambda: not any(alive(pid) for pid in children), "the end of the children")
    assert len(ledger.cut_short()) == 4
    fleet.start_one("--threads", "4")
    wait_until(lambda: not LiveJob.objects.exists(), "the end of every job")
    assert Result.objects.filter(attempts=2).count() == 4
    assert ledger.started() == {str(job_id): 2 for job_id in ids}


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return not Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].startswith(" Z")


def test_a_worker_stopped_past_its_lease_changes_nothing_when_it_goes_on(
    fleet: Fleet, ledger: Ledger
) -> None:
    """Case A 16: its late settle and its late extension meet the newer claim's fence."""
    fleet.start(count=2)
    job_id = nap(ledger, 2 * LEASE_SECONDS)
    stopped, _ = holder_and_other(fleet, ledger)
    stop(stopped)
    wait_until(started(ledger, 2), "the second start")
    before = LiveJob.objects.values("token", "worker_id", "attempt", "fence").get(pk=job_id)
    go_on(stopped)
    stopped.wait_for("lease lost")
    wait_until(lambda: len(ledger.entries(END)) >= 1, "the end of the stopped one's body")
    after = LiveJob.objects.values("token", "worker_id", "attempt", "fence").get(pk=job_id)
    assert after == before
    wait_until(lambda: place(job_id) == "finished", "the newer holder's end")
    result: Any = Result.objects.get(pk=job_id)
    assert result.attempts == 2
    assert result.token == before["token"]
    assert ledger.started() == {str(job_id): 2}
    assert stopped.output.count("lease lost") == 1


def test_a_worker_stopped_for_less_than_its_lease_keeps_its_jobs(
    fleet: Fleet, ledger: Ledger
) -> None:
    fleet.start("--lease", str(4 * LEASE_SECONDS), count=2)
    job_id = nap(ledger, LEASE_SECONDS)
    stopped, _ = holder_and_other(fleet, ledger)
    stop(stopped)
    time.sleep(LEASE_SECONDS)
    go_on(stopped)
    wait_until(lambda: place(job_id) == "finished", "the end")
    assert ledger.started() == {str(job_id): 1}


def test_a_job_that_kills_its_worker_is_dead_after_its_budget_and_the_others_are_done(
    fleet: Fleet, ledger: Ledger
) -> None:
    """Case A 14, and the trap of innocents behind a killer."""
    assert_poison_is_buried(fleet, ledger, poison_count=1, good_count=10)


@pytest.mark.soak
def test_twenty_poison_jobs_among_two_hundred(fleet: Fleet, ledger: Ledger) -> None:
    assert_poison_is_buried(fleet, ledger, poison_count=20, good_count=200)


def assert_poison_is_buried(
    fleet: Fleet, ledger: Ledger, *, poison_count: int, good_count: int
) -> None:
    poison: list[uuid.UUID] = []
    good: list[uuid.UUID] = []
    for number in range(good_count):
        good.append(nap(ledger, 0.01))
        if number * poison_count // good_count >= len(poison):
            poison.append(uuid.UUID(tasks.kill_worker.enqueue(str(ledger)).id))
    ends = time.monotonic() + PATIENCE_SECONDS + 3 * poison_count * (RECLAIM_SECONDS + 3 * SCALE)
    deaths = 0
    worker = fleet.start_one("--threads", "1")
    while LiveJob.objects.exists():
        assert time.monotonic() < ends, f"{LiveJob.objects.count()} jobs are still live"
        if worker.ended:
            deaths += 1
            worker = fleet.start_one("--threads", "1")
        time.sleep(0.02)
    assert deaths == 3 * poison_count
    assert Result.objects.filter(pk__in=good).count() == good_count
    dead: Any = DeadJob.objects.values_list("pk", "reason", "attempt")
    assert sorted(dead) == sorted((job_id, "lost", 3) for job_id in poison)
    assert {ledger.started()[str(job_id)] for job_id in poison} == {3}
    assert {ledger.started()[str(job_id)] for job_id in good} == {1}


def test_nothing_is_lost_or_stuck_while_workers_are_killed_under_load(
    fleet: Fleet, ledger: Ledger, store: BaseStore
) -> None:
    Storm(fleet, ledger, lease_seconds=LEASE_SECONDS).assert_survived(kill_count=4)


@pytest.mark.soak
def test_a_minute_of_kills_every_second(
    fleet: Fleet, ledger: Ledger, store: BaseStore, capsys: pytest.CaptureFixture[str]
) -> None:
    storm = Storm(fleet, ledger, lease_seconds=5.0)
    storm.assert_survived(kill_count=60)
    with capsys.disabled():
        print(f"\n{storm.figures()}")  # noqa: T201  # the figures are what it is run for


class Storm:
    """Continuous load of 50 ms jobs, and a worker's process group killed every second.

    One worker is spared: what has just started holds off reclaiming, and is killed before.
    """

    def __init__(self, fleet: Fleet, ledger: Ledger, *, lease_seconds: float) -> None:
        self._fleet = fleet
        self._ledger = ledger
        self._lease_seconds = lease_seconds
        self._ids: list[uuid.UUID] = []
        self._killed: dict[int, float] = {}

    def assert_survived(self, kill_count: int) -> None:
        self._start()
        workers = [self._start() for _ in range(2)]
        for _ in range(kill_count):
            began = time.monotonic()
            self._feed()
            doomed = workers.pop(0)
            wait_until(functools.partial(self._runs, doomed.pid), "a job in the next to be killed")
            self._killed[doomed.pid] = seconds()
            kill_group(doomed)
            workers.append(self._start())
            time.sleep(max(1.0 - (time.monotonic() - began), 0.0))
        wait_until(lambda: not LiveJob.objects.exists(), "the end of every job")
        self._assert_all_ended()

    def _start(self) -> Process:
        lease = str(self._lease_seconds)
        return self._fleet.send_off("--threads", "4", "--lease", lease)

    def _feed(self) -> None:
        self._ids += naps(self._ledger, 0.05, 25, max_attempts=20)

    def _runs(self, pid: int) -> bool:
        """Tell whether the process runs a job now; feed it if there is none left."""
        mine = [each for each in self._ledger.entries() if each.pid == pid]
        if not LiveJob.objects.filter(state="ready").exists():
            self._feed()
        return bool(mine) and mine[-1].event == START

    def _assert_all_ended(self) -> None:
        finished = set(Result.objects.values_list("pk", flat=True))
        dead = set(DeadJob.objects.values_list("pk", flat=True))
        assert finished | dead == set(self._ids)
        assert not finished & dead
        starts, ends = self._ledger.by_job(START), self._ledger.ended()
        for job_id in finished:
            assert ends[str(job_id)] >= 1
        for job_id in dead:
            assert len(starts[str(job_id)]) == 20
        # Every start but a job's last was ended by a kill: none was doubled, none charged twice.
        for entries in starts.values():
            assert [each.pid for each in entries[:-1] if each.pid not in self._killed] == []
        assert self._hit(), "no kill hit a job that ran: nothing was tested"
        allowed = self._lease_seconds + SWEEP_SECONDS + SLACK_SECONDS
        # Of the last that were hit: one that waits as a suspect in a worker which is killed as
        # well starts a lease later, at each such kill.
        last = max(self._hit(), key=lambda cut: self._killed[cut.pid]).pid
        assert max(self._orphaned(last)) <= allowed, self.figures()

    def _hit(self) -> list[Entry]:
        return [each for each in self._ledger.cut_short() if each.pid in self._killed]

    def _orphaned(self, pid: int | None = None) -> Iterator[float]:
        """Yield, for each start that was killed (with *pid*), the seconds to the next start."""
        starts = self._ledger.by_job(START)
        for cut in self._hit():
            if pid not in (None, cut.pid):
                continue
            later = [each.at for each in starts[cut.job_id] if each.fence > cut.fence]
            if later:
                yield min(later) - self._killed[cut.pid]

    def figures(self) -> str:
        return (
            f"{len(self._ids)} jobs, {len(self._killed)} kills, {len(self._hit())} starts killed, "
            f"{Result.objects.count()} finished, {DeadJob.objects.count()} dead, "
            f"longest orphan {max(self._orphaned()):.1f} s (lease {self._lease_seconds:g} s)"
        )
