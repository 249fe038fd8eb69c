"""workqueue: what operators ask, a subcommand each."""

from __future__ import annotations

from argparse import SUPPRESS
from typing import Any

from django.core.management.base import BaseCommand, CommandParser, DjangoHelpFormatter

from ..base import WorkQueueCommand
from ..subcommands import SUBCOMMANDS


class _AfterSubcommand(BaseCommand):
    """Django's own options once more: what is not given there leaves what came before."""

    def add_base_argument(self, parser: Any, *args: Any, **kwargs: Any) -> None:
        super().add_base_argument(parser, *args, **{**kwargs, "default": SUPPRESS})


class Command(WorkQueueCommand):
    help = "Look at the work queue, and change what an operator may."

    def add_arguments(self, parser: CommandParser) -> None:
        parsers = parser.add_subparsers(dest="subcommand", metavar="SUBCOMMAND", required=True)
        django_options = _AfterSubcommand().create_parser(
            "", "", add_help=False, argument_default=SUPPRESS
        )
        for name, module in SUBCOMMANDS.items():
            told = parsers.add_parser(
                name,
                help=module.HELP,
                description=module.HELP,
                parents=[django_options],
                formatter_class=DjangoHelpFormatter,
            )
            module.add_arguments(told)

    def handle(self, **given: Any) -> None:
        SUBCOMMANDS[given["subcommand"]].run(self, given)
