"""The demonstration's shop as tests use it: its own database, its own folder, real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from django.db import connection

from tests.timescale import PATIENCE_SECONDS

ROOT = Path(__file__).parent.parent
PROJECT = ROOT / "testproject"

VENDORS = ("sqlite", "postgresql")
"""The databases that the demonstration's settings can name without a driver of another kind."""


@dataclass(frozen=True, slots=True)
class Shop:
    """A migrated shop in *folder*; every command of it is a process of its own."""

    folder: Path
    environment: dict[str, str]

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-W", "error", "manage.py", *arguments]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Begin a command; what it writes to either stream is in the process's stdout."""
        return subprocess.Popen(
            self.command(*arguments),
            cwd=PROJECT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def manage(self, *arguments: str) -> str:
        """Run a command to its good end and return what it wrote."""
        with self.start(*arguments) as process:
            output, _ = process.communicate(timeout=PATIENCE_SECONDS * 6)
        assert process.returncode == 0, output
        return output

    @contextmanager
    def workers(self, count: int) -> Iterator[None]:
        """Run *count* workers while the block runs, then stop them with SIGTERM: exit code 0."""
        started = [self._start_worker(number) for number in range(count)]
        try:
            yield
            for process in started:
                assert process.poll() is None, self.logs()
                process.terminate()
            codes = [process.wait(timeout=PATIENCE_SECONDS * 6) for process in started]
            assert codes == [0] * count, self.logs()
        finally:
            for process in started:
                process.kill()
                process.wait()

    def _start_worker(self, number: int) -> subprocess.Popen[bytes]:
        with (self.folder / f"worker-{number}.log").open("wb") as log:
            return subprocess.Popen(
                self.command("runworker"),
                cwd=PROJECT,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("worker-*.log")))

    def ask(self, expression: str) -> Any:
        """Return the value of a Python expression in the shop, as JSON carries it."""
        code = f"""
import json
from django_workqueue.models import DeadJob, LiveJob, Result
from shop.models import Order
print(json.dumps({expression}, default=str))
"""
        return json.loads(self.manage("shell", "--verbosity=0", "--command", code))

    def receipts(self) -> dict[str, list[str]]:
        """Return the texts of the files in the folder of each order that has one."""
        folders = sorted((self.folder / "receipts").glob("*"))
        return {
            folder.name: [path.read_text(encoding="utf-8") for path in folder.iterdir()]
            for folder in folders
        }


@contextmanager
def shop_environment(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the variables of a shop in *folder*, on a new database of the current server."""
    with _new_database(folder) as url:
        yield {
            "DATABASE_URL": url,
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "PYTHONPATH": str(ROOT),
            "SHOP_VAR": str(folder),
        }


@contextmanager
def open_shop(folder: Path) -> Iterator[Shop]:
    """Yield a migrated shop; its database goes with the block."""
    with shop_environment(folder) as variables:
        shop = Shop(folder, {**os.environ, **variables})
        shop.manage("migrate", "--verbosity=0")
        yield shop


@contextmanager
def _new_database(folder: Path) -> Iterator[str]:
    if connection.vendor == "sqlite":
        yield f"sqlite:///{folder / 'shop.sqlite3'}"
        return
    import psycopg

    server = connection.settings_dict
    name = f"test_shop_{uuid.uuid4().hex[:12]}"
    keys = {"host": "HOST", "port": "PORT", "user": "USER", "password": "PASSWORD"}
    login = {key: str(server[django]) for key, django in keys.items() if server[django]}
    with psycopg.connect(**login, dbname="postgres", autocommit=True) as session:  # type: ignore[arg-type]  # strings are
        session.execute(f'CREATE DATABASE "{name}"')
        try:
            yield _url(login, name)
        finally:
            session.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def _url(login: dict[str, str], name: str) -> str:
    account = f"{quote(login.get('user', ''), safe='')}:{quote(login.get('password', ''), safe='')}"
    host = login.get("host", "127.0.0.1")
    # A folder of a socket is part of the path: postgres://user:@//folder/name
    where = f"/{host}" if host.startswith("/") else f"{host}:{login.get('port', '5432')}"
    return f"postgres://{account}@{where}/{name}"


def outputs(processes: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Wait for the good end of all *processes* and return what each wrote."""
    found = []
    try:
        for process in processes:
            output, _ = process.communicate(timeout=PATIENCE_SECONDS * 6)
            assert process.returncode == 0, output
            found.append(output)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return found
