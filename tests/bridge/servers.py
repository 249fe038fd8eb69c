"""Servers of one test, which keep what they have said they have, and may be killed."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from tests.processes import wait_until
from tests.services import ServiceMissing


class OwnServer(ABC):
    """A server in a process, on a port and in a folder of its own."""

    binaries: ClassVar[tuple[str, ...]]

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        for binary in self.binaries:
            if shutil.which(binary) is None:
                raise ServiceMissing(f"{binary} must be on the PATH to be killed. Install it.")
        self.url = self._address()
        self._processes: list[subprocess.Popen[bytes]] = []
        self.start()

    @abstractmethod
    def _address(self) -> str:
        """Choose free ports; return the URL of the server."""

    @abstractmethod
    def start(self) -> None:
        """Start it, on what it has kept, and wait until it answers."""

    def kill(self) -> None:
        """End it with all that it started, without a chance to write anything."""
        for process in self._processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._processes.clear()

    def answers(self) -> bool:
        port = urlsplit(self.url).port
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            return False
        return True

    def _run(self, command: list[str], log: str, **more: str) -> None:
        with (self._folder / log).open("ab") as output:
            process = subprocess.Popen(
                command,
                env={**os.environ, **more},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.append(process)


class OwnRedis(OwnServer):
    binaries = ("redis-server",)

    def _address(self) -> str:
        return f"redis://127.0.0.1:{free_port()}/0"

    def start(self) -> None:
        port = str(urlsplit(self.url).port)
        command = ["redis-server", "--port", port, "--dir", str(self._folder), *self.options()]
        self._run(command, "redis.log")
        wait_until(self.answers, "the answer of Redis")

    def options(self) -> list[str]:
        return ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]


class OwnRabbitMQ(OwnServer):
    """A node of its own name and cookie, with a port mapper of its own: no other node sees it."""

    # Not the first on Debian's PATH: that one changes to the user and folder of the service.
    SERVER: ClassVar = "/usr/lib/rabbitmq/bin/rabbitmq-server"
    binaries = ("epmd", SERVER)

    def _address(self) -> str:
        self._mapper_port, self._nodes_port = free_port(), free_port()
        return f"amqp://guest:guest@127.0.0.1:{free_port()}//"

    def start(self) -> None:
        folder, port = self._folder, str(urlsplit(self.url).port)
        (folder / "plugins").write_text("[].")
        mapper = str(self._mapper_port)
        self._run(["epmd", "-port", mapper, "-address", "127.0.0.1"], "epmd.log")
        # Files that are not there keep it from reading those of the service.
        files = {
            "MNESIA_BASE": "mnesia",
            "LOG_BASE": "log",
            "PID_FILE": "pid",
            "ENABLED_PLUGINS_FILE": "plugins",
            "CONFIG_FILE": "config",
            "ADVANCED_CONFIG_FILE": "advanced",
            "CONF_ENV_FILE": "environment",
        }
        self._run(
            [self.SERVER],
            "rabbitmq.log",
            HOME=str(folder),
            ERL_EPMD_PORT=mapper,
            ERL_EPMD_ADDRESS="127.0.0.1",
            RABBITMQ_NODENAME=f"workqueue-{port}@localhost",
            RABBITMQ_NODE_IP_ADDRESS="127.0.0.1",
            RABBITMQ_NODE_PORT=port,
            RABBITMQ_DIST_PORT=str(self._nodes_port),
            **{f"RABBITMQ_{name}": str(folder / file) for name, file in files.items()},
        )
        wait_until(self.answers, "the answer of RabbitMQ")


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])
