"""Messages published in transactions run in a worker of another project, by a real broker.

Each test's control: some transactions roll back, and where the broker was away, deliveries failed.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from celery import Celery
from django.db import transaction

from django_workqueue.backoff import Backoff
from django_workqueue.contrib.celery import celery_destination
from django_workqueue.models import DeadJob, LiveJob
from django_workqueue.outbox import Destination
from tests import jobs, services
from tests.bridge.brokers import OtherProject, Proxy, forget_queue, other_project
from tests.bridge.servers import OwnRabbitMQ, OwnRedis, OwnServer
from tests.outboxes import relaying
from tests.processes import wait_until

pytestmark = [
    pytest.mark.usefixtures("transactional_db", "own_destinations"),
    # What differs between brokers does not between databases.
    pytest.mark.vendor("postgresql"),
]

BROKERS: dict[str, Callable[[], str]] = {
    "redis": services.redis_url,
    "rabbitmq": services.rabbitmq_url,
}


@pytest.fixture(params=sorted(BROKERS), scope="module")
def broker(request: pytest.FixtureRequest) -> str:
    try:
        return BROKERS[request.param]()
    except services.ServiceMissing as missing:
        services.skip_or_fail(missing)


@pytest.fixture(scope="module")
def worker(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OtherProject]:
    """One for all tests of a broker: it takes seconds to start."""
    with other_project(broker, tmp_path_factory.mktemp("bridge")) as started:
        yield started
    forget_queue(broker, started.queue)


@pytest.fixture
def project(worker: OtherProject) -> OtherProject:
    worker.begin()
    return worker


@pytest.fixture
def proxy(broker: str) -> Iterator[Proxy]:
    made = Proxy(broker)
    yield made
    made.close()


def bookings(
    url: str, project: OtherProject, *, backend: str = "redis://127.0.0.1:1/0"
) -> Destination:
    """Return a destination of the other project, by an app whose result backend is down."""
    app: Celery = Celery(set_as_current=False, broker=url, backend=backend)
    quickly = Backoff(base=0.1, factor=2, maximum=1)
    return celery_destination(
        "bookings", app=app, task="billing.tasks.book", queue=project.queue, backoff=quickly
    )


class RolledBack(Exception):
    pass


def publish(destination: Destination, count: int, *, pause: float = 0.0) -> set[uuid.UUID]:
    """Publish *count* messages in a transaction each, and as many again in ones that roll back."""
    committed = set()
    for number in range(count):
        content = {"number": number, "text": "naïve ☃"}
        with transaction.atomic():
            message_id = destination.publish(content, headers={"tenant": f"t{number}"})
        committed.add(message_id)
        try:
            with transaction.atomic():
                destination.publish({"number": -1, "text": "never"})
                raise RolledBack
        except RolledBack:
            pass
        time.sleep(pause)
    return committed


def assert_all_ran(project: OtherProject, committed: set[uuid.UUID]) -> int:
    """Every committed message ran, and none else; return how many ran more than once."""
    project.wait_for(committed)
    wait_until(lambda: not LiveJob.objects.exists(), "the end of the outbox")
    runs = project.runs()
    assert {uuid.UUID(run[0]) for run in runs} == committed
    assert {run[2] for run in runs} == {"naïve ☃"}
    assert not DeadJob.objects.exists()
    return len(runs) - len(committed)


@pytest.mark.parametrize("count", [50, pytest.param(1_000, marks=pytest.mark.soak)])
def test_committed_messages_run_there_once_and_rolled_back_ones_never(
    count: int, broker: str, project: OtherProject
) -> None:
    destination = bookings(broker, project)
    with relaying():
        committed = publish(destination, count)
        assert assert_all_ran(project, committed) == 0
    assert jobs.counts() == (0, 0, count)


@pytest.mark.parametrize("seconds", [1, pytest.param(20, marks=pytest.mark.soak)])
def test_broker_that_was_out_of_reach_loses_none(
    seconds: float, proxy: Proxy, project: OtherProject
) -> None:
    destination = bookings(proxy.url, project)
    with relaying() as settled:
        before = publish(destination, 10)
        project.wait_for(before)
        proxy.cut()
        during = publish(destination, 20, pause=seconds / 20)
        wait_until(lambda: proxy.refused_count, "a look at the broker that is away")
        assert project.ids() == before, "a message passed while the broker was away"
        proxy.mend()
        assert_all_ran(project, before | during)
    assert any(each.place == "scheduled" for each in settled), "no delivery failed"


@pytest.fixture
def kill_later() -> Iterator[Callable[[OwnServer], OwnServer]]:
    """What is handed to it is killed when the test ends."""
    servers: list[OwnServer] = []

    def keep(server: OwnServer) -> OwnServer:
        servers.append(server)
        return server

    yield keep
    for server in servers:
        server.kill()


def started(kind: type[OwnServer], folder: Path) -> OwnServer:
    try:
        return kind(folder)
    except services.ServiceMissing as missing:
        services.skip_or_fail(missing)


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", [OwnRedis, OwnRabbitMQ])
def test_broker_that_is_killed_and_started_again_loses_none(
    kind: type[OwnServer], kill_later: Callable[[OwnServer], OwnServer], tmp_path: Path
) -> None:
    """It is away for 20 s and longer, in which 1,000 transactions publish."""
    server = kill_later(started(kind, tmp_path / "server"))
    with other_project(server.url, tmp_path) as project:
        destination = bookings(server.url, project)
        with relaying() as settled:
            before = publish(destination, 10)
            project.wait_for(before)
            server.kill()
            committed = before | publish(destination, 1_000, pause=0.02)
            assert project.ids() == before
            assert not server.answers()
            server.start()
            committed |= publish(destination, 50)
            doubled = assert_all_ran(project, committed)
    failed = sum(each.place == "scheduled" for each in settled)
    print(f"\n{len(committed)} committed, {failed} failed deliveries, {doubled} doubled")  # noqa: T201
    assert failed, "no delivery failed"


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_result_backend_that_is_killed_and_started_again_changes_nothing(
    broker: str, kill_later: Callable[[OwnServer], OwnServer], tmp_path: Path
) -> None:
    """Both projects have one, which is away for 20 s and longer. No delivery even fails."""
    backend = kill_later(started(OwnRedis, tmp_path / "server"))
    with other_project(broker, tmp_path, backend.url) as project:
        destination = bookings(broker, project, backend=backend.url)
        with relaying() as settled:
            before = publish(destination, 10)
            project.wait_for(before)
            backend.kill()
            during = publish(destination, 1_000, pause=0.02)
            wait_until(lambda: not LiveJob.objects.exists(), "the end of the outbox")
            assert not backend.answers()
            backend.start()
            after = publish(destination, 50)
            doubled = assert_all_ran(project, before | during | after)
        forget_queue(broker, project.queue)
    print(f"\n{len(before | during | after)} committed, {doubled} ran twice")  # noqa: T201
    # A slow batch goes back, which charges nothing.
    assert {each.place for each in settled} <= {"succeeded", "ready"}
