"""`runworker --processes`: children that die, drain, are stopped or lose their parent."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import DataError

from django_workqueue.board import Board
from django_workqueue.child import Child, is_stopped
from django_workqueue.ending import EXIT_GAVE_UP, EXIT_RECYCLE
from django_workqueue.models import DeadJob, LiveJob, Result
from django_workqueue.models import Worker as WorkerRow
from django_workqueue.parent import Parent
from django_workqueue.store import get_store
from django_workqueue.supervisor import MAX_FAILED_STARTS, Plan, Supervisor
from django_workqueue.sweeper import Sweeper
from django_workqueue.worker import Options, Worker
from tests import factories
from tests.jobs import app
from tests.processes import ROOT, Process, command, environment, lines, wait_until, worker
from tests.store_faults import Fault, with_faults
from tests.timescale import GRACE_SECONDS, LEASE_SECONDS, PATIENCE_SECONDS

real = pytest.mark.usefixtures("transactional_db")
# The database has no part in it: one is enough, and processes take long to start.
of_processes = pytest.mark.vendor("sqlite")
LONG = ("--lease", "600")
"""A lease that no test outlasts: what comes back does not come back by its end."""


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


@pytest.fixture
def go_on(tmp_path: Path) -> Path:
    return tmp_path / "go_on"


def children(parent: int) -> list[int]:
    """Return the process ids of the children of a process (Linux)."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return sorted(found)


def child_that_runs(process: Process, notes: Path) -> int:
    """Return the child that runs the one job, once it has started."""
    wait_until(lambda: lines(notes), "the start")
    worker_id = LiveJob.objects.values_list("worker_id", flat=True).get(state="running")
    assert worker_id is not None
    shown = wait_until_shown(worker_id)
    assert shown in children(process.pid)
    return shown


def wait_until_shown(worker_id: str) -> int:
    wait_until(lambda: WorkerRow.objects.filter(pk=worker_id).exists(), "the worker's row")
    return WorkerRow.objects.get(pk=worker_id).pid


@real
def test_a_job_of_a_killed_child_starts_again_without_waiting_for_its_lease(
    notes: Path, go_on: Path
) -> None:
    result = app.start_and_wait.enqueue(str(notes), "a", str(go_on))
    with worker("--processes", "2", "--threads", "1", *LONG) as process:
        os.kill(child_that_runs(process, notes), signal.SIGKILL)

        wait_until(lambda: len(lines(notes)) == 2, "the second start")
        go_on.touch()
        wait_until(lambda: Result.objects.filter(pk=result.id).exists(), "the end")

        row = Result.objects.get(pk=result.id)
        assert row.attempts == 2
        errors: Any = row.errors
        (error,) = errors
        assert error["outcome"] == "lost"
        assert "signal 9 (SIGKILL)" in error["message"]
        assert "memory was" in error["message"]
        wait_until(lambda: len(children(process.pid)) == 2, "the new child")
        assert not process.ended


@real
def test_a_job_that_ends_its_process_each_time_is_dead_after_its_budget_and_harms_no_other(
    notes: Path,
) -> None:
    """Case A 14."""
    poison = app.exit_process.enqueue(137)
    with worker("--processes", "1", "--threads", "1", *LONG) as process:
        wait_until(lambda: DeadJob.objects.exists(), "the death")
        dead = DeadJob.objects.get(pk=poison.id)
        assert (dead.reason, dead.attempt) == ("lost", 3)
        assert ["exit status 137" in each["message"] for each in dead.errors] == [True] * 3

        app.note.enqueue(str(notes), "good")
        wait_until(lambda: lines(notes) == ["good"], "the good job")
        assert not process.ended


