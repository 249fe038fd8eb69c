"""`runworker` and `sweep` as their users meet them: real processes, signals and exit codes."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from django_workqueue import __version__
from django_workqueue.management.base import WAIT_SECONDS
from django_workqueue.models import LiveJob, Result
from django_workqueue.states import State
from django_workqueue.store import BaseStore, get_store
from tests import jobs
from tests.factories import new_job
from tests.jobs import app
from tests.processes import (
    ROOT,
    UP,
    alone,
    command,
    environment,
    lines,
    running,
    wait_until,
    worker,
)
from tests.timescale import LEASE_SECONDS, PATIENCE_SECONDS, POLL_SECONDS, SCALE, SWEEP_SECONDS

real = pytest.mark.usefixtures("transactional_db")
# The database has no part in it: one is enough, and processes take long to start.
of_arguments = pytest.mark.vendor("sqlite")


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """The file that tasks write to."""
    return tmp_path / "notes"


@pytest.fixture
def go_on(tmp_path: Path) -> Path:
    """The file that waiting tasks look for."""
    return tmp_path / "go_on"


def states() -> list[tuple[str, int]]:
    """Return state and attempt of every live job, in the order of enqueueing."""
    return list(LiveJob.objects.order_by("id").values_list("state", "attempt"))


# Bad usage: one line, exit code 2, no traceback


def refused(arguments: list[str], **more: Any) -> str:
    """Run a command that must be refused; return its one line."""
    done = command(*arguments, **more)
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


@of_arguments
@real
@pytest.mark.parametrize("name", ["runworker", "sweep"])
@pytest.mark.parametrize("more", [[], ["--skip-checks"]])
def test_an_unknown_setting_is_named_with_the_nearest_known_one(name: str, more: list[str]) -> None:
    line = refused([name, *more], settings={"MAX_ATEMPTS": 3})

    assert 'WORKQUEUE["MAX_ATEMPTS"] is not a setting. Did you mean "MAX_ATTEMPTS"?' in line


ONE_SHOT = [["runworker", "--drain"], ["sweep"]]
"""Commands whose end somebody waits for: they do not wait for a database themselves."""
NEWEST = MigrationLoader(None).graph.leaf_nodes("workqueue")[0]
UNREACHABLE = "postgres://nobody@127.0.0.1:1/nothing"


@of_arguments
@pytest.mark.parametrize("arguments", ONE_SHOT)
def test_a_database_that_cannot_be_reached_is_one_line(arguments: list[str]) -> None:
    line = refused(arguments, WORKQUEUE_TEST_DATABASE_URL=UNREACHABLE)

    assert "The queue's database cannot be used" in line


@pytest.mark.django_db
@pytest.mark.parametrize("arguments", ONE_SHOT)
def test_a_missing_migration_is_named_with_the_command_that_applies_it(
    arguments: list[str],
) -> None:
    MigrationRecorder(connection).record_unapplied(*NEWEST)

    with pytest.raises(CommandError) as caught:
        call_command(*arguments)

    assert caught.value.returncode == 2
    assert f"lacks the migration {NEWEST[1]}" in str(caught.value)
    assert "manage.py migrate workqueue --database default" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.django_db
def test_several_missing_migrations_are_named_each() -> None:
    names = sorted(MigrationLoader(connection).graph.nodes)
    *_, before, last = [name for app, name in names if app == "workqueue"]
    for name in (before, last):
        MigrationRecorder(connection).record_unapplied("workqueue", name)

    with pytest.raises(CommandError, match=f"lacks the migrations {before}, {last}\\."):
        call_command("sweep")


@pytest.mark.parametrize(("option", "least"), [("--processes", 0), ("--threads", 1)])
def test_a_count_that_cannot_be_names_the_least_there_is(option: str, least: int) -> None:
    for text in ("-1", "many"):
        with pytest.raises(CommandError, match=f"a whole number of {least} or more, got '{text}'"):
            call_command("runworker", f"{option}={text}")


@of_arguments
@pytest.mark.parametrize("processes", ["0", "1"])
def test_a_worker_waits_for_a_database_and_a_stop_ends_the_wait(processes: str) -> None:
    arguments = ["runworker", "--processes", processes]
    with running(*arguments, WORKQUEUE_TEST_DATABASE_URL=UNREACHABLE) as process:
        process.wait_for("cannot be used")
        process.wait_for("Waiting for it.")
        process.send(signal.SIGTERM)

        assert process.end() == 0
        assert process.output.count("Waiting for it.") == 1
        assert UP not in process.output


@real
def test_a_worker_waits_for_the_migrations_and_begins_once_they_are_applied(notes: Path) -> None:
    recorder = MigrationRecorder(connection)
    app.note.enqueue(str(notes), "a")
    recorder.record_unapplied(*NEWEST)
    try:
        with running("runworker", "--processes", "1", "--log-format", "json") as process:
            process.wait_for(f"lacks the migration {NEWEST[1]}")
            # It looks again, and says nothing more.
            time.sleep(WAIT_SECONDS)
            assert lines(notes) == []
            assert process.output.count("\n") == 1
            recorder.record_applied(*NEWEST)

            wait_until(lambda: lines(notes) == ["a"], "the job")
            process.send(signal.SIGTERM)
            assert process.end() == 0
    finally:
        # Once, whatever happened above.
        recorder.record_unapplied(*NEWEST)
        recorder.record_applied(*NEWEST)


@of_arguments
@pytest.mark.parametrize(
    "arguments",
    [
        ["--quues", "mail"],
        ["--threads", "0"],
        ["--threads", "two"],
        ["--max-jobs", "-1"],
        ["--lease", "soon"],
    ],
)
def test_an_option_that_cannot_be_used_is_a_usage_error(
    arguments: list[str],
) -> None:
    done = command("runworker", *arguments)

    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "runworker: error:" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("runworker", {"lease": -5.0}, '--lease: WORKQUEUE["LEASE_SECONDS"] must be above 0, got'),
        ("runworker", {"lease": float("nan")}, "--lease: "),
        ("runworker", {"poll": 0.0}, "--poll: "),
        ("runworker", {"grace": -1.0}, "--grace: "),
        ("runworker", {"queues": ""}, "--queues must be different names with commas"),
        ("runworker", {"queues": "a,,b"}, "--queues must be different names with commas"),
        ("runworker", {"queues": "a,a"}, "--queues must be different names with commas"),
        ("sweep", {"interval": 0.0}, "--interval: "),
    ],
)
@pytest.mark.django_db
def test_a_value_that_cannot_be_used_is_one_line_that_names_the_option(
    name: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(CommandError) as caught:
        call_command(name, **arguments)

    assert caught.value.returncode == 2
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@of_arguments
@real
def test_a_queue_that_no_backend_has_is_refused_with_those_there_are() -> None:
    line = refused(["runworker", "--queues", "mial"], WORKQUEUE_TEST_QUEUES="default,mail")

    assert "no backend in TASKS has the queue 'mial'; there are default, mail" in line


# What it prints


@real
def test_a_worker_prints_a_start_block_and_a_line_per_outcome(notes: Path) -> None:
    app.note.enqueue(str(notes), "a")
    app.leave.enqueue(3)
    app.always_fails.using(max_attempts=1).enqueue(str(notes))

    done = command("runworker", *alone(["--drain", "--threads", "2", "--queues", "default"]))

    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith(f"django-workqueue {__version__}  worker ")
    block = dict(re.findall(r"^  (\w[\w-]+) +(.+)$", done.stdout, re.MULTILINE))
    assert block.keys() >= {"database", "queues", "slots", "lease", "wake-up", "clock", "tasks"}
    assert block["queues"] == "default"
    assert block["slots"] == "2 threads"
    assert re.match(r"[+-]0\.\d{3} s", block["clock"])
    outcomes = done.stdout.splitlines()[len(block) + 1 :]
    assert len(outcomes) == 3
    assert re.search(
        r"^succeeded  tests\.app\.tasks\.note  \S+  attempt 1/3", done.stdout, re.MULTILINE
    )
    assert re.search(
        r"^dead +tests\.app\.tasks\.leave .*builtins\.SystemExit: 3$", done.stdout, re.MULTILINE
    )
    # An error without a text.
    assert re.search(
        r"^dead +tests\.app\.tasks\.always_fails .*builtins\.ValueError:", done.stdout, re.MULTILINE
    )


@real
def test_a25_a_task_that_is_unknown_keeps_no_drain_from_its_end(notes: Path) -> None:
    unknown = new_job(task="shop.tasks.gone")
    get_store().insert([unknown])
    good = app.note.enqueue(str(notes), "good")

    assert command("runworker", "--drain").returncode == 0

    assert lines(notes) == ["good"]
    assert Result.objects.get().pk == uuid.UUID(good.id)
    held = LiveJob.objects.get(pk=unknown.id)
    assert (held.state, held.held_reason, held.attempt) == (State.HELD, "unknown", 0)


@real
def test_a_worker_is_a_parent_and_a_child_unless_told_otherwise(notes: Path, go_on: Path) -> None:
    app.start_and_wait.enqueue(str(notes), "a", str(go_on))
    with running("runworker", "--threads", "1") as process:
        wait_until(lambda: lines(notes), "the start")
        go_on.touch()
        process.wait_for("succeeded")
        process.send(signal.SIGTERM)

        assert process.end() == 0
        assert "  slots     1 process of 1 thread\n" in process.output
        assert str(process.pid) not in lines(notes)[0].split()


@real
def test_a_program_that_calls_the_command_works_in_its_own_process(notes: Path) -> None:
    result = app.start_and_wait.enqueue(str(notes), "a", __file__)

    call_command("runworker", drain=True, verbosity=0)

    assert lines(notes)[0].split()[-1] == str(os.getpid())
    assert Result.objects.filter(pk=result.id).exists()


@of_arguments
def test_a_command_line_that_cannot_be_repeated_is_refused() -> None:
    code = "from django.core.management import execute_from_command_line as e; e(['x','runworker'])"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_SECONDS,
    )

    assert done.returncode == 2
    assert "give --processes 0" in done.stderr


@real
def test_a_quiet_worker_prints_nothing(notes: Path) -> None:
    app.note.enqueue(str(notes), "a")

    done = command("runworker", "--drain", "--verbosity", "0")

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert lines(notes) == ["a"]


@real
def test_three_jobs_that_exit_leave_the_process_as_it_was(notes: Path) -> None:
    """Case A 22."""
    for _ in range(3):
        app.leave.enqueue(3)
    for number in range(20):
        app.note.enqueue(str(notes), str(number))

    with worker("--threads", "2") as process:
        wait_until(lambda: Result.objects.count() == 20)
        process.send(signal.SIGTERM)
        assert process.end() == 0

    assert sorted(lines(notes), key=int) == [str(number) for number in range(20)]
    assert jobs.counts() == (0, 3, 20)


# Signals


@real
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_what_runs_end_and_gives_back_the_rest_uncharged(
    number: signal.Signals, notes: Path, go_on: Path
) -> None:
    for each in range(8):
        app.start_and_wait.enqueue(str(notes), str(each), str(go_on))
    with worker("--threads", "3") as process:
        wait_until(lambda: len(lines(notes)) == 3)
        process.send(number)
        time.sleep(3 * POLL_SECONDS)  # Time to claim more, which it must not.
        go_on.touch()
        assert process.end() == 0

    ended = [line for line in lines(notes) if line.startswith("end")]
    assert len(ended) == 3
    assert Result.objects.count() == 3
    assert states() == [(State.READY, 0)] * 5

    done = command("runworker", "--drain")
    assert done.returncode == 0
    assert jobs.counts() == (0, 0, 8)
    assert set(Result.objects.values_list("attempts", flat=True)) == {1}


@real
def test_when_the_grace_is_over_what_runs_goes_back_and_the_exit_is_clean(
    notes: Path, go_on: Path
) -> None:
    for each in range(4):
        app.start_and_wait.enqueue(str(notes), str(each), str(go_on))
    with worker("--threads", "2", "--grace", "0.3") as process:
        wait_until(lambda: len(lines(notes)) == 2)
        process.send(signal.SIGTERM)
        assert process.end() == 0
        assert "they were given back" in process.output

    assert states() == [(State.SCHEDULED, 0)] * 2 + [(State.READY, 0)] * 2
    go_on.touch()
    LiveJob.objects.update(run_after=get_store().now())
    assert command("runworker", "--drain").returncode == 0
    assert jobs.counts() == (0, 0, 4)


@real
def test_a_second_signal_stops_at_once_with_exit_code_1_and_everything_is_back(
    notes: Path, go_on: Path
) -> None:
    for each in range(4):
        app.start_and_wait.enqueue(str(notes), str(each), str(go_on))
    with worker("--threads", "2", "--grace", "3600") as process:
        wait_until(lambda: len(lines(notes)) == 2)
        process.send(signal.SIGTERM)
        time.sleep(POLL_SECONDS)
        process.send(signal.SIGTERM)
        assert process.end() == 1

    assert states() == [(State.SCHEDULED, 0)] * 2 + [(State.READY, 0)] * 2
    assert not LiveJob.objects.filter(token__isnull=False).exists()


# Death


@real
def test_a_killed_workers_job_is_finished_by_another_within_a_lease_and_a_sweep(
    notes: Path, go_on: Path
) -> None:
    result = app.start_and_wait.enqueue(str(notes), "job", str(go_on))
    with worker("--threads", "1") as first:
        wait_until(lambda: lines(notes))
        with worker("--threads", "1") as second:
            # Past the time after its start in which a sweeper reclaims nothing.
            time.sleep(LEASE_SECONDS / 3)
            first.kill()
            go_on.touch()
            killed = time.monotonic()
            wait_until(Result.objects.exists)
            took = time.monotonic() - killed
            assert f"end job {second.pid}" in lines(notes)

    # What the machine may be late by, when it is busy, stands beside the promise.
    assert took <= LEASE_SECONDS + SWEEP_SECONDS + POLL_SECONDS + 2 * SCALE
    result.refresh()
    assert result.attempts == 2
    assert "worker lost" in result.errors[0].traceback
    assert jobs.counts() == (0, 0, 1)


@real
def test_many_killed_workers_leave_nothing_running(notes: Path, tmp_path: Path) -> None:
    for each in range(4):
        app.start_and_wait.enqueue(str(notes), str(each), str(tmp_path / "never"))
    with worker("--threads", "2") as first, worker("--threads", "2") as second:
        wait_until(lambda: len(lines(notes)) == 4)
        first.kill()
        second.kill()

    # Four dead rows take no slot of the next worker.
    fresh = app.note.enqueue(str(notes), "fresh")
    (tmp_path / "never").touch()
    with worker("--threads", "4") as third:
        wait_until(lambda: "fresh" in lines(notes))
        wait_until(lambda: Result.objects.count() == 5)
        third.send(signal.SIGTERM)
        assert third.end() == 0

    fresh.refresh()
    assert fresh.attempts == 1
    assert jobs.counts() == (0, 0, 5)


# Concurrency


@real
def test_workers_side_by_side_run_each_job_once(notes: Path) -> None:
    with worker() as one, worker() as two:
        # Of some length: one worker would claim all that are done at once ahead.
        calls: Any = [((str(notes), str(number), 0.05), {}) for number in range(100)]
        app.start_and_end.enqueue_many(calls)
        wait_until(lambda: Result.objects.count() == 100)
        for process in (one, two):
            process.send(signal.SIGTERM)
            assert process.end() == 0, process.output
            assert "succeeded" in process.output, "the other did it all: nothing was tested"
            assert "locked" not in process.output
            assert "IntegrityError" not in process.output

    expected = [f"{part} {number}" for number in range(100) for part in ("start", "end")]
    assert sorted(lines(notes)) == sorted(expected)
    assert set(Result.objects.values_list("attempts", flat=True)) == {1}


# sweep


def lapsed(count: int = 1) -> None:
    """Make *count* jobs whose worker is gone and whose lease has ended."""
    app.echo.enqueue_many([((number,), {}) for number in range(count)])
    jobs.claim(limit=count)
    LiveJob.objects.update(lease_expires_at=get_store().now() - timedelta(seconds=1))


@pytest.mark.django_db
def test_one_sweep_takes_back_what_lapsed_at_once_and_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lapsed(2)

    call_command("sweep")

    assert states() == [(State.READY, 1)] * 2
    first, *told = capsys.readouterr().out.splitlines()
    assert first.startswith("2 reclaimed, 0 expired, 0 buried")
    assert len(told) == 2
    assert "was held by a-worker-of-the-tests" in told[0]


@pytest.mark.django_db
@pytest.mark.parametrize("has_handler", [False, True])
def test_a_warning_without_a_handler_of_the_project_shows_its_fields(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    has_handler: bool,
) -> None:
    logger = logging.getLogger("django_workqueue")
    # As in a project without LOGGING: pytest has handlers at the root.
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr(logger, "handlers", [logging.NullHandler()] if has_handler else [])
    lapsed(1)
    call_command("sweep")
    shown = capsys.readouterr().err
    assert bool(shown) is not has_handler
    if not has_handler:
        assert shown.startswith("job taken back  ")
        assert f"job_id={LiveJob.objects.get().pk}" in shown
    assert logging.lastResort is not None
    assert logging.lastResort.formatter is None


@pytest.mark.django_db
@real
@pytest.mark.parametrize("more", [(), ("--dry-run",), ("--dry-run", "--interval", "1")])
def test_a_sweep_that_an_outage_meets_is_one_line(
    more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def reclaim(store: BaseStore, **options: Any) -> None:
        raise OperationalError("server closed\nthe connection")

    monkeypatch.setattr(type(get_store()), "reclaim", reclaim)

    with pytest.raises(CommandError, match="database failed: server closed the conn") as caught:
        call_command("sweep", *more)
    assert caught.value.returncode == 1


@pytest.mark.django_db
def test_a_dry_run_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    lapsed()

    call_command("sweep", dry_run=True)

    assert states() == [(State.RUNNING, 1)]
    assert capsys.readouterr().out.startswith("would be: 1 reclaimed")


@pytest.mark.django_db
def test_json_is_one_line_with_the_counts_and_the_jobs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lapsed()

    call_command("sweep", json=True)
    call_command("sweep", json=True)

    first, second = capsys.readouterr().out.splitlines()
    report = json.loads(first)
    assert (report["reclaimed"], report["expired"], report["buried"]) == (1, 0, 0)
    assert report["jobs"][0]["task"] == app.echo.module_path
    assert json.loads(second)["reclaimed"] == 0


@real
def test_a_sweep_at_intervals_goes_on_until_a_signal() -> None:
    settings = {"LEASE_SECONDS": 0.3 * SCALE}
    with running("sweep", "--interval", "0.1", settings=settings) as process:
        process.wait_for("reclaimed", count=2)
        lapsed()
        wait_until(lambda: states() == [(State.READY, 1)])
        process.send(signal.SIGTERM)
        assert process.end() == 0


# Cost


@pytest.mark.soak
@pytest.mark.usefixtures("transactional_db")
def test_an_idle_worker_costs_under_a_hundredth_of_a_core() -> None:
    seconds = 30
    with worker(settings={}) as process:
        time.sleep(5)
        before = process.cpu_seconds()
        time.sleep(seconds)
        used = process.cpu_seconds() - before

    assert used / seconds < 0.01, f"{used / seconds:.2%} of a core"
