"""shop_report: how far the receipts are, and which jobs died."""

from __future__ import annotations

import time
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from shop import counting

LOOK_SECONDS = 0.5


class Command(BaseCommand):
    help = "Say how far the receipts are; with --wait, until every job came to its end."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--wait", type=float, metavar="SECONDS", help="At most that long.")

    def handle(self, *, wait: float | None, **options: Any) -> None:
        if wait is not None:
            self._wait(wait)
            return
        counts = counting.count()
        self.stdout.write(f"orders     {counts.orders}")
        self.stdout.write(
            f"receipts   {counts.mailed} mailed, {counting.receipt_files()} files in "
            f"{settings.RECEIPTS}"
        )
        self.stdout.write(f"retries    {counts.retries}")
        self.stdout.write(f"dead jobs  {counts.dead}")
        for job, order in counting.dead_receipts():
            known = "an order that is gone" if order is None else f"{order.number}  {order.email!r}"
            self.stdout.write(f"  {known}  {job.attempt} of {job.max_attempts} attempts  {job.pk}")

    def _wait(self, seconds: float) -> None:
        shown, ends = "", time.monotonic() + seconds
        while True:
            counts = counting.count()
            if str(counts) != shown:
                shown = str(counts)
                self.stdout.write(shown)
                self.stdout.flush()
            if not counts.waiting:
                return
            if time.monotonic() > ends:
                raise CommandError(
                    f"Every job must have ended within {seconds:g} seconds, and {counts.waiting} "
                    "still wait. Is a worker running?"
                )
            time.sleep(LOOK_SECONDS)
