"""The README, done: its samples make a project, its commands run, its links lead somewhere."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import django
import pytest

from django_workqueue.compat import BACKPORT
from tests.docpages import ROOT, Code, Page, rows
from tests.timescale import PATIENCE_SECONDS

README = Page(ROOT / "README.md")

MAIL_TO_FILES = (
    """
EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
EMAIL_FILE_PATH = BASE_DIR / "mail"
"""
    if django.VERSION < (6, 1)
    else """
MAILERS["default"] = {
    "BACKEND": "django.core.mail.backends.filebased.EmailBackend",
    "OPTIONS": {"file_path": BASE_DIR / "mail"},
}
"""
)

# What the reader's project has already: a model, and a place for mail.
GIVEN = {
    "orders/models.py": """
class Order(models.Model):
    item = models.CharField(max_length=100)
    email = models.EmailField()
""",
    "mysite/settings.py": f"""
INSTALLED_APPS += ["orders"]
ALLOWED_HOSTS = ["testserver"]
{MAIL_TO_FILES}
""",
}


def samples() -> Iterator[tuple[str, Code]]:
    """Yield the samples of the five-minute start that are for this Django and SQLite."""
    for code in README.code("python"):
        heading = re.match(r"# ((?:mysite|orders)/\w+\.py)(.*)\n", code.text)
        if heading is not None and (BACKPORT or heading[2] != " on Django 5.2"):
            yield heading[1], code


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of somebody's, with the README's samples in it."""
    for command in (["startproject", "mysite", "."], ["startapp", "orders"]):
        subprocess.run([sys.executable, "-m", "django", *command], cwd=tmp_path, check=True)
    for name, text in [*GIVEN.items(), *((name, code.text) for name, code in samples())]:
        with (tmp_path / name).open("a", encoding="utf-8") as file:
            file.write(f"\n{text}")
    return tmp_path


def start(project: Path, command: str) -> subprocess.Popen[str]:
    program, *arguments = shlex.split(command)
    assert program == "python"
    environment = {k: v for k, v in os.environ.items() if k != "DJANGO_SETTINGS_MODULE"}
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", *arguments],
        cwd=project,
        env=environment | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(project: Path, command: str) -> str:
    """Run a command to its good end and return what it wrote."""
    with start(project, command) as process:
        output, _ = process.communicate(timeout=PATIENCE_SECONDS * 3)
    assert process.returncode == 0, output
    return output


def run_code(project: Path, code: str) -> str:
    return run(project, f"python manage.py shell --verbosity 0 -c {shlex.quote(code)}")


# Its project has a SQLite file of its own, whatever the other tests run on.
@pytest.mark.vendor("sqlite")
@pytest.mark.timeout(PATIENCE_SECONDS * 9)
def test_five_minute_start_does_what_it_says(project: Path) -> None:
    shown = "".join(code.text for code in README.code("console"))
    install, *make_tables, runworker = re.findall(r"^\$ (.+)$", shown, re.MULTILINE)
    assert install == "python -m pip install ./django-workqueue"
    for command in make_tables:
        run(project, command)
    assert "no issues" in run(project, "python manage.py check")

    buy = "from django.test import Client; print(Client().post('/buy/', {}).content.decode())"
    sale = buy.replace("{}", "{'item': 'Teapot', 'email': 'ada@example.org'}")
    job_id = run_code(project, sale).split()[1]
    rolled_back = (
        "from django.db import transaction\n"
        "from orders.tasks import send_receipt\n"
        "with transaction.atomic():\n"
        "    print(send_receipt.enqueue(1).id)\n"
        "    transaction.set_rollback(True)"
    )
    assert run_code(project, rolled_back).strip() != job_id

    with start(project, runworker) as worker:
        assert worker.stdout is not None
        outcome = next(line for line in worker.stdout if "  orders.tasks.send_receipt  " in line)
        worker.terminate()
        rest, _ = worker.communicate(timeout=PATIENCE_SECONDS)
    assert worker.returncode == 0, rest
    assert outcome.startswith(f"succeeded  orders.tasks.send_receipt  {job_id}  attempt 1/5")
    assert "  orders.tasks.send_receipt  " not in rest
    (mail,) = (project / "mail").iterdir()
    assert "Thank you for Teapot." in mail.read_text()


def test_samples_for_this_django_are_found() -> None:
    names = [name for name, _ in samples()]
    assert names.count("mysite/settings.py") == (3 if BACKPORT else 2)
    assert {"orders/tasks.py", "orders/views.py", "mysite/urls.py"} <= set(names)


def test_two_commands_stand_on_lines_of_their_own() -> None:
    blocks = [code.text for code in README.code("console")]
    assert "python3 demo.py\n" in blocks
    assert "python3 runtests.py\n" in blocks


def test_links_lead_somewhere() -> None:
    for target in README.links:
        path, _, anchor = target.partition("#")
        page = Page(ROOT / path) if path else README
        assert page.path.is_file(), target
        assert not anchor or anchor in page.anchors, target
    assert len(README.links) > 5


def test_every_promise_is_in_the_table() -> None:
    table = rows(README.section("What it promises"))
    assert [row[0] for row in table] == [f"G{n}" for n in range(1, 15)]


def test_what_is_promised_for_later_is_marked() -> None:
    """The explanation leaves out the promises that do not hold yet; the table calls them later."""
    explained = Page(ROOT / "docs/explanation/guarantees.md").labels
    for name, _, state in rows(README.section("What it promises")):
        assert state.startswith("**later**") == (name.lower() not in explained), name
