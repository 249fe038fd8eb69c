"""Watch files for writes (Linux): a hint, for nothing, where a poll would cost a look each time."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

MODIFY: Final = 0x00000002
DELETE_SELF: Final = 0x00000400
MOVE_SELF: Final = 0x00000800
"""From linux/inotify.h; they are part of the kernel's interface and do not change."""
EVENT: Final = struct.Struct("iIII")
READ_BYTES: Final = 65_536


class FileWatch:
    """Tells of writes to files, through a descriptor that becomes readable.

    Without inotify, or where the system allows no more of it, `descriptor` is None and nothing
    ever comes.
    """

    def __init__(self) -> None:
        self._library: Any = None
        self.descriptor: int | None = None
        if not sys.platform.startswith("linux"):
            return
        with suppress(OSError, AttributeError):
            self._library = ctypes.CDLL(None, use_errno=True)
            descriptor = self._library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            self.descriptor = None if descriptor < 0 else descriptor

    def watch(self, paths: Iterable[str]) -> bool:
        """Watch *paths* from now on; return whether one of them is. Again is no harm."""
        if self.descriptor is None:
            return False
        mask = MODIFY | DELETE_SELF | MOVE_SELF
        added = [
            self._library.inotify_add_watch(self.descriptor, os.fsencode(path), mask)
            for path in paths
        ]
        return max(added, default=-1) >= 0

    def take(self) -> bool:
        """Forget what came; return whether a watched file is another by now, or gone."""
        gone = False
        with suppress(BlockingIOError):
            while data := os.read(self.descriptor or -1, READ_BYTES):
                gone = gone or any(mask & ~MODIFY for mask in _masks(data))
        return gone

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def _masks(data: bytes) -> Iterable[int]:
    offset = 0
    while offset < len(data):
        _, mask, _, name_bytes = EVENT.unpack_from(data, offset)
        yield mask
        offset += EVENT.size + name_bytes
