"""Statements that PostgreSQL parses and plans once a connection: a third of what a short one costs.

Django leaves prepared statements off: a pooler in transaction mode gives each transaction another
connection of the server, where a statement's name means nothing, or what another client meant by
it. So nothing is prepared where a pooler is seen; and one that is not seen does no harm:

- a name is the hash of its text, and means that text on whatever connection;
- only in autocommit: where a name means nothing, nothing was written, and the text itself follows.

What is the same in most calls stands in the prepared text: each parameter costs both sides.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

from django.db import DatabaseError

from .core import StoreCore, error_codes

logger = logging.getLogger("django_workqueue.store")

RUNS_BEFORE: Final = 5
"""A connection that lives for one request (CONN_MAX_AGE = 0) would lose by it."""

PREPARED_WITH_CONSTANTS: Final = 32
"""Statements of a connection with constants in their texts, each of which the server keeps."""

REFUSED: Final = frozenset({"0A", "26", "42"})
"""Classes of SQLSTATE: its columns have changed; no statement has that name; one has it already."""


class Preparing(StoreCore):
    """Short statements that run often."""

    def __init__(self, alias: str) -> None:
        super().__init__(alias)
        self.prepares = True
        # Of each of the driver's connections, by text: the runs so far, then what executes it.
        self._known: WeakKeyDictionary[Any, dict[Any, int | str]] = WeakKeyDictionary()

    def execute(
        self, cursor: Any, sql: str, params: Mapping[str, Any], constants: Sequence[str] = ()
    ) -> None:
        if self.prepares and is_alone(cursor.db):
            try:
                if text := self._prepared(cursor, sql, params, constants):
                    cursor.execute(text, params)
                    return
            except DatabaseError as error:
                if REFUSED.isdisjoint(str(code)[:2] for code in error_codes(error)):
                    raise
                logger.info("prepared statement refused; sent whole from now on", exc_info=True)
                self.prepares = False
        cursor.execute(sql, params)

    def _prepared(
        self, cursor: Any, sql: str, params: Mapping[str, Any], constants: Sequence[str]
    ) -> str:
        """Return what executes *sql* as prepared; nothing until it has run often enough."""
        known = self._known.setdefault(cursor.db.connection, {})
        key = (sql, *(params[name] for name in constants))
        text = known.get(key)
        if text is None and constants and len(known) >= PREPARED_WITH_CONSTANTS:
            return self._prepared(cursor, sql, params, ())
        if not isinstance(text, str):
            runs = text or 0
            if runs < RUNS_BEFORE:
                known[key] = runs + 1
                return ""
            may = may_prepare(cursor)
            text = known[key] = prepare(cursor, sql, params, constants) if may else ""
        return text


def is_alone(connection: Any) -> bool:
    """Tell whether a statement is its own transaction: no BEGIN was sent by hand, either."""
    if connection.in_atomic_block or not connection.autocommit:
        return False
    driver = connection.connection
    # Psycopg's info makes an object for the connection and one for the status.
    return not (getattr(driver, "pgconn", None) or driver.info).transaction_status


def may_prepare(cursor: Any) -> bool:
    """Tell whether the process that answers is the one that the driver was told of.

    A pooler makes up the number and the secret by which its client may cancel a statement.
    """
    connection = cursor.db
    settings = connection.settings_dict
    if settings.get("DISABLE_SERVER_SIDE_CURSORS"):
        # By which Django is told of a pooler in transaction mode.
        return False
    if settings["OPTIONS"].get("server_side_binding"):
        # EXECUTE takes no parameters of the protocol; there, psycopg's own prepare_threshold works.
        return False
    cursor.execute("SELECT pg_backend_pid()")
    return bool(cursor.fetchone()[0] == connection.connection.info.backend_pid)


def prepare(cursor: Any, sql: str, params: Mapping[str, Any], constants: Sequence[str]) -> str:
    """Prepare *sql* on the connection of *cursor*; return what executes it."""
    given = [name for name in params if name not in constants]
    numbered = {name: f"${number}" for number, name in enumerate(given, start=1)}
    quoted = {name: cursor.db.ops.compose_sql("%s", [params[name]]) for name in constants}
    text = sql % (numbered | quoted)
    name = f"workqueue_{hashlib.sha256(text.encode()).hexdigest()[:32]}"
    cursor.execute(f"PREPARE {name} AS {text}")
    return f"EXECUTE {name} ({', '.join(f'%({each})s' for each in given)})"
