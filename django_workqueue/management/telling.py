"""What `runworker` says: a block at its start and a line per outcome, as text or as JSON events."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from .. import __version__
from ..logs import discard_stdout, json_to
from ..settler import Settled
from ..store import BaseStore
from ..wakeup import TRUSTED_POLL_FACTOR, wakeup_for
from ..worker import Options

if TYPE_CHECKING:
    from django.core.management.base import OutputWrapper

logger = logging.getLogger("django_workqueue.runworker")

LEVELS: Final = {0: logging.WARNING, 1: logging.INFO}
"""What JSON events show by --verbosity; above, everything."""

Facts = dict[str, str]
"""The start block: what a line is about, and the line."""


class Teller:
    """Tells what the command does, as *log_format* says: ``text`` or ``json``."""

    def __init__(
        self, stdout: OutputWrapper, stderr: OutputWrapper, log_format: str, verbosity: int
    ) -> None:
        self._stdout = stdout
        self._stderr = stderr
        self._as_json = log_format == "json"
        self._level = LEVELS.get(verbosity, logging.DEBUG)
        # Outcomes are events of the worker's own where events are shown.
        self._shown = verbosity > 0 and not self._as_json

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Show log events as JSON within the block, if that is asked for."""
        if not self._as_json:
            yield
            return
        with json_to(self._stdout, self._level):
            yield

    def started(self, facts: Facts) -> None:
        """Print the start block."""
        fields: dict[str, Any] = {name.replace("-", "_"): told for name, told in facts.items()}
        if self._as_json:
            logger.info("runworker started", extra=fields | {"version": __version__})
            return
        lines = [f"  {name:<9} {told}" for name, told in facts.items() if name != "worker"]
        who = f"worker {facts['worker']}" if "worker" in facts else ""
        self._print("\n".join([f"django-workqueue {__version__}  {who}".rstrip(), *lines]))

    def waits(self, why: str) -> None:
        """Say, whatever the verbosity, why no work begins yet."""
        if self._as_json:
            logger.warning("waiting for the database", extra={"why": why})
        else:
            self._stderr.write(f"{why} Waiting for it.")

    def ended(self, told: str) -> None:
        """Say that the end was no clean one."""
        if self._as_json:
            logger.warning("ended early", extra={"why": told})
            return
        try:
            self._stderr.write(told)
        except (OSError, ValueError):
            # Closed, by a task or by whoever read it.
            pass

    def settled(self, settled: Settled) -> None:
        """Print what came of a job."""
        if not self._shown:
            return
        claim, outcome = settled.job.claim, settled.job.outcome
        took = "" if outcome is None else f"  {(outcome.ended - outcome.started) * 1000:.0f} ms"
        why = f"  {settled.error}" if settled.error else ""
        self._print(
            f"{settled.place:<9}  {claim.task or claim.queue_name}  {claim.id}  "
            f"attempt {claim.attempt}/{claim.max_attempts}{took}{why}"
        )

    def _print(self, text: str) -> None:
        if not self._shown:
            return
        try:
            # In one piece, since other workers may write to the same file.
            self._stdout.write(text)
            self._stdout.flush()
        except BrokenPipeError:
            # Nobody reads any more, and that is no reason to stop working.
            self._shown = False
            discard_stdout()


def start_facts(options: Options, store: BaseStore, slots: str) -> Facts:
    """Return what the start block says. Asks the database."""
    connection = store.connection
    difference = (store.now() - datetime.now(UTC)).total_seconds()
    version = ".".join(map(str, connection.get_database_version()))
    return {
        "database": f"{connection.display_name} {version}, alias {store.alias!r}",
        "queues": ", ".join(options.queues) if options.queues else "all",
        "slots": slots,
        "async": f"{options.async_tasks} coroutines in each process, beside its threads",
        "lease": f"{options.lease_seconds:g} s, extended every "
        f"{options.lease_seconds / 3:.3g} s; grace {options.grace_seconds:g} s",
        "wake-up": _wakeup(options, store),
        "clock": f"{difference:+.3f} s (the database's clock minus this host's)",
    }


def _wakeup(options: Options, store: BaseStore) -> str:
    wakeup = wakeup_for(store)
    wakeup.attach()
    trusted, told_by = wakeup.trusted, wakeup.told_by
    wakeup.close()
    if not trusted:
        return f"poll every {options.poll_seconds:g} s"
    rarer = options.poll_seconds * TRUSTED_POLL_FACTOR
    return f"{told_by}, and a poll every {rarer:g} s"
