"""What the commands share: the database is asked before work begins, and errors are one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connections
from django.db.migrations.executor import MigrationExecutor

from .. import conf
from ..exceptions import MigrationsMissing, WorkQueueError
from ..store import BaseStore, get_store

USAGE = 2

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
        return super().execute(*args, **options)

    @contextmanager
    def usable_store(self) -> Iterator[BaseStore]:
        """Yield the store of a database that is reached and migrated.

        What keeps it from that ends the command with one line and exit code 2.
        """
        try:
            store = get_store()
            check_migrations(store.alias)
        except (ImproperlyConfigured, WorkQueueError) as error:
            raise CommandError(str(error), returncode=USAGE) from error
        except DatabaseError as error:
            line = " ".join(str(error).split())
            raise CommandError(
                f"The queue's database cannot be used: {line}", returncode=USAGE
            ) from error
        yield store

    def checked_setting(self, key: str, value: float | None) -> float:
        """Return *value*, or the setting's for None. Ends the command for an illegal one."""
        if value is None:
            return float(getattr(conf.current(), key.lower()))
        problem = conf.problem(key, value)
        if problem is not None:
            raise CommandError(f"{OPTIONS[key]}: {problem}", returncode=USAGE)
        return value


def check_migrations(alias: str) -> None:
    """Raise MigrationsMissing unless every migration of this app was applied on *alias*."""
    executor = MigrationExecutor(connections[alias])
    targets = [key for key in executor.loader.graph.leaf_nodes() if key[0] == "workqueue"]
    plan: list[tuple[Any, bool]] = executor.migration_plan(targets)
    missing = [migration.name for migration, _ in plan if migration.app_label == "workqueue"]
    if missing:
        raise MigrationsMissing(
            f"The database {alias!r} must have the queue's tables, and lacks the migration "
            f"{', '.join(missing)}. Run: python manage.py migrate workqueue --database {alias}"
        )
