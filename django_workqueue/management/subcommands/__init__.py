"""The subcommands of ``manage.py workqueue``: a module each, found under its name."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any, Final, Protocol

from ..base import WorkQueueCommand
from . import import_beat, schedules


class Subcommand(Protocol):
    """What a module here has."""

    HELP: str

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options of this subcommand."""

    def run(self, command: WorkQueueCommand, given: dict[str, Any]) -> None:
        """Do it; the command gives the store, the streams and the errors."""


SUBCOMMANDS: Final[dict[str, Subcommand]] = {
    "import_beat": import_beat,
    "schedules": schedules,
}
