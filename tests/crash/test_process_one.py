"""Case A 28: `runworker` is process 1, of a namespace here as in a container."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from django_workqueue.models import LiveJob, Result
from tests.jobs import app
from tests.processes import ROOT, environment, lines, wait_until
from tests.timescale import PATIENCE_SECONDS

pytestmark = pytest.mark.django_db(transaction=True)

NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc"]


@functools.cache
def namespaces() -> bool:
    """Whether this machine lets us make a namespace of processes."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode == 0


@pytest.mark.parametrize("processes", ["0", "1"])
def test_process_one_lets_its_job_end_after_sigterm(tmp_path: Path, processes: str) -> None:
    """Where no namespace can be made, the same without: a shell that execs, as in a container."""
    notes, go_on = tmp_path / "notes", tmp_path / "go_on"
    result = app.start_and_wait.enqueue(str(notes), "a", str(go_on))
    command = [sys.executable, "-m", "django", "runworker", "--processes", processes]
    command += ["--threads", "1", "--grace", "60"]
    with subprocess.Popen(
        [*(NAMESPACE if namespaces() else []), *command],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            wait_until(lambda: lines(notes), "the start")
            one = child_of(process.pid) if namespaces() else process.pid
            if namespaces() and processes == "0":
                assert lines(notes)[0].split()[-1] == "1"
            later = app.note.enqueue(str(notes), "later")
            os.kill(one, signal.SIGTERM)
            wait_until(lambda: pending(one) == 0, "the delivery")
            go_on.touch()

            assert process.wait(2 * PATIENCE_SECONDS) == 0
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert Result.objects.get(pk=result.id).attempts == 1
    # Nothing was claimed after the signal, and nothing lost an attempt.
    row = LiveJob.objects.get()
    assert (str(row.pk), row.state, row.attempt) == (later.id, "ready", 0)


def child_of(pid: int) -> int:
    """Return the only child of a process, as this namespace numbers it."""
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def pending(pid: int) -> int:
    """Return the signals that wait to be delivered to a process."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    masks = [line.split()[1] for line in status.splitlines() if line.startswith("ShdPnd")]
    return int(masks[0], 16)
