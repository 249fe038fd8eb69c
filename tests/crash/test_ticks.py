"""A scheduler killed with SIGKILL at every statement of a tick (case B 43)."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta

import pytest

from django_workqueue.models import Result
from django_workqueue.store import BaseStore
from tests import factories
from tests.crash.fleet import Fleet
from tests.processes import ROOT, environment, wait_until
from tests.timescale import PATIENCE_SECONDS

MOMENTS = ("before", "after")

pytestmark = pytest.mark.django_db(transaction=True)


def test_killed_anywhere_a_tick_leaves_both_or_neither_and_fires_once_in_the_end(
    store: BaseStore,
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.kill_ticks"],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    runs = [json.loads(line) for line in done.stdout.splitlines()]
    killed = [run for run in runs if run["killed"]]
    for run in killed:
        assert run["left"] in ([0, 0], [1, 1]), run
        assert run["then"] == [1, 1], run
    # The kills came where they count: between the move of the row and the job, and around COMMIT.
    hit = {moment: [run["step"] for run in killed if run["moment"] == moment] for moment in MOMENTS}
    for steps in hit.values():
        assert any("UPDATE" in step and "workqueue_schedule" in step for step in steps)
        assert any("INSERT" in step and "workqueue_livejob" in step for step in steps)
        assert any("COMMIT" in step for step in steps)
    left = [run["left"] for run in killed]
    assert [0, 0] in left
    assert [1, 1] in left
    assert [run["left"] for run in runs if not run["killed"]] == [[1, 1]] * 2


@pytest.mark.parametrize("options", [("--threads", "1"), ("--processes", "1")], ids=" ".join)
def test_worker_makes_the_jobs_that_it_runs(
    options: tuple[str, str], store: BaseStore, fleet: Fleet
) -> None:
    """``runworker --with-scheduler``, alone and as a parent."""
    due_at = store.now() - timedelta(seconds=1)
    factories.schedule(
        store,
        "sums",
        task="tests.app.tasks.add",
        args=[1],
        expression="@every 1h",
        next_fire_at=due_at,
        options={"backend": "default"},
    )
    started = fleet.start_one("--with-scheduler", *options)
    assert "  schedules 1 declared" in started.output
    wait_until(lambda: Result.objects.filter(task="tests.app.tasks.add").exists(), "the result")
    values: list[object] = list(Result.objects.values_list("value", flat=True))
    assert values == [3]
    row = store.schedules().get(pk="sums")
    assert (row.fire_count, row.last_fire_at) == (1, due_at)
    assert store.schedules().filter(pk="yearly-sum").exists(), "what code declares was written"
