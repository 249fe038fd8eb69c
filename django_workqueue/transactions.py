"""What calls ask of the caller's transaction: that there is none, or that there is one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from django.db import connections

from .exceptions import InTransaction, NotInTransaction

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

logger = logging.getLogger("django_workqueue")

_warned = False


def refuse_open(alias: str, call: str, reason: str) -> None:
    """Raise InTransaction where the caller has a transaction open on *alias*.

    The one that Django's TestCase puts around a test does not count, as it does not for
    ``atomic(durable=True)``.
    """
    if _is_open(connections[alias]):
        raise InTransaction(
            f"{call} must commit by itself, got an open transaction on {alias!r}: {reason}. "
            "Call it outside of atomic(); in a view under ATOMIC_REQUESTS, decorate the view "
            f"with transaction.non_atomic_requests(using={alias!r})."
        )


def in_test(connection: Any) -> bool:
    """Tell whether Django's TestCase has a transaction around the present test."""
    return any(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)


def require_open(alias: str, call: str) -> None:
    """Raise NotInTransaction where the caller has no transaction open on *alias*.

    The one that Django's TestCase puts around a test does not count: the same call would raise
    outside of tests.
    """
    if _is_open(connections[alias]):
        return
    others = [each.alias for each in connections.all(initialized_only=True) if _in_atomic(each)]
    got = f"one on {', '.join(map(repr, others))}" if others else "none"
    raise NotInTransaction(
        f"{call} must be part of a transaction on {alias!r}, got {got}. Call it inside "
        f"transaction.atomic(using={alias!r}), together with the writes that it tells of; nothing "
        "was written."
    )


def warn_of_other(alias: str, task: str) -> None:
    """Warn, once a process, of an enqueue outside of the transaction that its caller is in."""
    global _warned
    # Most projects have one database, and no other to look at.
    if _warned or len(connections.settings) == 1:
        return
    for connection in connections.all(initialized_only=True):
        if connection.alias != alias and _in_atomic(connection):
            _warned = True
            logger.warning(
                "%s was enqueued in %r inside a transaction on %r, and commits without it: use "
                "django_workqueue.outbox.enqueue(task, ..., using=%r). Said once a process.",
                task,
                alias,
                connection.alias,
                connection.alias,
                stack_info=True,
            )
            return


def _is_open(connection: BaseDatabaseWrapper) -> bool:
    """Tell whether a caller has a transaction open; that of Django's TestCase does not count."""
    off = not connection.in_atomic_block and not connection.get_autocommit()
    return off or _in_atomic(connection)


def _in_atomic(connection: BaseDatabaseWrapper) -> bool:
    blocks = connection.atomic_blocks
    return any(not getattr(block, "_from_testcase", False) for block in blocks)


def reopen(alias: str) -> None:
    """Close the connection of *alias* if it broke, so that the next statement opens a new one.

    Django does so between requests; a loop that claims has none.
    """
    connection = connections[alias]
    if connection.errors_occurred and not connection.in_atomic_block:
        connection.close_if_unusable_or_obsolete()
