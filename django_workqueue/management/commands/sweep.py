"""sweep: take back what lapsed, bury what expired, purge what is old."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_workqueue import conf
from django_workqueue.faults import DATABASE_FAULTS
from django_workqueue.loop import Loop, stop_on_signals
from django_workqueue.store import BaseStore
from django_workqueue.sweeper import Sweeper, SweepReport, sweep
from django_workqueue.vanishing import noticed

from ..base import WorkQueueCommand


class Command(WorkQueueCommand):
    help = (
        "Take back jobs whose lease ended, bury expired ones, purge old rows. Every worker does "
        "it by itself; this is for a look, or for workers that run with --no-sweep."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--interval", type=float, help="Sweep again every so many seconds, until stopped."
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="Say what would be done; write nothing."
        )
        parser.add_argument("--json", action="store_true", help="Print JSON, a line a sweep.")

    def handle(self, **given: Any) -> None:
        with self.usable_store() as store:
            if given["interval"] is None:
                self._sweep(store, given)
                return
            loop = self._loop(store, given)
            lease_seconds = conf.current().lease_seconds
            with stop_on_signals(lambda count: loop.stop()), noticed(lease_seconds):
                loop.run()

    def _loop(self, store: BaseStore, given: dict[str, Any]) -> Loop:
        """Return the loop of a sweep at intervals: after a stall it holds off, as a worker's."""
        interval = self.checked_setting("SWEEP_SECONDS", given["interval"])
        settings = replace(conf.current(), sweep_seconds=interval)
        if not given["dry_run"]:
            return Sweeper(
                store,
                settings,
                settings.lease_seconds,
                on_swept=lambda report: self._tell(report, given),
                sweeps_per_purge=1,
            ).loop()

        def step() -> float:
            self._sweep(store, given)
            return interval

        return Loop(step)

    def _sweep(self, store: BaseStore, given: dict[str, Any]) -> None:
        try:
            report = sweep(store, conf.current(), dry_run=given["dry_run"])
        except DATABASE_FAULTS as error:
            line = " ".join(str(error).split())
            raise CommandError(
                f"The sweep ended early, since the database failed: {line}. What it had done is "
                "done; sweep again."
            ) from error
        self._tell(report, given)

    def _tell(self, report: SweepReport, given: dict[str, Any]) -> None:
        text = json.dumps(report.as_json(), sort_keys=True) if given["json"] else told(report)
        self.stdout.write(("would be: " if given["dry_run"] and not given["json"] else "") + text)
        self.stdout.flush()


def told(report: SweepReport) -> str:
    """Return the report in a line, and a line for each job."""
    counts = [
        f"{len(report.reclaimed)} reclaimed",
        f"{len(report.expired)} expired",
        f"{len(report.buried)} buried",
        *(f"{count} {name} purged" for name, count in report.purged.items()),
    ]
    lines = [", ".join(counts)]
    for swept in (*report.reclaimed, *report.expired, *report.buried):
        reason = f" ({swept.reason})" if swept.reason else ""
        lines.append(
            f"  {swept.outcome}{reason}  {swept.task}  {swept.id}  attempt {swept.attempt}"
            + (f"  was held by {swept.worker_id}" if swept.worker_id else "")
        )
    return "\n".join(lines)
