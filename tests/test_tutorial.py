"""The tutorial, done: its files are written, its commands are run, its letters arrive.

Not the admin's part, which `tests/test_admin.py` covers: the job is requeued by the store.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from django_workqueue.compat import BACKPORT
from tests.docpages import ROOT, Code, page

TUTORIAL = page("tutorial/index.md")
ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")

pytestmark = [
    # Its project has a SQLite file of its own, whatever the other tests run on.
    pytest.mark.vendor("sqlite"),
    pytest.mark.timeout(180),
]

Run = Callable[[str], str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the project as the tutorial's text makes it."""
    django_admin = [sys.executable, "-m", "django"]
    subprocess.run([*django_admin, "startproject", "club", "."], cwd=tmp_path, check=True)
    subprocess.run([*django_admin, "startapp", "members"], cwd=tmp_path, check=True)
    for code in TUTORIAL.code("python"):
        write(tmp_path, code)
    if BACKPORT:
        with (tmp_path / "club/settings.py").open("a") as settings:
            settings.write('INSTALLED_APPS.append("django_tasks")\n')
    return tmp_path


def write(folder: Path, code: Code) -> None:
    """Put a sample into the file that the text before it names last."""
    named = re.findall(r"`((?:club|members)/\w+\.py|\w+\.py)`", code.before)
    path = folder / (named[-1] if named else "club/settings.py")
    # The settings are added to what Django wrote; every other file is the sample's.
    mode = "a" if path.name == "settings.py" else "w"
    with path.open(mode, encoding="utf-8") as file:
        file.write(f"\n{code.text}")


@pytest.fixture
def run(folder: Path) -> Run:
    """Run one of the tutorial's commands; return what it printed."""
    environment = {k: v for k, v in os.environ.items() if k != "DJANGO_SETTINGS_MODULE"}
    environment["PYTHONPATH"] = str(ROOT)

    def run_command(command: str) -> str:
        program, *arguments = shlex.split(command)
        assert program == "python"
        done = subprocess.run(
            [sys.executable, "-Wignore", *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run_command


def commands(section: str) -> list[str]:
    """Return the commands of a section that are ours to run, in order."""
    lines = re.findall(r"^\$ (python manage\.py .*)$", TUTORIAL.section(section), re.MULTILINE)
    assert lines, f"{section} must show a command"
    return lines


def test_tutorial_does_what_it_says(folder: Path, run: Run) -> None:
    for command in commands("2. A model and a task"):
        run(command)
    assert "workqueue" not in run("python manage.py check")

    join, drain, ask = commands("3. The first job")
    job_id = run(join).split()[-1]
    assert not (folder / "letters").exists()
    printed = run(drain)
    assert re.search(
        rf"^succeeded  members.tasks.welcome  {job_id}  attempt 1/3", printed, re.MULTILINE
    )
    assert_block_is_told(printed)
    assert "Welcome, Ada!" in (folder / "letters/1.txt").read_text()
    assert run(ID.sub(job_id, ask)).split()[-2:] == ["SUCCESSFUL", "1.txt"]

    change, drain_quietly = commands("4. A transaction that rolls back")
    assert "changed my mind" in run(change)
    assert run(drain_quietly) == ""
    assert [each.name for each in (folder / "letters").iterdir()] == ["1.txt"]

    join_badly, work = commands("5. A retry")
    run(join_badly)
    outcomes = re.findall(
        r"^(\w+) +members\.tasks\.welcome", run(f"{work} --processes 0 --max-jobs 3"), re.MULTILINE
    )
    assert outcomes == ["scheduled", "scheduled", "dead"]

    correct = (
        "from members.models import Member; from django_workqueue.models import DeadJob; "
        "from django_workqueue.store import get_store; "
        "Member.objects.filter(name='Grace').update(email='grace@example.com'); "
        "print([get_store().requeue(job.pk) for job in DeadJob.objects.all()])"
    )
    assert "[True]" in run(f"python manage.py shell -c {shlex.quote(correct)}")
    assert "succeeded" in run(drain)
    assert (folder / "letters/2.txt").exists()


def assert_block_is_told(printed: str) -> None:
    """What `runworker` prints at its start has the lines that the tutorial and reference show."""
    block = re.match(r"(?:.+\n(?:  .+\n)+)", printed)
    assert block is not None
    keys = [line.split()[0] for line in block[0].splitlines()]
    for where in (TUTORIAL, page("reference/commands.md")):
        shown = re.search(r"^django-workqueue \d.+\n(?:  .+\n)+", where.text, re.MULTILINE)
        assert shown is not None
        assert [line.split()[0] for line in shown[0].splitlines()] == keys
