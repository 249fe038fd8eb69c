"""Show the whole path on a shop's orders: `python3 demo.py`. Needs Python 3.11 or newer, and pip.

Makes a virtual environment in .venv-demo, installs this project there, imports an export of orders
with two workers running, corrects one order whose receipt died, and says what happened. Ends by
itself and leaves nothing running. What it writes is in testproject/var; a second run goes on there.

    python3 demo.py            the demonstration
    python3 demo.py --admin    the admin on the dead jobs, and a worker, until Ctrl-C
    python3 demo.py --fresh    the demonstration, from the start: deletes testproject/var first

DATABASE_URL=postgres://user:password@host/name takes that database instead of a SQLite file;
--fresh leaves it as it is.
"""

import argparse
import contextlib
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent
PROJECT = ROOT / "testproject"
VAR = Path(os.environ.get("SHOP_VAR", PROJECT / "var")).resolve()
# Whatever the reader's shell says for a project of their own.
ENVIRONMENT = {"DJANGO_SETTINGS_MODULE": "config.settings"}
USERNAME, PASSWORD = "admin", "workqueue"
CORRECTED = ("SO-1017", "ada.lovelace@example.org")
WORKER_COUNT = 2
WAIT_SECONDS = 120
STOP_SECONDS = 40


def main() -> int:
    if sys.version_info < (3, 11):
        print(f"Python must be 3.11 or newer, this is {sys.version}.", file=sys.stderr)
        return 2
    # A shell that starts it in the background lets Ctrl-C be ignored; --admin ends by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert __doc__ is not None
    title, _, details = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        description=title, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--admin", action="store_true", help="show the admin on the dead jobs")
    choice.add_argument("--fresh", action="store_true", help="delete what earlier runs left")
    given = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        # An exception, so that the workers end too.
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    try:
        python = prepare(ROOT / ".venv-demo" / "{}.{}".format(*sys.version_info))
        if given.admin:
            show_admin(python)
        else:
            demonstrate(python, fresh=given.fresh)
    except subprocess.SubprocessError as error:
        print(f"\nThis failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def prepare(folder: Path) -> Path:
    """Return the Python of the environment in *folder*, made anew unless it is up to date."""
    python, stamp = folder / "bin" / "python", folder / "prepared-for"
    wants = [ROOT / "pyproject.toml", PROJECT / "requirements.txt"]
    packages = ["--requirement", str(wants[1]), "--editable", str(ROOT)]
    if os.environ.get("DATABASE_URL", "").startswith(("postgres", "pgsql")):
        packages.append("psycopg[binary]>=3.2")
    content = b"".join(path.read_bytes() for path in wants)
    wanted = f"{packages} {hashlib.sha256(content).hexdigest()}"
    if python.exists() and stamp.is_file() and stamp.read_text() == wanted:
        return python
    step(f"Preparing {folder.relative_to(ROOT)}: a virtual environment with Django in it")
    try:
        venv.EnvBuilder(clear=True, symlinks=True, with_pip=True).create(folder)
    except subprocess.CalledProcessError as error:
        sys.exit(f"Python must have venv and ensurepip, got: {error}. On Debian: python3-venv.")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *packages], check=True)
    stamp.write_text(wanted)
    return python


