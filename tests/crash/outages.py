"""A database that goes away, or stands still, for its workers; the test's own way to it stays."""

from __future__ import annotations

import contextlib
import os
import pwd
import shlex
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from django.db import DatabaseError, connection

from tests import services

OTHERS: Final = {
    "postgresql": (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    ),
    "mysql": (
        "SELECT id FROM information_schema.processlist "
        "WHERE db = database() AND id <> connection_id()"
    ),
}
LOCKS: Final = {
    "postgresql": ("BEGIN", "LOCK TABLE workqueue_livejob IN ACCESS EXCLUSIVE MODE"),
    "mysql": ("LOCK TABLES workqueue_livejob WRITE",),
    "sqlite": ("BEGIN IMMEDIATE",),
}
UNLOCKS: Final = {"postgresql": "COMMIT", "mysql": "UNLOCK TABLES", "sqlite": "COMMIT"}


def cut_all() -> int:
    """End every connection to the test's database but this one; return how many there were."""
    if connection.vendor == "sqlite":
        return 0  # A file has none.
    with connection.cursor() as cursor:
        cursor.execute(OTHERS[connection.vendor])
        rows = cursor.fetchall()
        if connection.vendor == "mysql":
            for (thread,) in rows:
                with contextlib.suppress(DatabaseError):  # It has ended by itself.
                    cursor.execute(f"KILL {int(thread)}")
    return len(rows)


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Let every change of a live job wait until the end of the block."""
    if connection.vendor == "sqlite":
        file = sqlite3.connect(connection.settings_dict["NAME"], timeout=20, isolation_level=None)
        with contextlib.closing(file):
            file.execute(*LOCKS["sqlite"])
            yield
            file.execute(UNLOCKS["sqlite"])
        return
    with connection.cursor() as cursor:
        for statement in LOCKS[connection.vendor]:
            cursor.execute(statement)
        yield
        cursor.execute(UNLOCKS[connection.vendor])


class OwnServer:
    """A PostgreSQL server of one test, which may stop it."""

    def __init__(self) -> None:
        self.folder = Path(services.start_postgresql(durable=False))
        self._as_user: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            ids = {"user": nobody.pw_uid, "group": nobody.pw_gid}
            self._as_user = {**ids, "extra_groups": []}
        # The command that runs it names its binaries, which may be a copy.
        (server, *_) = shlex.split((self.folder / "data" / "postmaster.opts").read_text())
        self._pg_ctl = Path(server).with_name("pg_ctl")
        self.stop("fast")
        # As a server that keeps what it committed: the tests' own may lose it when it is stopped.
        with (self.folder / "data" / "postgresql.conf").open("a") as file:
            file.write(
                f"listen_addresses = ''\nunix_socket_directories = '{self.folder}'\n"
                "fsync = off\nsynchronous_commit = on\nmax_connections = 100\n"
            )
        self.start()

    def stop(self, mode: str) -> None:
        self._run("stop", "-m", mode)

    def start(self) -> None:
        self._run("start", "-l", str(self.folder / "server.log"))

    def _run(self, *arguments: str) -> None:
        data = str(self.folder / "data")
        command = [str(self._pg_ctl), "-w", "-D", data, *arguments]
        with (self.folder / "pg_ctl.log").open("wb") as log:
            subprocess.run(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=True,
                **self._as_user,
            )


@contextlib.contextmanager
def own_server() -> Iterator[OwnServer]:
    """Point this thread's default connection, and children of its environment, at a new server."""
    from django.core.management import call_command

    server = OwnServer()
    settings, host = connection.settings_dict, connection.settings_dict["HOST"]
    name = settings["NAME"]
    connection.close()
    settings.update(HOST=str(server.folder), NAME="postgres")
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {connection.ops.quote_name(name)}")
        connection.close()
        settings["NAME"] = name
        call_command("migrate", verbosity=0)
        yield server
    finally:
        connection.close()
        settings.update(HOST=host, NAME=name)
        server.stop("immediate")
