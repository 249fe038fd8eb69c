"""import_orders: read a shop's CSV export."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from shop import export
from shop.importing import Fate, Imported, save

SHOW_EVERY = 100


class Command(BaseCommand):
    help = "Save the orders of a CSV export, each with the job of its receipt in one transaction."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("path", type=Path, help="The export, in UTF-8, with or without a BOM.")

    def handle(self, *, path: Path, **options: Any) -> None:
        counts: Counter[str] = Counter()
        try:
            # newline="": line ends inside quoted cells are the csv module's to read.
            with path.open(encoding="utf-8-sig", newline="") as file:
                for rows in export.read(file):
                    self._count(save(rows), counts)
        except (OSError, UnicodeDecodeError, csv.Error, export.BadExport) as error:
            raise CommandError(f"{path} cannot be read: {error}") from error
        self.stdout.write(
            f"{counts[Fate.SAVED]} orders saved, {counts['mailed']} of them with a receipt to "
            f"mail; {counts[Fate.DUPLICATE]} were there already; {counts[Fate.REFUSED]} refused, "
            f"{counts['rolled back']} of them rolled back together with their job"
        )

    def _count(self, imported: Imported, counts: Counter[str]) -> None:
        counts["all"] += 1
        counts[imported.fate] += 1
        if imported.fate is Fate.SAVED and imported.job_id:
            counts["mailed"] += 1
        if imported.fate is Fate.REFUSED:
            self.stdout.write(f"line {imported.line}, order {imported.number!r}: {imported.why}")
            if imported.job_id:
                counts["rolled back"] += 1
                self.stdout.write(f"  rolled back, with job {imported.job_id}")
        if counts["all"] % SHOW_EVERY == 0:
            self.stdout.write(f"{counts['all']} orders read ...")
        self.stdout.flush()
