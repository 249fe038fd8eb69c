"""Brokers that a test may cut off, and a worker of another project."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from celery import Celery

from tests.processes import ROOT, wait_until


def forget_queue(url: str, queue: str) -> None:
    """Delete what a test left in a shared broker."""
    with Celery(set_as_current=False, broker=url).connection_for_write() as connection:
        channel: Any = connection.default_channel
        channel.queue_delete(queue)
        if url.startswith("redis"):
            # Redis has no queues of its own: these are kombu's notes of one.
            kinds = ("binding", "binding_permanent")
            channel.client.delete(*(f"_kombu.{kind}.{queue}" for kind in kinds))
        else:
            # Celery gives a queue an exchange of its name.
            channel.exchange_delete(queue)


class Proxy:
    """A port that leads to a broker, until it is cut; `mend` lets it lead there again."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._there = (parts.hostname, parts.port or {"amqp": 5672, "redis": 6379}[parts.scheme])
        self._server = socket.create_server(("127.0.0.1", 0))
        self.refused_count = 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._is_cut = False
        login = parts.netloc.rpartition("@")[0]
        here = f"127.0.0.1:{self._server.getsockname()[1]}"
        netloc = f"{login}@{here}" if login else here
        self.url = urlunsplit(parts._replace(netloc=netloc))
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def cut(self) -> None:
        """End all connections, and each new one at once."""
        with self._lock:
            self._is_cut = True
            ended, self._open = self._open, set()
        for each in ended:
            _end(each)

    def mend(self) -> None:
        with self._lock:
            self._is_cut = False

    def close(self) -> None:
        self.cut()
        # Ends accept(), which close() alone would leave waiting.
        _end(self._server)
        for thread in self._threads:
            thread.join()
        self._server.close()

    def _start(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # Closed.
            while True:
                here, _ = self._server.accept()
                with self._lock:
                    refused = self._is_cut
                    self.refused_count += refused
                if refused:
                    here.close()
                    continue
                self._start(self._lead, here)

    def _lead(self, here: socket.socket) -> None:
        with here, socket.create_connection(self._there) as there:
            with self._lock:
                self._open |= {here, there}
            back = threading.Thread(target=self._copy, args=(there, here), daemon=True)
            back.start()
            self._copy(here, there)
            back.join()
            with self._lock:
                self._open -= {here, there}

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(65_536):
                target.sendall(content)
        _end(source)
        _end(target)


def _end(connected: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)


class OtherProject:
    """A Celery worker in a process, and what it has noted."""

    def __init__(self, broker: str, folder: Path, backend: str | None) -> None:
        self.queue = f"bridge-{uuid.uuid4().hex[:12]}"
        self.ledger = folder / "ledger"
        self.log = folder / "worker.log"
        self.ledger.touch()
        self._before = 0
        more = {"BRIDGE_BROKER": broker, "BRIDGE_LEDGER": str(self.ledger), "PYTHONPATH": str(ROOT)}
        if backend is not None:
            more["BRIDGE_BACKEND"] = backend
        command = [sys.executable, "-m", "celery", "-A", "tests.bridge.other_project", "worker"]
        options = ["--pool=solo", f"--queues={self.queue}", f"--hostname={self.queue}@here"]
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=INFO"]
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, *options, *quiet],
                cwd=folder,
                env={**os.environ, **more},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def begin(self) -> None:
        """Leave what it has run until now to the tests before."""
        self._before = len(self._lines())

    def runs(self) -> list[list[Any]]:
        """Return what it has run, in order: id, number, text."""
        return [json.loads(line) for line in self._lines()[self._before :]]

    def _lines(self) -> list[str]:
        return self.ledger.read_text(encoding="utf-8").splitlines()

    def ids(self) -> set[uuid.UUID]:
        return {uuid.UUID(run[0]) for run in self.runs()}

    def wait_for(self, ids: set[uuid.UUID]) -> None:
        """Wait until it has run all of *ids*, for as long as it goes on."""

        def goes_on(count: int) -> bool:
            return len(self._lines()) > count or ids <= self.ids()

        try:
            while not ids <= self.ids():
                count = len(self._lines())
                wait_until(partial(goes_on, count), f"the run of {len(ids - self.ids())} more")
        except BaseException:
            sys.stderr.write(self.log.read_text(encoding="utf-8")[-4000:])
            raise

    def end(self) -> None:
        # It has nothing to lose, and a worker of RabbitMQ takes long to say good-bye.
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def other_project(broker: str, folder: Path, backend: str | None = None) -> Iterator[OtherProject]:
    """Run a worker of the other project for the block; *backend* None: it keeps no results."""
    project = OtherProject(broker, folder, backend)
    try:
        yield project
    finally:
        project.end()
