"""What is committed is delivered and nothing else, in order, whoever is killed (G10)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from django_workqueue.models import DeadJob, LiveJob
from django_workqueue.outbox import destinations
from tests.outboxes import declare, publish
from tests.processes import command, lines
from tests.relaying.storms import SETTINGS, Storm

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("own_destinations"),
]


@pytest.fixture
def storm(tmp_path: Path) -> Iterator[Storm]:
    storm = Storm(tmp_path, failures=0.2)
    yield storm
    storm.end()


def test_a_small_storm_loses_nothing_and_keeps_the_order(storm: Storm) -> None:
    storm.run(publishers=1, messages=200, keys=10, relays=2, kills=1, pause=0)
    storm.assert_delivered()
    assert len(storm.committed()) > 40
    assert not DeadJob.objects.exists()


def test_runworker_says_what_it_relays_and_delivers_all_before_it_is_drained(
    tmp_path: Path,
) -> None:
    declare(lambda message: None, name="storm")
    publish(destinations.declared()["outbox:storm"], *range(3), key="a")
    deliveries = tmp_path / "deliveries"
    more = {**SETTINGS, "WORKQUEUE_TEST_DELIVERIES": str(deliveries)}
    done = command("runworker", "--drain", "--processes", "0", **more)
    assert done.returncode == 0, done.stderr
    assert "  outbox    default; 1 destinations\n" in done.stdout
    assert done.stdout.count("succeeded  outbox:storm  ") == 3
    assert len(lines(deliveries)) == 3


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_storm_loses_nothing_and_keeps_the_order(storm: Storm) -> None:
    storm.run(publishers=8, messages=5_000, keys=50, relays=3, kills=30, pause=1.0)
    doubles = storm.assert_delivered()
    print(  # noqa: T201  # the figures are what it is run for
        f"{len(storm.committed())} committed, {len(storm.received())} deliveries, {doubles} "
        f"doubled, {len(storm.killed)} killed, {storm.conflicts()} conflicts of publishers"
    )
    assert not LiveJob.objects.filter(state="held").exists()
