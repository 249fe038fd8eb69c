"""`board`: what a child had begun is read by its parent, whatever ended the child."""

from __future__ import annotations

import subprocess
import sys

from django_workqueue.board import Board
from django_workqueue.ids import new_id, new_token

DIES = """
import os, signal, sys, uuid
from django_workqueue.board import Board
board = Board(int(sys.argv[1]), 3)
board.show_ready()
for slot in (0, 2):
    board.begin(slot, (uuid.UUID(int=slot + 1), uuid.UUID(int=9)))
board.end(0)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_slot_shows_its_hold_from_its_beginning_to_its_end() -> None:
    board = Board.create(2)
    hold = (new_id(), new_token())
    assert (board.ready, board.running()) == (False, [])

    board.begin(1, hold)
    assert board.running() == [hold]

    board.end(1)
    assert board.running() == []
    board.close()


def test_a_parent_reads_what_a_killed_child_had_begun() -> None:
    board = Board.create(3)

    done = subprocess.run(
        [sys.executable, "-c", DIES, str(board.descriptor)],
        pass_fds=(board.descriptor,),
        env={"DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": ":".join(sys.path)},
    )

    assert done.returncode == -9
    assert board.ready
    assert [hold[0].int for hold in board.running()] == [3]
    board.close()