def demonstrate(python: Path, *, fresh: bool = False) -> None:
    """Do everything once, from the tables to the report."""
    started = time.monotonic()
    if fresh:
        step(f"Deleting {shown(VAR)}")
        shutil.rmtree(VAR, ignore_errors=True)
    step("Making the tables, and somebody who may use the admin")
    manage(python, "migrate", "--verbosity=0")
    manage(python, "demo_user", USERNAME, PASSWORD)
    step(f"Starting {WORKER_COUNT} workers; what they say is in {shown(VAR)}/worker-*.log")
    with workers(python):
        step("Importing testproject/orders.csv: each order and its receipt's job in a transaction")
        manage(python, "import_orders", "orders.csv")
        step("Waiting until every job has ended; bad addresses are retried, then their jobs die")
        manage(python, "shop_report", f"--wait={WAIT_SECONDS}")
        step(f"In the admin, correcting {CORRECTED[0]} to {CORRECTED[1]} and requeueing its job")
        account = (f"--username={USERNAME}", f"--password={PASSWORD}")
        manage(python, "correct_in_admin", *CORRECTED, *account)
        manage(python, "shop_report", f"--wait={WAIT_SECONDS}")
        step("Stopping the workers")
    step(f"What happened, in {time.monotonic() - started:.0f} seconds")
    manage(python, "shop_report")
    print(
        "\nThe dead jobs that are left are yours: correct an order, requeue its job, and see its\n"
        f"receipt go. The admin opens on them with  python3 {shown(Path(__file__))} --admin\n"
        f"(user {USERNAME}, password {PASSWORD})."
    )


def show_admin(python: Path) -> None:
    """Serve the admin, with a worker beside it, until Ctrl-C."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    manage(python, "migrate", "--verbosity=0")
    manage(python, "demo_user", USERNAME, PASSWORD)
    server = ["runserver", address, "--noreload", "--verbosity=0"]
    with running(python, server, "server.log"), workers(python, count=1):
        print(
            f"\nThe dead jobs:  http://{address}/admin/workqueue/deadjob/\n"
            f"The orders:     http://{address}/admin/shop/order/?receipt_sent_at__isempty=1\n"
            f"User {USERNAME}, password {PASSWORD}. A worker waits for what you requeue.\n"
            "Ctrl-C ends both.",
            flush=True,
        )
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


@contextlib.contextmanager
def workers(python: Path, count: int = WORKER_COUNT) -> Iterator[None]:
    """Run workers while the block runs, and end them as an operator does: with SIGTERM."""
    with contextlib.ExitStack() as stack:
        for number in range(1, count + 1):
            stack.enter_context(running(python, ["runworker"], f"worker-{number}.log"))
        yield


@contextlib.contextmanager
def running(python: Path, command: list[str], log: str) -> Iterator[None]:
    """Run a command of manage.py beside the block, its output in the file *log*.

    Raises CalledProcessError if it had ended by itself, or did not end well.
    """
    VAR.mkdir(parents=True, exist_ok=True)
    arguments = [str(python), "manage.py", *command]
    with (VAR / log).open("wb") as output:
        process = subprocess.Popen(
            arguments,
            cwd=PROJECT,
            env=os.environ | ENVIRONMENT,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for this script, which then ends them in order.
        )
    try:
        yield
        ended_early = process.poll() is not None
    finally:
        code = stop(process)
    # A server has no other end than its signal.
    if ended_early or code not in (0, -signal.SIGTERM):
        print((VAR / log).read_text(errors="replace")[-2000:], file=sys.stderr)
        raise subprocess.CalledProcessError(code, arguments)


def stop(process: subprocess.Popen[bytes]) -> int:
    """End *process* with SIGTERM, by force if it takes too long, and return its exit code."""
    process.terminate()
    try:
        return process.wait(timeout=STOP_SECONDS)
    finally:
        process.kill()
        process.wait()


def manage(python: Path, *arguments: str) -> None:
    """Run a command of the project's manage.py to its end, and show it."""
    print(f"$ manage.py {' '.join(arguments)}", flush=True)
    command = [str(python), "manage.py", *arguments]
    subprocess.run(command, cwd=PROJECT, env=os.environ | ENVIRONMENT, check=True)


def step(text: str) -> None:
    print(f"\n-- {text}", flush=True)


def shown(path: Path) -> str:
    """Return *path* as the reader would type it."""
    with contextlib.suppress(ValueError):
        return str(path.resolve().relative_to(Path.cwd()))
    return str(path.resolve())


if __name__ == "__main__":
    sys.exit(main())
