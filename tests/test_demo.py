"""The demonstration: what it says is what happened, twice is once, and nothing is left running."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import demo
from tests.shopping import ROOT, Shop, shop_environment
from tests.timescale import PATIENCE_SECONDS

HERE = Path(sys.executable)
"""The tests' own Python stands in for the environment that the demonstration would make."""

pytestmark = [pytest.mark.vendor("sqlite"), pytest.mark.timeout(PATIENCE_SECONDS * 12)]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """The demonstration's own shop, in a folder and on a database of this test."""
    with shop_environment(tmp_path) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(demo, "VAR", tmp_path)
        yield Shop(tmp_path, dict(os.environ))


def processes_of(shop: Shop) -> list[int]:
    """Return the ids of the processes that work for *shop*."""
    mark = f"SHOP_VAR={shop.folder}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:  # of another user, or gone by now
            continue
    return [pid for pid in found if pid != os.getpid()]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_second_demonstration_changes_nothing(
    shop: Shop, capfd: pytest.CaptureFixture[str]
) -> None:
    demo.demonstrate(HERE)
    first = capfd.readouterr().out
    assert "320 orders saved, 308 of them with a receipt to mail" in first
    assert "the admin says: 1 job was requeued." in first
    assert re.search(r"^orders +320$", first, re.MULTILINE)
    assert re.search(r"^receipts +300 mailed, 300 files in ", first, re.MULTILINE)
    assert re.search(r"^retries +18$", first, re.MULTILINE)
    assert re.search(r"^dead jobs +8$", first, re.MULTILINE)
    assert "demo.py --admin" in first
    assert processes_of(shop) == []

    receipts = shop.receipts()
    assert len(receipts) == 300
    assert "To: ada.lovelace@example.org" in receipts["SO-1017"][0]

    demo.demonstrate(HERE)
    second = capfd.readouterr().out
    assert "0 orders saved" in second
    assert "SO-1017 has no dead receipt: corrected in an earlier run" in second
    report = r"(?s)\norders .*\ndead jobs +8\n"
    assert re.findall(report, second) == re.findall(report, first)
    assert shop.receipts() == receipts
    assert processes_of(shop) == []


def test_failed_step_ends_the_workers(shop: Shop) -> None:
    demo.manage(HERE, "migrate", "--verbosity=0")
    with pytest.raises(subprocess.CalledProcessError), demo.workers(HERE):
        started = [pid for pid in processes_of(shop) if parent_of(pid) == os.getpid()]
        assert len(started) == demo.WORKER_COUNT  # the control
        demo.manage(HERE, "import_orders", "there-is-no-such-file.csv")
    assert processes_of(shop) == []


def test_worker_that_ends_by_itself_fails_the_demonstration(shop: Shop) -> None:
    # No table was made: both workers wait.
    with pytest.raises(subprocess.CalledProcessError, match="SIGKILL"), demo.workers(HERE):
        for pid in processes_of(shop):
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_admin_is_served_until_interrupted(shop: Shop) -> None:
    # SIGINT is ignored in what a shell runs beside itself, and in all that comes of it.
    code = (
        "import signal, sys, demo; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "demo.show_admin(demo.Path(sys.executable))"
    )
    with subprocess.Popen(
        [HERE, "-c", code],
        cwd=ROOT,
        env=shop.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        address = next(line.split()[-1] for line in process.stdout if "dead jobs" in line)
        page = served(address)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_SECONDS * 3)
    assert 'name="password"' in page
    assert process.returncode == 0
    assert processes_of(shop) == []


def served(address: str) -> str:
    """Return a page of a server that may still be starting."""
    for _ in range(int(PATIENCE_SECONDS * 10)):
        try:
            with urllib.request.urlopen(address, timeout=PATIENCE_SECONDS) as answer:
                return str(answer.read().decode())
        except urllib.error.URLError:
            time.sleep(0.1)
    raise AssertionError(f"nothing answers at {address}")


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_one_command_does_all_of_it_from_a_clean_clone(tmp_path: Path) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, tracked.stdout.split("\0")):
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in {"DJANGO_SETTINGS_MODULE", "DATABASE_URL", "PYTHONPATH", "VIRTUAL_ENV"}
    }
    for saved in ("320 orders saved", "0 orders saved"):
        done = subprocess.run(
            [sys._base_executable, "demo.py"],  # type: ignore[attr-defined]  # of the installation
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert saved in done.stdout
        assert "dead jobs  8" in done.stdout
