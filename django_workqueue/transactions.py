"""What a call that commits by itself needs: no open transaction, and a working connection."""

from __future__ import annotations

from django.db import connections

from .exceptions import InTransaction


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


def reopen(alias: str) -> None:
    """Close the connection of *alias* if it broke, so that the next statement opens a new one.

    Django does so between requests; a loop that claims has none.
    """
    connection = connections[alias]
    if connection.errors_occurred and not connection.in_atomic_block:
        connection.close_if_unusable_or_obsolete()
