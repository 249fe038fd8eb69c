"""L13, L17, L18: several processes and one queue, with real commits."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from django_workqueue.models import DeadJob, LiveJob
from django_workqueue.queues import Queue
from django_workqueue.store import get_store
from tests.queues.pull import claim_one
from tests.sound import assert_sound
from tests.threads import PATIENCE_SECONDS
from tests.timescale import SCALE

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(180)]

Agents = Callable[[str, int], list["Agent"]]


# One process imports Django, and all agents are forks of it.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.queues.agent"])


class Agent:
    """A process in one of the roles of tests/queues/agent.py."""

    def __init__(self, role: str, number: int) -> None:
        from tests.queues.agent import run

        self.connection, theirs = PROCESSES.Pipe()
        self.process = PROCESSES.Process(target=run, args=(role, number, theirs))
        self.process.start()
        theirs.close()

    def begin(self) -> None:
        self.connection.send("begin")

    def answer(self) -> Any:
        assert self.connection.poll(PATIENCE_SECONDS * 3), "the agent must answer in time"
        return self.connection.recv()


@pytest.fixture
def agents() -> Iterator[Agents]:
    started: list[Agent] = []

    def start(role: str, count: int) -> list[Agent]:
        agents = [Agent(role, number) for number in range(count)]
        started.extend(agents)
        assert [agent.answer() for agent in agents] == ["ready"] * count
        return agents

    yield start
    for agent in started:
        agent.process.kill()
        agent.process.join()
        agent.process.close()
        agent.connection.close()


def test_l13_eight_processes_take_300_jobs_once_and_none_is_told_nothing_too_early(
    queue: Queue, agents: Agents
) -> None:
    queue.enqueue_many(range(300), max_attempts=1)
    claimers = agents("claim_until_empty", 8)
    for claimer in claimers:
        claimer.begin()
    reports = [claimer.answer() for claimer in claimers]

    taken = Counter(payload for report in reports for payload in report["taken"])
    assert taken == Counter(range(300))
    assert [report["free"] for report in reports] == [0] * 8
    assert sum(bool(report["taken"]) for report in reports) >= 2


def test_l17_four_produce_and_six_work_at_once(queue: Queue, agents: Agents) -> None:
    workers, producers = agents("work_until_done", 6), agents("produce", 4)
    for agent in workers + producers:
        agent.begin()
    reports = [worker.answer() for worker in workers]

    done = Counter(payload for report in reports for payload in report["done"])
    assert done == Counter(f"{number}-{each}" for number in range(4) for each in range(75))
    assert not LiveJob.objects.exists()
    assert not DeadJob.objects.exists()
    assert sum(bool(report["done"]) for report in reports) >= 2


def test_l18_an_idle_agent_starts_a_job_when_it_is_due(queue: Queue, agents: Agents) -> None:
    [agent] = agents("wait_for_one", 1)
    queue.enqueue("later", delay=4)
    due = queue.next_due()
    assert due is not None
    agent.begin()
    report = agent.answer()

    late = datetime.fromisoformat(report["claimed_at"]) - due
    assert timedelta(0) <= late <= timedelta(seconds=3 * SCALE)
    assert report["payload"] == "later"
    assert 1 <= report["passes"] <= 3


def test_l18_an_idle_agent_takes_over_when_a_lease_ends(queue: Queue, agents: Agents) -> None:
    [agent] = agents("wait_for_one", 1)
    job_id = queue.enqueue("orphan")
    claim = claim_one(queue, lease_seconds=2)
    agent.begin()
    report = agent.answer()

    late = datetime.fromisoformat(report["claimed_at"]) - claim.lease_expires_at
    assert timedelta(0) <= late <= timedelta(seconds=3 * SCALE)
    assert (report["payload"], report["attempt"]) == ("orphan", 2)
    assert get_store().now() < claim.lease_expires_at + timedelta(seconds=60)
    assert_sound(job_id)