@real
def test_a_stop_ends_with_0_once_the_running_jobs_have_ended(notes: Path, go_on: Path) -> None:
    result = app.start_and_wait.enqueue(str(notes), "a", str(go_on))
    with worker("--processes", "2", "--threads", "1", "--grace", "30", *LONG) as process:
        wait_until(lambda: lines(notes), "the start")
        process.send(signal.SIGTERM)
        go_on.touch()

        assert process.end() == 0
        assert Result.objects.get(pk=result.id).attempts == 1
        assert children(process.pid) == []


@real
@pytest.mark.parametrize("signals", [1, 2])
def test_what_a_stop_cuts_short_goes_back_uncharged(notes: Path, go_on: Path, signals: int) -> None:
    app.start_and_wait.enqueue(str(notes), "a", str(go_on))
    grace = str(GRACE_SECONDS if signals == 1 else 600)
    with worker("--processes", "1", "--threads", "1", "--grace", grace, *LONG) as process:
        wait_until(lambda: lines(notes), "the start")
        for _ in range(signals):
            process.send(signal.SIGTERM)
            # Two at once would be one.
            wait_until(lambda: pending_signals(process.pid) == 0, "the delivery")

        assert process.end() == (0 if signals == 1 else 1)
        row = LiveJob.objects.get()
        assert (row.state, row.attempt, row.errors) == ("ready", 0, [])


