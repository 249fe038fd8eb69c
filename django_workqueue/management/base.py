"""What the commands share: the database is asked before work begins, and errors are one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import connections
from django.db.migrations.loader import MigrationLoader

from .. import conf
from ..compat import InvalidTask
from ..exceptions import MigrationsMissing, WorkQueueError
from ..faults import DATABASE_FAULTS
from ..logs import fields_in_text
from ..loop import Loop
from ..store import BaseStore, get_store
from .stops import Stops

T = TypeVar("T")

USAGE = 2
WAIT_SECONDS: Final = 1.0
"""Between two looks at a database that is not reached, or not migrated."""

OPTIONS = {
    "LEASE_SECONDS": "--lease",
    "POLL_SECONDS": "--poll",
    "GRACE_SECONDS": "--grace",
    "SWEEP_SECONDS": "--interval",
}
"""The option that takes the place of a setting."""


class WorkQueueCommand(BaseCommand):
    """A command of this app. Exit codes: 0 done, 1 the work failed, 2 it could not begin."""

    def execute(self, *args: Any, **options: Any) -> str | None:
        # Before the system checks: they would tell the same in many lines and with exit code 1.
        problems = conf.current_problems()
        if problems:
            raise CommandError(" ".join(map(str, problems)), returncode=USAGE)
        with fields_in_text():
            return super().execute(*args, **options)

    @contextmanager
    def usable_store(self) -> Iterator[BaseStore]:
        """Yield the store of a database that is reached and migrated.

        What keeps it from that ends the command with one line and exit code 2.
        """
        try:
            with self.settings_in_order():
                store = get_store()
                check_migrations(store.alias)
        except DATABASE_FAULTS as error:
            raise CommandError(one_line(error), returncode=USAGE) from error
        yield store

    def wait_for_store(
        self, stops: Stops, on_wait: Callable[[str], None], read: Callable[[BaseStore], T]
    ) -> T | None:
        """Return what *read* does once the database is reached and migrated; None: stopped before.

        *on_wait* is told why it waits, once for each reason. Settings that cannot be used end the
        command with exit code 2, since waiting cannot mend them.
        """
        found: list[T] = []
        told: list[str] = []

        def look() -> float:
            with self.settings_in_order():
                store = get_store()
            check_migrations(store.alias)
            found.append(read(store))
            loop.stop()
            return 0.0

        def wait(error: Exception) -> float:
            if isinstance(error, DATABASE_FAULTS):
                connections.close_all()
            why = one_line(error)
            if [why] != told[-1:]:
                told.append(why)
                on_wait(why)
            return WAIT_SECONDS

        loop = Loop(look, errors=(MigrationsMissing, *DATABASE_FAULTS), on_error=wait)
        stops.pass_on(lambda count: loop.stop())
        loop.run()
        return None if stops.came else found[0]

    @contextmanager
    def settings_in_order(self) -> Iterator[None]:
        """End the command with one line and exit code 2 for settings that cannot be used."""
        try:
            yield
        except (ImproperlyConfigured, WorkQueueError) as error:
            raise CommandError(str(error), returncode=USAGE) from error

    def checked_setting(self, key: str, value: float | None) -> float:
        """Return *value*, or the setting's for None. Ends the command for an illegal one."""
        if value is None:
            return float(getattr(conf.current(), key.lower()))
        problem = conf.problem(key, value)
        if problem is not None:
            raise CommandError(f"{OPTIONS[key]}: {problem}", returncode=USAGE)
        return value


def one_line(error: Exception) -> str:
    """Return in one line why the queue's database cannot be used."""
    line = " ".join(str(error).split())
    if isinstance(error, DATABASE_FAULTS):
        return f"The queue's database cannot be used: {line}"
    return line


@contextmanager
def schedules_refused() -> Iterator[None]:
    """End the command with one line and exit code 2 for a schedule that is refused."""
    try:
        yield
    except (WorkQueueError, InvalidTask) as error:
        raise CommandError(str(error), returncode=USAGE) from error


def check_migrations(alias: str) -> None:
    """Raise MigrationsMissing unless every migration of this app was applied on *alias*."""
    loader = MigrationLoader(connections[alias])
    wanted = sorted(key for key in loader.graph.nodes if key[0] == "workqueue")
    missing = [name for app, name in wanted if (app, name) not in loader.applied_migrations]
    if missing:
        raise MigrationsMissing(
            f"The database {alias!r} must have the queue's tables, and lacks the "
            f"migration{'s' if missing[1:] else ''} {', '.join(missing)}. "
            f"Run: python manage.py migrate workqueue --database {alias}"
        )
