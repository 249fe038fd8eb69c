"""runworker: run jobs until stopped."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from argparse import ArgumentTypeError
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NoReturn

from django.core.management.base import CommandError, CommandParser
from django.utils.autoreload import get_child_arguments

from django_workqueue import __version__, registry
from django_workqueue.backend import WorkQueueBackend
from django_workqueue.board import SLOTS_PER_EXECUTOR, Board
from django_workqueue.compat import task_backends
from django_workqueue.ending import EXIT_GAVE_UP, EXIT_RECYCLE, Ended
from django_workqueue.loop import stop_on_signals
from django_workqueue.settler import Settled
from django_workqueue.store import BaseStore
from django_workqueue.supervisor import Plan, Supervisor
from django_workqueue.wakeup import TRUSTED_POLL_FACTOR, wakeup_for
from django_workqueue.worker import Options, Parent, Worker

from ..base import USAGE, WorkQueueCommand


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
            default=0,
            help="Worker processes under this one, which replaces those that end (default: 0, work "
            "in this process).",
        )
        parser.add_argument(
            "--threads", type=count, default=4, help="Tasks that run at once (default: 4)."
        )
        parser.add_argument(
            "--drain", action="store_true", help="End with exit code 0 when nothing is due."
        )
        parser.add_argument(
            "--max-jobs",
            type=count,
            help="End, or with --processes replace a worker process, after that many jobs.",
        )
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
        parent = child_of()
        if parent is not None:
            self._work(replace(options, sweep=False), parent, None)
        elif given["processes"]:
            # A child is this command line once more, which a call from a program has not.
            if not getattr(self, "_called_from_command_line", False):
                raise CommandError(
                    "--processes must be 0 where a program calls the command: there is no command "
                    "line to start children with.",
                    returncode=USAGE,
                )
            self._supervise(options, given["processes"])
        else:
            with self.usable_store() as store:
                self._work(options, None, store)

    def _supervise(self, options: Options, processes: int) -> None:
        """Run workers in child processes; this one runs no task."""
        with self.usable_store() as store:
            registry.discover()
            plan = Plan(
                processes=processes,
                slots=options.threads * SLOTS_PER_EXECUTOR,
                queues=options.queues,
                lease_seconds=options.lease_seconds,
                grace_seconds=options.grace_seconds,
                drain=options.drain,
                sweep=options.sweep,
            )
            supervisor = Supervisor(plan, spawn)
            # Before the start block: who has read it may send a signal.
            with stop_on_signals(supervisor.stop):
                threads = f"{processes} processes of {options.threads} threads"
                self._say_start(options, store, "", threads)
                # It listened for the start block, and nobody here would take what it is told.
                store.connection.close()
                code = supervisor.run()
        if supervisor.failure:
            raise CommandError(supervisor.failure)
        if code:
            sys.exit(code)

    def _work(self, options: Options, parent: Parent | None, store: BaseStore | None) -> None:
        """Work in this process; *store* is asked for the start block, which a child leaves out."""
        registry.discover()
        worker = Worker(options, on_settled=self._show, parent=parent)
        # Before the start block: who has read it may send a signal.
        with stop_on_signals(worker.stop):
            if store is not None:
                self._say_start(options, store, f"worker {worker.id}", f"{options.threads} threads")
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
        with suppress(OSError, ValueError):
            self.stderr.write(told)
        leave(code)

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

    def _say_start(self, options: Options, store: BaseStore, who: str, slots: str) -> None:
        if not self._shown:
            return
        connection = store.connection
        difference = (store.now() - datetime.now(UTC)).total_seconds()
        version = ".".join(map(str, connection.get_database_version()))
        lines = (
            f"django-workqueue {__version__}  {who}".rstrip(),
            f"  database  {connection.display_name} {version}, alias {store.alias!r}",
            f"  queues    {', '.join(options.queues) if options.queues else 'all'}",
            f"  slots     {slots}",
            f"  lease     {options.lease_seconds:g} s, extended every "
            f"{options.lease_seconds / 3:.3g} s; grace {options.grace_seconds:g} s",
            f"  wake-up   {self._wakeup(options, store)}",
            f"  clock     {difference:+.3f} s (the database's clock minus this host's)",
            f"  tasks     {len(registry.paths())} declared",
        )
        self._print("\n".join(lines))

    def _print(self, text: str) -> None:
        try:
            self.stdout.write(text)
            self.stdout.flush()
        except BrokenPipeError:
            # Nobody reads any more, and that is no reason to stop working.
            self._shown = False
            discard_stdout()

    def _wakeup(self, options: Options, store: BaseStore) -> str:
        wakeup = wakeup_for(store)
        wakeup.attach()
        trusted, told_by = wakeup.trusted, wakeup.told_by
        wakeup.close()
        if not trusted:
            return f"poll every {options.poll_seconds:g} s"
        rarer = options.poll_seconds * TRUSTED_POLL_FACTOR
        return f"{told_by}, and a poll every {rarer:g} s"

    def _show(self, settled: Settled) -> None:
        if not self._shown:
            return
        claim, outcome = settled.job.claim, settled.job.outcome
        took = "" if outcome is None else f"  {(outcome.ended - outcome.started) * 1000:.0f} ms"
        why = ""
        if outcome is not None and outcome.error is not None:
            line = " ".join(outcome.error.message.split())[:200]
            why = f"  {outcome.error.exception_class}: {line}"
        self._print(
            f"{settled.place:<9}  {claim.task}  {claim.id}  "
            f"attempt {claim.attempt}/{claim.max_attempts}{took}{why}"
        )


CHILD_VARIABLE = "DJANGO_WORKQUEUE_CHILD"


def spawn(worker_id: str, board: Board, alive_descriptor: int) -> subprocess.Popen[bytes]:
    """Start a child: this command line once more, with what it needs in its environment.

    By exec, so that it inherits no connection, lock or thread; in a process group of its own, so
    that Ctrl-C reaches it through its parent, once.
    """
    told = {
        "worker_id": worker_id,
        "board": board.descriptor,
        "slots": board.slots,
        "alive": alive_descriptor,
    }
    return subprocess.Popen(  # noqa: S603  # our own command line
        [str(part) for part in get_child_arguments()],
        env={**os.environ, CHILD_VARIABLE: json.dumps(told)},
        pass_fds=(board.descriptor, alive_descriptor),
        stdin=subprocess.DEVNULL,
        process_group=0,
    )


def child_of() -> Parent | None:
    """Return what a parent gave this process, or None where there is none."""
    text = os.environ.pop(CHILD_VARIABLE, None)
    if text is None:
        return None
    told = json.loads(text)
    return Parent(told["worker_id"], Board(told["board"], told["slots"]), told["alive"])


def exit_code(ended: Ended) -> int:
    """Return the exit code of a worker without a parent."""
    return 1 if ended in {Ended.CUT, Ended.STUCK} else 0


def child_exit_code(ended: Ended, *, drained: bool) -> int:
    """Return what a worker tells its parent; 0 only where nothing was left to do."""
    if ended in {Ended.CUT, Ended.GRACE_OVER}:
        return EXIT_GAVE_UP
    return 0 if ended is Ended.DONE and drained else EXIT_RECYCLE


def leave(code: int) -> NoReturn:
    """End this process without waiting for the threads of its tasks."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        # Closed by a task, or by whoever read it.
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def discard_stdout() -> None:
    """Let the standard output go nowhere: what is left of it would fail once more at the exit."""
    descriptor = os.open(os.devnull, os.O_WRONLY)
    os.dup2(descriptor, sys.stdout.fileno())
    os.close(descriptor)


def count_or_none(text: str) -> int:
    """Return a whole number of at least 0."""
    return 0 if text == "0" else count(text)


def count(text: str) -> int:
    """Return a whole number of at least 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ArgumentTypeError(f"must be a whole number of 1 or more, got {text!r}")
    return number
