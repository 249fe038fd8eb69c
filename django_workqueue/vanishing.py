"""A database server that vanishes without a word, as its host does: noticed within a lease.

TCP itself waits a quarter of an hour for an answer to what it sends, and two hours where a
connection only listens. A server that is slow is none of this: its host still acknowledges. One
that stops reading what it is sent, until its buffers are full, is: so Linux has TCP_USER_TIMEOUT.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any, Final

from django.db import connections
from django.db.backends.signals import connection_created

LEAST_SECONDS: Final = 5
"""A network may lose packets for a moment, whatever a lease is."""

MOST_KEEPALIVE_SECONDS: Final = 32_767
"""What Linux takes."""

OWN_OPTIONS: Final = frozenset(
    {
        "tcp_user_timeout",
        "keepalives",
        "keepalives_idle",
        "keepalives_interval",
        "keepalives_count",
    }
)
"""Of libpq, by which a project has its own say."""


@contextlib.contextmanager
def noticed(seconds: float) -> Iterator[None]:
    """Let the connections of this process fail whose server gave no sign for *seconds*.

    Those that are open, and those to come. At least LEAST_SECONDS; on systems whose TCP knows how.
    """

    def limit(connection: Any, **kwargs: Any) -> None:
        set_limits(connection, max(round(seconds), LEAST_SECONDS))

    for connection in connections.all(initialized_only=True):
        limit(connection)
    connection_created.connect(limit)
    try:
        yield
    finally:
        connection_created.disconnect(limit)


def set_limits(connection: Any, seconds: int) -> None:
    """Set on the socket of *connection*, if it has one of TCP, what the system knows of these."""
    number = descriptor(connection.connection)
    if number is None or not OWN_OPTIONS.isdisjoint(connection.settings_dict["OPTIONS"]):
        return
    # A copy of the descriptor: the end of this object must not close the driver's.
    with (
        contextlib.suppress(OSError),
        blocking_as_before(number),
        socket.socket(fileno=os.dup(number)) as its,
    ):
        if its.family not in {socket.AF_INET, socket.AF_INET6}:
            return
        its.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", min(max(seconds // 2, 1), MOST_KEEPALIVE_SECONDS)),
            ("TCP_KEEPINTVL", min(max(seconds // 6, 1), MOST_KEEPALIVE_SECONDS)),
            ("TCP_KEEPCNT", 3),
            ("TCP_USER_TIMEOUT", 1000 * seconds),
        ):
            if option := getattr(socket, name, None):
                its.setsockopt(socket.IPPROTO_TCP, option, value)


@contextlib.contextmanager
def blocking_as_before(number: int) -> Iterator[None]:
    """Leave it to the driver whether its socket blocks.

    Where a project has set socket.setdefaulttimeout(), each new object of a socket makes it one
    that does not, and all copies of its descriptor with it.
    """
    blocks = os.get_blocking(number)
    try:
        yield
    finally:
        os.set_blocking(number, blocks)


def descriptor(driver: Any) -> int | None:
    """Return the file descriptor of a driver's connection; None where it has none, or is closed."""
    # PyMySQL keeps its socket to itself.
    fileno = getattr(driver, "fileno", None) or getattr(
        getattr(driver, "_sock", None), "fileno", None
    )
    if fileno is None:
        return None
    try:
        return int(fileno())
    except Exception:  # noqa: BLE001  # each driver has its own error for a closed connection
        return None
