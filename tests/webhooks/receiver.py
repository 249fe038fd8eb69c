"""An HTTP or HTTPS server on this machine, which notes what it got and answers as it is told."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

HOST: Final = "hooks.example.test"
CERTIFICATE: Final = Path(__file__).with_name("hooks.example.test.pem")
"""Of nobody but these tests: a key and a certificate for HOST, signed by itself, until 2066."""


@dataclass(frozen=True, slots=True)
class Got:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """What a server got, and what it says next; 204 when it was told nothing."""

    port: int = 0
    got: list[Got] = field(default_factory=list)
    answers: list[tuple[int, dict[str, str], bytes]] = field(default_factory=list)
    # Names that TLS clients asked for.
    names: list[str | None] = field(default_factory=list)

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.answers.append((status, named, body))


def _handler_of(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.got.append(Got(self.path, headers, body))
            status, more, content = receiver.answers.pop(0) if receiver.answers else (204, {}, b"")
            self.send_response(status)
            for name, value in more.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(OSError):  # The other side has heard enough.
                self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # Python's own
            """Say nothing."""

    return Handler


@contextlib.contextmanager
def receiving(*, tls: bool = False) -> Iterator[Receiver]:
    """Serve for the block, on a port of the system's choice."""
    receiver = Receiver()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(receiver))
    server.daemon_threads = True
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)

        def note(connected: Any, name: str | None, original: Any) -> None:
            receiver.names.append(name)

        context.sni_callback = note
        server.socket = context.wrap_socket(server.socket, server_side=True)
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def dripping(head: bytes, drop: bytes, pause: float) -> Iterator[int]:
    """Answer on a port with *head* and then a *drop* every *pause* seconds, without an end."""
    over = threading.Event()

    def drip(server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connected, _ = server.accept()
            with connected:
                connected.sendall(head)
                while not over.wait(pause):
                    connected.sendall(drop)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=(server,), daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            over.set()
            thread.join()
