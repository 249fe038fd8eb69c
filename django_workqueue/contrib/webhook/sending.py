"""One POST to one address: no redirect, no proxy, no second look-up, and an end in time."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from ... import clock
from .addresses import Address

BODY_MAX_BYTES: Final = 4_096
"""How much of an answer's body is read: an error may say why, and nobody needs the rest."""

MOST_ADDRESSES: Final = 4
"""How many addresses of a host are tried: one of them may be of a network that is not reached."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a URL leads. *origin* is what may be shown: a path or a query may hold a token."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a receiver said."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def target_of(url: Any, *, allow_http: bool) -> Target:
    """Return where *url* leads. Raises ValueError, which does not show the URL."""
    if not isinstance(url, str):
        told = f"url must be a string, got an instance of {type(url).__name__}."
        raise ValueError(told)  # noqa: TRY004  # as for every other URL that cannot be used
    parts = urlsplit(url)
    schemes = ("https", "http") if allow_http else ("https",)
    if parts.scheme not in schemes:
        hint = "" if parts.scheme != "http" else " Use https, or allow_http=True within a network."
        raise ValueError(f"url must begin with {' or '.join(schemes)}, got {parts.scheme!r}.{hint}")
    if parts.username is not None or parts.password is not None:
        raise ValueError("url must not hold a user's name or password. Use headers.")
    if any(character <= " " or character == "\x7f" for character in url):
        raise ValueError("url must have no spaces or control characters. Quote them.")
    # Raises ValueError for a port that is none.
    port = parts.port or {"https": 443, "http": 80}[parts.scheme]
    path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    return Target(parts.scheme, _host(parts), port, _ascii(path))


def _host(parts: SplitResult) -> str:
    host = parts.hostname or ""
    try:
        # Raises UnicodeError, a ValueError, for labels that no name server takes.
        return host if ":" in host else host.encode("idna").decode()
    finally:
        if not host:
            raise ValueError("url must name a host. Write https://host/path.")


def _ascii(path: str) -> str:
    if not path.isascii():
        raise ValueError("url must be ASCII after its host. Quote it: urllib.parse.quote(path).")
    return path


class _Pinned(http.client.HTTPConnection):
    """A connection to the first of the addresses, all checked, that takes one.

    The name stays in Host, SNI and certificate.
    """

    def __init__(
        self,
        target: Target,
        addresses: Sequence[Address],
        seconds: float,
        context: ssl.SSLContext | None,
    ) -> None:
        super().__init__(target.host, target.port, timeout=seconds)
        self.default_port = {"https": 443, "http": 80}[target.scheme]
        self._addresses = addresses[:MOST_ADDRESSES]
        self._seconds = seconds
        self._context = context

    def connect(self) -> None:
        self.sock = self._connected()
        self.sock.settimeout(self._seconds)
        if self._context is not None:
            # Python's time-out is for all of a handshake.
            self.sock = self._context.wrap_socket(self.sock, server_hostname=self.host)

    def _connected(self) -> socket.socket:
        failed = OSError("no address")
        for address in self._addresses:
            try:
                # A share of the time: an address that never answers leaves some for the next.
                share = self._seconds / len(self._addresses)
                return socket.create_connection((str(address), self.port), share)
            except OSError as error:
                failed = error
        raise failed


def post(
    target: Target,
    addresses: Sequence[Address],
    body: bytes,
    headers: Mapping[str, str],
    *,
    timeout: float,
    context: ssl.SSLContext | None,
) -> Answer:
    """POST *body* to one of *addresses* and return the answer, whatever it is. Raises OSError.

    All of it takes at most *timeout* seconds, also where the other side sends byte after byte.
    """
    connection = _Pinned(target, addresses, timeout, context if target.scheme == "https" else None)
    with contextlib.closing(connection), _cut_after(connection, timeout):
        try:
            connection.request("POST", target.path, body=body, headers=dict(headers))
            with connection.getresponse() as response:
                read = response.read(BODY_MAX_BYTES) if response.status >= 300 else b""
                return Answer(response.status, dict(response.getheaders()), read)
        except http.client.HTTPException as error:
            raise ConnectionError(f"{target.origin} did not answer in HTTP: {error!r}") from error


@contextlib.contextmanager
def _cut_after(connection: http.client.HTTPConnection, seconds: float) -> Iterator[None]:
    """End the connection after *seconds*: a socket's own time-out begins anew with every byte."""
    ends = clock.monotonic() + seconds
    over = threading.Event()

    def cut() -> None:
        over.set()
        sock = connection.sock
        if sock is not None:
            with contextlib.suppress(OSError):
                # Below TLS, which would wait for the lock of a read that goes on.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    failed: OSError | None = None
    try:
        yield
    except OSError as error:
        failed = error
    finally:
        timer.cancel()
    # An answer that was cut looks like one that ended.
    if over.is_set() or (failed is not None and clock.monotonic() >= ends):
        raise TimeoutError(f"no answer within {seconds:g} s") from failed
    if failed is not None:
        raise failed
