"""The database connections of a thread that runs tasks: in order between two of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from django.db import connections

from .transactions import in_test

logger = logging.getLogger("django_workqueue.connecting")

IDLE_SECONDS: Final = 1.0
"""Connections unused for that long are tried before a job meets them: the server may have gone."""


def clean_connections(*, keep: str | None = None) -> list[str]:
    """Put this thread's connections in order; return the aliases on which a transaction was open.

    The transaction on the alias *keep* is the caller's, and one that Django's TestCase has begun is
    the test's.

    A connection with one is closed, which rolls it back. The rest are kept, whatever CONN_MAX_AGE
    says, unless they broke.
    """
    left_open = []
    for connection in connections.all(initialized_only=True):
        # DEBUG keeps every query of a thread.
        connection.queries_log.clear()
        if connection.connection is None or connection.alias == keep or in_test(connection):
            continue
        if connection.in_atomic_block or not connection.get_autocommit():
            left_open.append(connection.alias)
            _close(connection)
        elif connection.errors_occurred and not connection.is_usable():
            _close(connection)
        else:
            connection.errors_occurred = False
    return left_open


def drop_unusable_connections() -> None:
    """Close this thread's connections that do not answer; the next use opens them again."""
    for connection in connections.all(initialized_only=True):
        if connection.connection is not None and not connection.is_usable():
            connection.close()


def in_order(clean: Callable[[], list[str] | None]) -> list[str]:
    """Put connections in order; one that cannot even be closed must not end its thread."""
    try:
        return clean() or []
    except Exception:
        logger.exception("connection could not be put in order")
        return []


def _close(connection: Any) -> None:
    # close() inside atomic() only marks the connection; what the task left behind is not ours.
    connection.in_atomic_block = False
    connection.savepoint_ids = []
    connection.run_on_commit = []
    connection.needs_rollback = False
    # Set where the task closed it inside atomic(): close() would leave it as it is, for ever.
    connection.closed_in_transaction = False
    connection.close()
