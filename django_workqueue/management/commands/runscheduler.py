"""runscheduler: make the jobs of schedules at their ticks."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandParser

from django_workqueue import __version__, conf, registry, scheduler, schedules
from django_workqueue.loop import stop_on_signals
from django_workqueue.scheduler import Scheduler, TickReport
from django_workqueue.store import BaseStore
from django_workqueue.vanishing import noticed

from ..base import WorkQueueCommand, schedules_refused
from ..stops import Stops


class Command(WorkQueueCommand):
    help = (
        "Make the jobs of schedules at their ticks, until stopped. Any number may run: one works "
        "and the others stand by."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--once", action="store_true", help="Fire what is due now, and end with exit code 0."
        )
        parser.add_argument(
            "--json", action="store_true", help="With --once: print what was done as JSON."
        )

    def handle(self, **given: Any) -> None:
        self._shown = given["verbosity"] > 0
        registry.discover()
        with schedules_refused():
            schedules.discover()
        if given["once"]:
            with self.usable_store() as store:
                self._once(store, as_json=given["json"])
            return
        stops = Stops()
        # From the beginning: process 1 of a container dies of no signal that it does not handle.
        with stop_on_signals(stops.note), noticed(conf.current().lease_seconds):
            found = self.wait_for_store(stops, self._waits, lambda store: store)
            if found is None:
                return
            running = Scheduler(found, conf.current(), on_tick=self._show)
            # Before the start block: who has read it may send a signal.
            stops.pass_on(running.stop)
            self._say_start(found)
            running.run()

    def _waits(self, why: str) -> None:
        self.stderr.write(f"{why} Waiting for it.")
        self.stderr.flush()

    def _once(self, store: BaseStore, *, as_json: bool) -> None:
        report = scheduler.once(store, conf.current())
        if as_json:
            self.stdout.write(json.dumps(scheduler.as_json(report), sort_keys=True))
            return
        self._show(report)
        missed = sum(fired.missed_count for _, fired in report.fired)
        self._print(
            f"{report.job_count} enqueued, {missed} missed, {len(report.failed)} cannot be planned"
        )

    def _say_start(self, store: BaseStore) -> None:
        self._print(
            f"django-workqueue {__version__}  scheduler\n"
            f"  database  {store.connection.display_name}, alias {store.alias!r}\n"
            f"  schedules {len(schedules.declared())} declared"
        )

    def _show(self, report: TickReport) -> None:
        for name, fired in report.fired:
            for job in fired.jobs:
                self._print(f"enqueued  {name}  {job.id}  for {job.scheduled_for}")
            if fired.missed_count:
                self._print(f"missed    {name}  {fired.missed_count}")
        for name in report.failed:
            self._print(f"failed    {name}  its row says why")

    def _print(self, text: str) -> None:
        if not self._shown:
            return
        try:
            self.stdout.write(text)
            self.stdout.flush()
        except BrokenPipeError:
            # Nobody reads any more, and that is no reason to stop.
            self._shown = False
