"""Statements that PostgreSQL parses and plans once a connection: a third of what a short one costs.

Django leaves prepared statements off: a pooler in transaction mode gives each transaction another
connection of the server, where a statement's name means nothing, or what another client meant by
it. So nothing is prepared where a pooler is seen; and one that is not seen does no harm:

- a name is the hash of its text, and means that text on whatever connection;
- only in autocommit: where a name means nothing, nothing was written, and the text itself follows.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from django.db import DatabaseError

from .core import StoreCore, error_codes

logger = logging.getLogger("django_workqueue.store")

RUNS_BEFORE: Final = 5
"""A connection that lives for one request (CONN_MAX_AGE = 0) would lose by it."""

REFUSED: Final = frozenset({"26000", "42P05", "0A000"})
"""There is no statement of that name; there is one; its columns have changed (SQLSTATE)."""


class Preparing(StoreCore):
    """Short statements that run often."""

    def __init__(self, alias: str) -> None:
        super().__init__(alias)
        self.prepares = True
        # Of each of the driver's connections, by text: the runs so far, then what executes it.
        self._known: WeakKeyDictionary[Any, dict[str, int | str]] = WeakKeyDictionary()

    def execute(self, cursor: Any, sql: str, params: Mapping[str, Any]) -> None:
        connection = cursor.db
        if not self.prepares or connection.in_atomic_block or not connection.autocommit:
            cursor.execute(sql, params)
            return
        try:
            cursor.execute(self._prepared(cursor, sql, params), params)
        except DatabaseError as error:
            if REFUSED.isdisjoint(error_codes(error)):
                raise
            logger.info("prepared statement refused; sent whole from now on", exc_info=True)
            self.prepares = False
            cursor.execute(sql, params)

    def _prepared(self, cursor: Any, sql: str, params: Mapping[str, Any]) -> str:
        """Return what runs *sql*: itself, until it has run often enough to be prepared."""
        known = self._known.setdefault(cursor.db.connection, {})
        text = known.get(sql, 0)
        if isinstance(text, int):
            if text < RUNS_BEFORE:
                known[sql] = text + 1
                return sql
            text = known[sql] = sql if is_pooled(cursor) else prepare(cursor, sql, params)
        return text


def is_pooled(cursor: Any) -> bool:
    """Tell whether another process answers than the one that the driver was told of.

    A pooler makes up the number and the secret by which its client may cancel a statement.
    """
    connection = cursor.db
    if connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"):
        # By which Django is told of a pooler in transaction mode.
        return True
    cursor.execute("SELECT pg_backend_pid()")
    return bool(cursor.fetchone()[0] != connection.connection.info.backend_pid)


def prepare(cursor: Any, sql: str, params: Mapping[str, Any]) -> str:
    """Prepare *sql* on the connection of *cursor*; return what executes it."""
    name = f"workqueue_{hashlib.sha256(sql.encode()).hexdigest()[:32]}"
    numbered = sql % {each: f"${number}" for number, each in enumerate(params, start=1)}
    cursor.execute(f"PREPARE {name} AS {numbered}")
    return f"EXECUTE {name} ({', '.join(f'%({each})s' for each in params)})"