def pending_signals(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    masks = [line.split()[1] for line in status.splitlines() if line.startswith("ShdPnd")]
    return int(masks[0], 16)


@of_processes
@real
def test_children_replace_themselves_after_max_jobs_and_a_drain_ends(notes: Path) -> None:
    for number in range(7):
        app.note.enqueue(str(notes), str(number))

    with worker("--processes", "2", "--threads", "1", "--max-jobs", "2", "--drain") as process:
        assert process.end() == 0

    assert sorted(lines(notes)) == [str(number) for number in range(7)]
    assert LiveJob.objects.count() == 0


@real
@pytest.mark.vendor("postgresql")
def test_a_child_with_too_much_memory_is_replaced_once_it_has_drained(
    notes: Path, go_on: Path
) -> None:
    go_on.touch()
    for number in range(3):
        app.start_and_wait.enqueue(str(notes), str(number), str(go_on))

    # Less than any process takes: each runs what it claimed first.
    options = ("--threads", "1", "--max-memory", "1", "--drain")
    with worker("--processes", "1", *options) as process:
        assert process.end() == 0

    ends = [line.split() for line in lines(notes) if line.startswith("end")]
    assert sorted(name for _, name, _ in ends) == ["0", "1", "2"]
    assert len({pid for _, _, pid in ends}) == 3


@of_processes
@real
def test_a_worker_without_a_parent_ends_with_0_when_it_takes_too_much_memory(
    notes: Path,
) -> None:
    for number in range(3):
        app.note.enqueue(str(notes), str(number))

    done = command("runworker", "--processes", "0", "--threads", "1", "--max-memory", "1")

    assert done.returncode == 0
    assert lines(notes) == ["0"]
    assert states() == [("ready", 0)] * 2


def states() -> list[tuple[str, int]]:
    return list(LiveJob.objects.values_list("state", "attempt"))


@of_processes
@real
@pytest.mark.parametrize("code", [0, EXIT_RECYCLE, EXIT_GAVE_UP])
def test_a_task_that_exits_as_a_worker_does_is_charged_all_the_same(code: int) -> None:
    poison = app.exit_process.enqueue(code)
    with worker("--processes", "1", "--threads", "1", "--drain", *LONG) as process:
        assert process.end() == 0

    dead = DeadJob.objects.get(pk=poison.id)
    assert (dead.reason, dead.attempt) == ("lost", 3)


@of_processes
@real
def test_a_child_that_a_signal_stopped_does_not_end_the_drain(notes: Path, go_on: Path) -> None:
    app.start_and_wait.enqueue(str(notes), "a", str(go_on))
    with worker("--processes", "1", "--threads", "1", "--drain", *LONG) as process:
        child = child_that_runs(process, notes)
        app.note.enqueue(str(notes), "later")
        os.kill(child, signal.SIGTERM)
        wait_until(lambda: pending_signals(child) == 0, "the delivery")
        go_on.touch()

        assert process.end() == 0
    assert LiveJob.objects.count() == 0


@real
def test_one_stop_sent_to_every_process_is_one_stop() -> None:
    board = Board.create(4)
    reader, writer = os.pipe()
    child = Worker(Options(), parent=Parent("w", board, reader))

    # A service manager's own, and then the parent's.
    child.stop(1)
    board.ask_stop(1)
    child.stop(2)
    child._ending.begin()
    assert not child._ending.over([])

    board.ask_stop(2)
    child.stop(3)
    assert child._ending.over([])
    child.wakeup.close()
    board.close()
    os.close(reader)
    os.close(writer)


@of_processes
@real
def test_workers_go_on_when_nobody_reads_what_they_print(notes: Path) -> None:
    for number in range(3):
        app.note.enqueue(str(notes), str(number))
    reader, writer = os.pipe()
    os.close(reader)

    done = subprocess.run(
        [sys.executable, "-m", "django", "runworker", "--processes", "1", "--drain"],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=2 * PATIENCE_SECONDS,
        check=False,
    )

    os.close(writer)
    assert done.returncode == 0, done.stderr
    assert sorted(lines(notes)) == ["0", "1", "2"]


@real
def test_children_of_a_killed_parent_end_by_themselves(notes: Path, go_on: Path) -> None:
    """Case O14."""
    result = app.start_and_wait.enqueue(str(notes), "a", str(go_on))
    with worker("--processes", "2", "--threads", "1", "--grace", "30", *LONG) as process:
        wait_until(lambda: lines(notes), "the start")
        orphans = children(process.pid)
        assert len(orphans) == 2
        process.send(signal.SIGKILL)
        go_on.touch()

        wait_until(lambda: not any(map(alive, orphans)), "the end of the children")
        assert Result.objects.get(pk=result.id).attempts == 1


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@real
def test_a_program_that_calls_the_command_cannot_ask_for_children() -> None:
    with pytest.raises(CommandError, match="--processes must be 0") as caught:
        call_command("runworker", "--processes", "1")
    assert caught.value.returncode == 2


# With children that are not Django


ENDS = "import sys; sys.exit(int(sys.argv[1]))"
WAITS = "import signal; signal.pause()"


class Spawned:
    """Starts small programs as children, and remembers what they were given."""

    def __init__(self, *command: str, begun: int = 0) -> None:
        self.command = command
        self.boards: list[tuple[str, Board]] = []

    def __call__(self, worker_id: str, board: Board, alive: int) -> subprocess.Popen[bytes]:
        self.boards.append((worker_id, board))
        return subprocess.Popen([sys.executable, "-c", *self.command], stdin=subprocess.DEVNULL)


@pytest.fixture
def plan() -> Plan:
    return Plan(processes=1, slots=4, sweep=False)


@of_processes
@real
def test_children_that_never_start_end_the_parent_with_the_reason(plan: Plan) -> None:
    spawned = Spawned(ENDS, "3")
    supervisor = Supervisor(plan, spawned)

    assert supervisor.run() == 1

    assert len(spawned.boards) == MAX_FAILED_STARTS
    assert f"{MAX_FAILED_STARTS} children in a row died at once" in supervisor.failure
    assert "exit status 3" in supervisor.failure


@of_processes
@real
def test_children_that_work_go_on_where_no_other_can_be_started(plan: Plan) -> None:
    supervisor = Supervisor(plan, Spawned("input()"))
    board = Board.create(4)
    board.begin(0, (uuid.uuid4(), uuid.uuid4()))
    working = child_of_a_board(board)
    supervisor._children.append(working)
    for _ in range(MAX_FAILED_STARTS):
        supervisor._note_failed_start("exit status 3")
    assert supervisor.failure == ""

    supervisor._children.remove(working)
    supervisor._note_failed_start("exit status 3")
    assert "exit status 3" in supervisor.failure
    working.kill()
    working.process.wait()
    working.close()


@of_processes
@real
def test_a_child_that_hangs_before_it_is_up_is_given_up(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_workqueue.child.START_SECONDS", 0.1)
    monkeypatch.setattr("django_workqueue.supervisor.MAX_FAILED_STARTS", 2)
    spawned = Spawned(WAITS)
    supervisor = Supervisor(plan, spawned)

    assert supervisor.run() == 1

    assert len(spawned.boards) == 2
    assert "signal 9 (SIGKILL), since it was not up within 0.1 s" in supervisor.failure


@of_processes
@real
def test_children_that_die_as_soon_as_they_are_up_end_the_parent_but_one_bad_job_never_does(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_workqueue.supervisor.MAX_FAILED_STARTS", 2)
    spawn = Spawned(ENDS, "3")
    hold = (uuid.uuid4(), uuid.uuid4())
    bad_jobs = 3

    def up(worker_id: str, board: Board, alive: int) -> subprocess.Popen[bytes]:
        board.show_ready()
        if len(spawn.boards) < bad_jobs:
            board.begin(0, hold)
        return spawn(worker_id, board, alive)

    supervisor = Supervisor(plan, up)

    assert supervisor.run() == 1

    assert len(spawn.boards) == bad_jobs + 2
    assert "2 children in a row died at once" in supervisor.failure


@of_processes
@real
def test_an_idle_child_that_was_up_for_long_may_die_of_anything(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_workqueue.child.AT_ONCE_SECONDS", 0.0)
    supervisor = Supervisor(plan, Spawned(WAITS))
    supervisor._start()
    (child,) = supervisor._children
    child.board.show_ready()
    supervisor._step()
    child.process.kill()
    child.process.wait(PATIENCE_SECONDS)

    supervisor._reap()

    assert supervisor._failed_starts == 0
    supervisor.stop(2)
    supervisor.run()


@real
def test_of_a_dead_childs_jobs_only_the_begun_are_charged(plan: Plan) -> None:
    store = get_store()
    spawned = Spawned(WAITS)
    supervisor = Supervisor(plan, spawned)
    supervisor._start()
    ((worker_id, board),) = spawned.boards
    begun, waiting = (
        factories.running(store, now=None, worker_id=worker_id, task=task) for task in "ab"
    )
    board.show_ready()
    board.begin(0, begun.hold)
    (child,) = supervisor._children
    child.process.kill()
    child.process.wait(PATIENCE_SECONDS)

    supervisor._reap()
    supervisor._give_back(child)

    rows: dict[str, Any] = {
        row.task: (row.state, row.attempt, row.suspect, row.deaths) for row in LiveJob.objects.all()
    }
    assert rows == {"a": ("ready", 1, True, 1), "b": ("ready", 0, False, 0)}
    child.close()
    assert waiting.attempt == 1


@of_processes
@real
def test_a_child_that_cannot_be_started_ends_the_parent_with_the_reason(plan: Plan) -> None:
    def spawn(worker_id: str, board: Board, alive: int) -> subprocess.Popen[bytes]:
        raise OSError(errno.EAGAIN, "no process is left")

    supervisor = Supervisor(plan, spawn)

    assert supervisor.run() == 1
    assert "no process is left" in supervisor.failure


@real
@pytest.mark.parametrize("lacking", ["pipe", "dup"])
def test_a_parent_without_a_descriptor_left_keeps_the_children_it_has(
    plan: Plan, lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = Supervisor(plan, Spawned(WAITS))
    supervisor._start()

    def none_left(*given: Any) -> Any:
        raise OSError(errno.EMFILE, "no descriptor is left")

    with monkeypatch.context() as lack:
        lack.setattr(os, lacking, none_left)
        supervisor._start()

    (child,) = supervisor._children
    assert (child.process.poll(), supervisor._failed_starts) == (None, 1)
    child.kill()
    child.process.wait(PATIENCE_SECONDS)
    child.close()


@real
def test_jobs_that_cannot_be_given_back_keep_no_other_childs_from_it(plan: Plan) -> None:
    store = get_store()
    spawned = Spawned(ENDS, "3")
    supervisor = Supervisor(plan, spawned)
    for _ in range(2):
        supervisor._start()
    first, second = supervisor._children
    for child in (first, second):
        factories.running(store, now=None, worker_id=child.worker_id)
        child.process.wait(PATIENCE_SECONDS)
    fault = Fault(
        "release_strays", DataError("refused"), when=lambda who, *more: who == first.worker_id
    )
    supervisor._store = with_faults(store, fault)
    supervisor.failure = "no more children"

    supervisor.run()

    assert fault.bitten == 1
    states = dict(LiveJob.objects.values_list("worker_id", "state"))
    assert states == {first.worker_id: "running", None: "ready"}


@real
def test_a_stop_reaches_the_children_while_the_parent_waits_for_the_database(plan: Plan) -> None:
    supervisor = Supervisor(plan, Spawned(WAITS))
    supervisor._start()
    (child,) = supervisor._children

    # No step, which the database may hold up, comes after it.
    supervisor.stop()

    assert child.board.asked == 1
    assert child.process.wait(PATIENCE_SECONDS) == -signal.SIGTERM
    supervisor.run()


@real
def test_a_child_that_was_being_started_when_the_stop_came_is_told_of_it(plan: Plan) -> None:
    spawn = Spawned(WAITS)

    def interrupted(worker_id: str, board: Board, alive: int) -> subprocess.Popen[bytes]:
        supervisor.stop()
        return spawn(worker_id, board, alive)

    supervisor = Supervisor(plan, interrupted)
    supervisor._start()

    (child,) = supervisor._children
    assert child.process.wait(PATIENCE_SECONDS) == -signal.SIGTERM
    supervisor.run()
    assert not WorkerRow.objects.exists()


@real
def test_a_row_that_cannot_be_swept_ends_no_child(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def step(sweeper: Sweeper) -> float:
        raise ValueError("edited by hand")

    monkeypatch.setattr(Sweeper, "step", step)
    supervisor = Supervisor(replace(plan, sweep=True), Spawned(WAITS))
    supervisor._start()

    assert supervisor._step() > 0

    (child,) = supervisor._children
    assert child.process.poll() is None
    assert "sweep failed" in caplog.messages
    supervisor.stop(2)
    supervisor.run()


# Suspects


@real
@pytest.mark.parametrize("threads", [1, 4])
def test_a_poison_job_takes_no_innocent_one_along(notes: Path, threads: int) -> None:
    poison = app.exit_process.enqueue(137)
    for number in range(14):
        app.start_and_end.enqueue(str(notes), str(number), 0.2)

    with worker("--processes", "1", "--threads", str(threads), *LONG) as process:
        wait_until(lambda: LiveJob.objects.count() == 0, "the end of all")
        assert not process.ended

    dead = DeadJob.objects.get()
    assert (str(dead.pk), dead.reason, dead.deaths, dead.attempt) == (poison.id, "lost", 2, 3)
    ends = {line.split()[1] for line in lines(notes) if line.startswith("end")}
    assert ends == {str(number) for number in range(14)}
    assert Result.objects.count() == 14
    # Each death but the first was the poison's alone.
    assert max(Result.objects.values_list("attempts", flat=True)) <= 2


# Silence


@real
@pytest.mark.parametrize("processes", ["0", "1"])
def test_a_job_that_lets_nothing_else_run_for_leases_is_run_once_where_a_parent_extends(
    notes: Path, processes: str
) -> None:
    """Without a parent it lapses, and another worker runs it too: the control."""

    def starts() -> int:
        return sum(line.startswith("start") for line in lines(notes))

    options = ("--processes", processes, "--threads", "1")
    with worker(*options), worker(*options) as other:
        # Past the time after its start in which a sweeper reclaims nothing.
        time.sleep(LEASE_SECONDS / 3)
        result = app.hold_interpreter.enqueue(str(notes), "a", 4 * LEASE_SECONDS)
        wait_until(lambda: starts() == 2 or Result.objects.exists(), "the end")
        assert not other.ended

    assert starts() == (1 if processes == "1" else 2)
    assert Result.objects.filter(pk=result.id).exists() == (processes == "1")


@real
def test_a_task_that_lets_nothing_else_run_is_ended_at_its_limit_and_harms_no_other(
    notes: Path, go_on: Path
) -> None:
    beside = app.start_and_wait.enqueue(str(notes), "beside", str(go_on))
    with worker("--processes", "1", "--threads", "2", *LONG) as process:
        wait_until(lambda: lines(notes), "the start")
        bad = app.hold_interpreter.using(timeout=0.5, max_attempts=2).enqueue(
            str(notes), "bad", 10 * PATIENCE_SECONDS
        )
        wait_until(lambda: DeadJob.objects.exists(), "the death")
        go_on.touch()
        wait_until(lambda: Result.objects.filter(pk=beside.id).exists(), "the other's end")
        assert not process.ended

    dead: Any = DeadJob.objects.get(pk=bad.id)
    assert (dead.reason, dead.attempt, dead.deaths) == ("timeout", 2, 0)
    assert [each["outcome"] for each in dead.errors] == ["timeout"] * 2
    assert "must end within 0.5 s" in dead.errors[0]["message"]
    assert "let nothing else run" in dead.errors[0]["message"]
    row: Any = Result.objects.get(pk=beside.id)
    assert (row.attempts, row.errors) == (1, [])


@real
def test_a_cancelled_task_that_lets_nothing_else_run_is_ended_after_the_grace(
    notes: Path,
) -> None:
    bad = app.hold_interpreter.enqueue(str(notes), "bad", 10 * PATIENCE_SECONDS)
    with worker("--processes", "1", "--threads", "1", "--grace", "0.5") as process:
        wait_until(lambda: lines(notes), "the start")
        assert get_store().cancel(uuid.UUID(bad.id))
        wait_until(lambda: Result.objects.filter(pk=bad.id).exists(), "the end")
        assert not process.ended

    assert Result.objects.get(pk=bad.id).outcome == "cancelled"
    assert lines(notes) == ["start bad"]
    assert LiveJob.objects.count() == 0


def child_of_a_board(board: Board) -> Child:
    """Return a child that waits, and never shows that it is alive."""
    process = subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.DEVNULL)
    return Child("w", board, process, os.open(os.devnull, os.O_RDONLY))


@of_processes
def test_a_child_that_was_stopped_is_not_silent_and_one_that_hangs_for_long_is_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    board = Board.create(4, lease_seconds=0.06)
    child = child_of_a_board(board)
    board.show_ready()
    child.look()
    wait_until(lambda: child.silent, "the silence")

    child.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: is_stopped(child.process.pid), "the stop")
    assert not child.silent
    child.process.send_signal(signal.SIGCONT)
    wait_until(lambda: child.silent, "the silence again")

    child.look()
    silent_seconds = board.silent_seconds
    wait_until(lambda: board.silent_seconds >= silent_seconds + 0.4, "a longer silence")
    monkeypatch.setattr("django_workqueue.child.HUNG_SECONDS", 0.4)
    # This process did not look for as long: both may have stood still.
    child.look()
    assert child.process.poll() is None
    child.look()
    assert child.process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    assert "since it showed no sign of life" in child.told
    # Its jobs are charged: nobody wanted that end.
    assert not child.killed
    child.close()
