"""What calls ask of the caller's transaction: that there is none, or that there is one."""

from __future__ import annotations

from typing import Any

from django.db import connections

from .exceptions import InTransaction, NotInTransaction


def refuse_open(alias: str, call: str, reason: str) -> None:
    """Raise InTransaction where the caller has a transaction open on *alias*.

    The one that Django's TestCase puts around a test does not count, as it does not for
    ``atomic(durable=True)``.
    """
    connection = connections[alias]
    blocks = connection.atomic_blocks
    is_open = any(not getattr(block, "_from_testcase", False) for block in blocks)
    if is_open or (not connection.in_atomic_block and not connection.get_autocommit()):
        raise InTransaction(
            f"{call} must commit by itself, got an open transaction on {alias!r}: {reason}. "
            "Call it outside of atomic(); in a view under ATOMIC_REQUESTS, decorate the view "
            f"with transaction.non_atomic_requests(using={alias!r})."
        )


def in_test(connection: Any) -> bool:
    """Tell whether Django's TestCase has a transaction around the present test."""
    return any(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)


def require_open(alias: str, call: str) -> None:
    """Raise NotInTransaction where the caller has no transaction open on *alias*."""
    connection = connections[alias]
    if connection.in_atomic_block or not connection.get_autocommit():
        return
    others = [each.alias for each in connections.all(initialized_only=True) if each.in_atomic_block]
    got = f"one on {', '.join(map(repr, others))}" if others else "none"
    raise NotInTransaction(
        f"{call} must be part of a transaction on {alias!r}, got {got}. Call it inside "
        f"transaction.atomic(using={alias!r}), together with the writes that it tells of; nothing "
        "was written."
    )


def reopen(alias: str) -> None:
    """Close the connection of *alias* if it broke, so that the next statement opens a new one.

    Django does so between requests; a loop that claims has none.
    """
    connection = connections[alias]
    if connection.errors_occurred and not connection.in_atomic_block:
        connection.close_if_unusable_or_obsolete()
