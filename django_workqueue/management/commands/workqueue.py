"""workqueue: what operators ask, a subcommand each."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from ..base import WorkQueueCommand
from ..subcommands import SUBCOMMANDS


class Command(WorkQueueCommand):
    help = "Look at the work queue, and change what an operator may."

    def add_arguments(self, parser: CommandParser) -> None:
        parsers = parser.add_subparsers(dest="subcommand", metavar="SUBCOMMAND", required=True)
        for name, module in SUBCOMMANDS.items():
            told = parsers.add_parser(name, help=module.HELP, description=module.HELP)
            module.add_arguments(told)

    def handle(self, **given: Any) -> None:
        SUBCOMMANDS[given["subcommand"]].run(self, given)
