"""How the command starts worker processes, and how such a process finds and ends itself."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from contextlib import suppress
from typing import Final, NoReturn

from django.core.management.base import CommandError
from django.utils.autoreload import get_child_arguments

from ..board import Board
from ..child import Spawn
from ..ending import EXIT_GAVE_UP, EXIT_RECYCLE, Ended
from ..parent import Parent
from .base import USAGE

CHILD_VARIABLE: Final = "DJANGO_WORKQUEUE_CHILD"


def spawner() -> Spawn:
    """Return what starts a child: this command line once more, and in its environment the rest.

    By exec, so that it inherits no connection, lock or thread; in a process group of its own, so
    that Ctrl-C reaches it through its parent, once.
    """
    try:
        command = [str(part) for part in get_child_arguments()]
    except RuntimeError as error:
        raise CommandError(
            f"The command must be one that can be started again for a worker process: {error} "
            "Start it by manage.py, or give --processes 0.",
            returncode=USAGE,
        ) from error

    def spawn(worker_id: str, board: Board, alive_descriptor: int) -> subprocess.Popen[bytes]:
        told = {
            "worker_id": worker_id,
            "board": board.descriptor,
            "slots": board.slots,
            "alive": alive_descriptor,
        }
        return subprocess.Popen(  # noqa: S603  # our own command line
            command,
            env={**os.environ, CHILD_VARIABLE: json.dumps(told)},
            pass_fds=(board.descriptor, alive_descriptor),
            stdin=subprocess.DEVNULL,
            process_group=0,
        )

    return spawn


def child_of() -> Parent | None:
    """Return what a parent gave this process, or None where there is none."""
    text = os.environ.pop(CHILD_VARIABLE, None)
    if text is None:
        return None
    told = json.loads(text)
    return Parent(told["worker_id"], Board(told["board"], told["slots"]), told["alive"])


def exit_code(ended: Ended) -> int:
    """Return the exit code of a worker without a parent."""
    return 1 if ended in {Ended.CUT, Ended.STUCK} else 0


def child_exit_code(ended: Ended, *, drained: bool) -> int:
    """Return what a worker tells its parent; 0 only where nothing was left to do."""
    if ended in {Ended.CUT, Ended.GRACE_OVER}:
        return EXIT_GAVE_UP
    return 0 if ended is Ended.DONE and drained else EXIT_RECYCLE


def leave(code: int) -> NoReturn:
    """End this process without waiting for the threads of its tasks."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        # Closed by a task, or by whoever read it.
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
