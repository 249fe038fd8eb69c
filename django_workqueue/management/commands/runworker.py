"""runworker: run jobs until stopped."""

from __future__ import annotations

import logging
import os
import sys
from argparse import ArgumentTypeError
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_workqueue import __version__, registry
from django_workqueue.backend import WorkQueueBackend
from django_workqueue.compat import task_backends
from django_workqueue.loop import stop_on_signals
from django_workqueue.settler import Settled
from django_workqueue.store import BaseStore
from django_workqueue.wakeup import TRUSTED_POLL_FACTOR
from django_workqueue.worker import Ended, Options, Worker

from ..base import USAGE, WorkQueueCommand


class Command(WorkQueueCommand):
    help = "Run jobs until stopped by SIGTERM or SIGINT. A second signal stops at once."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--queues",
            help="Names of queues, with commas; their order is preference. Default: all, in turn.",
        )
        parser.add_argument(
            "--threads", type=count, default=4, help="Tasks that run at once (default: 4)."
        )
        parser.add_argument(
            "--drain", action="store_true", help="End with exit code 0 when nothing is due."
        )
        parser.add_argument("--max-jobs", type=count, help="End after that many jobs.")
        parser.add_argument(
            "--lease", type=float, help="Seconds a job is kept without news of its worker."
        )
        parser.add_argument("--poll", type=float, help="Seconds between two looks for work.")
        parser.add_argument(
            "--grace", type=float, help="Seconds that running jobs get to end after a signal."
        )
        parser.add_argument(
            "--no-sweep", action="store_true", help="Leave the sweep to other workers."
        )

    def handle(self, **given: Any) -> None:
        options = Options(
            queues=self._queues(given["queues"]),
            threads=given["threads"],
            lease_seconds=self.checked_setting("LEASE_SECONDS", given["lease"]),
            poll_seconds=self.checked_setting("POLL_SECONDS", given["poll"]),
            grace_seconds=self.checked_setting("GRACE_SECONDS", given["grace"]),
            max_jobs=given["max_jobs"],
            drain=given["drain"],
            sweep=not given["no_sweep"],
        )
        self._shown = given["verbosity"] > 0
        with self.usable_store() as store:
            registry.discover()
            worker = Worker(options, on_settled=self._show)
            # Before the start block: who has read it may send a signal.
            with stop_on_signals(worker.stop):
                if self._shown:
                    self.stdout.write(self._start_block(worker, store))
                    self.stdout.flush()
                ended = worker.run()
        self._end(ended)

    def _queues(self, text: str | None) -> tuple[str, ...] | None:
        if text is None:
            return None
        names = tuple(name.strip() for name in text.split(","))
        if not all(names) or len(set(names)) < len(names):
            raise CommandError(
                f"--queues must be different names with commas between, got {text!r}.",
                returncode=USAGE,
            )
        known = self._declared_queues()
        for name in names:
            if known is not None and name not in known:
                raise CommandError(
                    f"--queues: no backend in TASKS has the queue {name!r}; there are "
                    f"{', '.join(sorted(known))}. Correct the name, or add it to QUEUES.",
                    returncode=USAGE,
                )
        return names

    def _declared_queues(self) -> set[str] | None:
        """Return the queues that TASKS allows, or None where a backend allows any."""
        names: set[str] = set()
        for backend in task_backends.all():
            if isinstance(backend, WorkQueueBackend):
                if not backend.queues:
                    return None
                names |= backend.queues
        return names or None

    def _start_block(self, worker: Worker, store: BaseStore) -> str:
        options, connection = worker.options, store.connection
        difference = (store.now() - datetime.now(UTC)).total_seconds()
        version = ".".join(map(str, connection.get_database_version()))
        return "\n".join(
            (
                f"django-workqueue {__version__}  worker {worker.id}",
                f"  database  {connection.display_name} {version}, alias {store.alias!r}",
                f"  queues    {', '.join(options.queues) if options.queues else 'all'}",
                f"  slots     {options.threads} threads",
                f"  lease     {options.lease_seconds:g} s, extended every "
                f"{options.lease_seconds / 3:.3g} s; grace {options.grace_seconds:g} s",
                f"  wake-up   {self._wakeup(worker)}",
                f"  clock     {difference:+.3f} s (the database's clock minus this host's)",
                f"  tasks     {len(registry.paths())} declared",
            )
        )

    def _wakeup(self, worker: Worker) -> str:
        worker.wakeup.attach()
        poll = f"poll every {worker.options.poll_seconds:g} s"
        if not worker.wakeup.trusted:
            return poll
        rarer = worker.options.poll_seconds * TRUSTED_POLL_FACTOR
        return f"{worker.wakeup.told_by}, and a poll every {rarer:g} s"

    def _show(self, settled: Settled) -> None:
        if not self._shown:
            return
        claim, outcome = settled.job.claim, settled.job.outcome
        took = "" if outcome is None else f"  {(outcome.ended - outcome.started) * 1000:.0f} ms"
        why = ""
        if outcome is not None and outcome.error is not None:
            line = " ".join(outcome.error.message.split())[:200]
            why = f"  {outcome.error.exception_class}: {line}"
        self.stdout.write(
            f"{settled.place:<9}  {claim.task}  {claim.id}  "
            f"attempt {claim.attempt}/{claim.max_attempts}{took}{why}"
        )
        self.stdout.flush()

    def _end(self, ended: Ended) -> None:
        if ended is Ended.DONE:
            return
        # Bodies still run in threads, and their jobs were given back: the process must end now.
        self.stderr.write(f"stopped before every job had ended ({ended}); they were given back")
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1 if ended is Ended.CUT else 0)


def count(text: str) -> int:
    """Return a whole number of at least 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ArgumentTypeError(f"must be a whole number of 1 or more, got {text!r}")
    return number
