"""Ids made by the client. A job's are UUIDv7 (RFC 9562), rising within a process."""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid

_lock = threading.Lock()
_last = 0


def new_id() -> uuid.UUID:
    """Return a UUIDv7 larger than every one this process returned before.

    48 bits of milliseconds, then 12 + 8 bits that count within the millisecond (RFC 9562, 6.2,
    method 1), the rest random. A clock that steps back repeats the last millisecond and counts on.
    """
    global _last
    with _lock:
        _last = max(_last + 1, time.time_ns() // 1_000_000 << 20)
        stamp = _last
    milliseconds, count = stamp >> 20, stamp & 0xFFFFF
    value = milliseconds << 80 | 0x7 << 76 | (count >> 8) << 64
    value |= 0b10 << 62 | (count & 0xFF) << 54 | int.from_bytes(os.urandom(7), "big") >> 2
    return uuid.UUID(int=value)


def new_token() -> uuid.UUID:
    """Return a random token, made for one claim before its statement is sent."""
    return uuid.uuid4()


def new_worker_id() -> str:
    """Return an id that is never used again, also where containers share a host name."""
    return f"{socket.gethostname()[:100]}-{os.getpid()}-{uuid.uuid4().hex[:12]}"


def _forget_after_fork() -> None:
    """Give a forked child a lock of its own; its random bits differ by themselves."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_after_fork)
