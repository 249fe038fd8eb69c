"""runworker: run jobs until stopped."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from dataclasses import replace
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_workqueue import conf, registry, scheduler, schedules
from django_workqueue.backend import WorkQueueBackend
from django_workqueue.compat import task_backends
from django_workqueue.demand import most_in_flight
from django_workqueue.ending import Ended
from django_workqueue.loop import stop_on_signals
from django_workqueue.outbox import destinations
from django_workqueue.parent import Parent
from django_workqueue.relay import relayed_aliases
from django_workqueue.store import BaseStore
from django_workqueue.supervisor import Plan, Supervisor
from django_workqueue.tuning import tuned
from django_workqueue.vanishing import noticed
from django_workqueue.worker import ASYNC_TASKS, Options, Worker

from ..base import USAGE, WorkQueueCommand, schedules_refused
from ..children import child_exit_code, child_of, exit_code, leave, spawner
from ..stops import Stops
from ..telling import Facts, Teller, start_facts


class Command(WorkQueueCommand):
    help = "Run jobs until stopped by SIGTERM or SIGINT. A second signal stops at once."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--queues",
            help="Names of queues, with commas; their order is preference. Default: all, in turn.",
        )
        parser.add_argument(
            "--processes",
            type=count_or_none,
            help="Worker processes under this one, which replaces those that end (default: 1; 0: "
            "work in this process, as where a program calls the command).",
        )
        parser.add_argument(
            "--threads", type=count, default=4, help="Tasks that run at once (default: 4)."
        )
        parser.add_argument(
            "--async-tasks",
            type=count,
            default=ASYNC_TASKS,
            help="Coroutines that run at once, beside the threads (default: %(default)s).",
        )
        parser.add_argument(
            "--drain", action="store_true", help="End with exit code 0 when nothing is due."
        )
        parser.add_argument(
            "--max-jobs",
            type=count,
            help="Replace a worker process (with --processes 0: end) after that many jobs.",
        )
        parser.add_argument(
            "--max-memory",
            type=count,
            metavar="MB",
            help="Replace a worker process (with --processes 0: end) that takes more memory.",
        )
        parser.add_argument(
            "--lease", type=float, help="Seconds a job is kept without news of its worker."
        )
        parser.add_argument("--poll", type=float, help="Seconds between two looks for work.")
        parser.add_argument(
            "--grace", type=float, help="Seconds that running jobs get to end after a signal."
        )
        parser.add_argument(
            "--with-scheduler",
            action="store_true",
            help="Make the jobs of schedules too; as runscheduler, in a thread of this process.",
        )
        parser.add_argument(
            "--no-sweep", action="store_true", help="Leave the sweep to other workers."
        )
        parser.add_argument(
            "--log-format",
            choices=("text", "json"),
            default="text",
            help="How it tells what happens: lines for a person, or log events as JSON objects, "
            "one a line (default: text).",
        )

    def handle(self, **given: Any) -> None:
        options = Options(
            queues=self._queues(given["queues"]),
            threads=given["threads"],
            async_tasks=given["async_tasks"],
            lease_seconds=self.checked_setting("LEASE_SECONDS", given["lease"]),
            poll_seconds=self.checked_setting("POLL_SECONDS", given["poll"]),
            grace_seconds=self.checked_setting("GRACE_SECONDS", given["grace"]),
            max_jobs=given["max_jobs"],
            max_memory_bytes=None if given["max_memory"] is None else given["max_memory"] << 20,
            drain=given["drain"],
            sweep=not given["no_sweep"],
        )
        self._teller = Teller(
            self.stdout, self.stderr, given["log_format"], verbosity=given["verbosity"]
        )
        self._stops = Stops()
        # From the beginning: process 1 of a container dies of no signal that it does not handle.
        with (
            stop_on_signals(self._stops.note),
            self._teller.telling(),
            noticed(options.lease_seconds),
        ):
            self._run(options, given["processes"], with_scheduler=given["with_scheduler"])

    def _run(self, options: Options, processes: int | None, *, with_scheduler: bool) -> None:
        parent = child_of()
        # A child leaves the schedules to its parent, as it does the sweep.
        self._with_scheduler = with_scheduler and parent is None
        if self._with_scheduler:
            with schedules_refused():
                schedules.discover()
        # A child is this command line once more, which a call from a program has not.
        called = not getattr(self, "_called_from_command_line", False)
        if processes is None:
            processes = 0 if called else 1
        if parent is not None:
            self._work(replace(options, sweep=False), parent)
        elif not processes:
            self._work(options, None)
        elif called:
            raise CommandError(
                "--processes must be 0 where a program calls the command: there is no command "
                "line to start children with.",
                returncode=USAGE,
            )
        else:
            self._supervise(options, processes)

    def _supervise(self, options: Options, processes: int) -> None:
        """Run workers in child processes; this one runs no task."""
        slots = f"{counted(processes, 'process', 'es')} of {counted(options.threads, 'thread')}"
        facts = self._wait(options, slots)
        if facts is None:
            return
        plan = Plan(
            processes=processes,
            slots=most_in_flight(options.threads, options.async_tasks),
            queues=options.queues,
            lease_seconds=options.lease_seconds,
            grace_seconds=options.grace_seconds,
            drain=options.drain,
            sweep=options.sweep,
        )
        supervisor = Supervisor(plan, spawner())
        # Before the start block: who has read it may send a signal.
        self._stops.pass_on(supervisor.stop)
        self._teller.started({**self._told_schedules(), **facts})
        with scheduler.in_thread(conf.current(), wanted=self._with_scheduler):
            code = supervisor.run()
        if supervisor.failure:
            raise CommandError(supervisor.failure)
        if code:
            sys.exit(code)

    def _work(self, options: Options, parent: Parent | None) -> None:
        """Work in this process. A child's parent has waited for the database, and tells."""
        facts: Facts = {}
        registry.discover()
        if parent is None:
            found = self._wait(options, counted(options.threads, "thread"))
            if found is None:
                return
            facts = found
        worker = Worker(options, on_settled=self._teller.settled, parent=parent)
        # Before the start block: who has read it may send a signal.
        self._stops.pass_on(worker.stop)
        if parent is None:
            who = {"worker": worker.id}
            block = {**who, **facts, **told_outbox(), **self._told_schedules()}
            self._teller.started({**block, "tasks": told_count()})
        with (
            scheduler.in_thread(conf.current(), wanted=self._with_scheduler),
            tuned(),
        ):
            ended = worker.run()
        code = exit_code(ended)
        if parent is not None:
            code = child_exit_code(ended, drained=worker.drained)
            parent.board.show_end(code)
        if ended in {Ended.DONE, Ended.RECYCLE}:
            if code:
                sys.exit(code)
            return
        # Bodies still run in threads, and their jobs are others' now: this process must end.
        told = f"stopped before every job had ended ({ended}); they were given back"
        if ended is Ended.STUCK:
            told = "a task outlived its time limit, and ends with this process"
        self._teller.ended(told)
        leave(code)

    def _wait(self, options: Options, slots: str) -> Facts | None:
        """Return the facts of the start block; None if a stop came before the database did."""

        def read(store: BaseStore) -> Facts:
            facts = start_facts(options, store, slots)
            # It listened, and nobody here would take what it is told.
            store.connection.close()
            return facts

        if options.drain:
            # Whoever runs it looks at its end: it does not wait.
            with self.usable_store() as store:
                return read(store)
        return self.wait_for_store(self._stops, self._teller.waits, read)

    def _told_schedules(self) -> Facts:
        """Return the start block's line about schedules; none where this process makes no ticks."""
        count = len(schedules.declared())
        return {"schedules": f"{count} declared"} if self._with_scheduler else {}

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


def told_outbox() -> Facts:
    """Return the start block's line about what is relayed; none where nothing is."""
    aliases, count = relayed_aliases(), len(destinations.declared())
    return {"outbox": f"{', '.join(aliases)}; {count} destinations"} if aliases else {}


def told_count() -> str:
    return f"{len(registry.paths())} declared"


def counted(number: int, what: str, plural: str = "s") -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}{plural}"


def count_or_none(text: str) -> int:
    """Return a whole number of at least 0."""
    return count(text, least=0)


def count(text: str, least: int = 1) -> int:
    """Return a whole number of at least *least*."""
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise ArgumentTypeError(f"must be a whole number of {least} or more, got {text!r}")
    return number
