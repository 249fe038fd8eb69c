"""Statements that PostgreSQL parses and plans once a connection: a third of what a short one costs.

Django leaves prepared statements off: a pooler in transaction mode gives each transaction another
connection of the server, where a statement's name means nothing, or what another client meant by
it. So nothing is prepared where a pooler is seen; and one that is not seen does no harm:

- a name is the hash of its text, and means that text on whatever connection;
- only in autocommit: where a name means nothing, nothing was written, and the text itself follows.

What is the same in most calls stands in the prepared text, and the rest goes as literals: each
parameter costs both sides.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from django.db import DatabaseError

from .core import StoreCore, error_codes
from .newrows import OF_A_TASK, text_of

logger = logging.getLogger("django_workqueue.store")

RUNS_BEFORE: Final = 5
"""A connection that lives for one request (CONN_MAX_AGE = 0) would lose by it."""

MOST_WITH_CONSTANTS: Final = 32
"""Texts with constants in them, each of which the server keeps for each connection."""

REFUSED: Final = frozenset({"0A", "26", "42"})
"""Classes of SQLSTATE: its columns have changed; no statement has that name; one has it already, or
its parameters have no type. An error of a trigger may be of the last: it then costs speed, no job.
"""


class Prepared(NamedTuple):
    """A statement that a connection knows, and the order of its parameters."""

    name: str
    names: list[str]

    def execution(self, params: Mapping[str, Any]) -> str:
        values = [literal(params[name]) for name in self.names]
        return f"EXECUTE {self.name} ({', '.join(values)})"


Known = dict[str, int | Prepared | None]
"""By text: the runs so far, then what executes it. None: it may not be prepared there."""


class Preparing(StoreCore):
    """Short statements that run often."""

    def __init__(self, alias: str) -> None:
        super().__init__(alias)
        self.prepares = True
        # By the driver's connection, which a pool gives to one of Django's after the other.
        self._known: WeakKeyDictionary[Any, Known] = WeakKeyDictionary()
        self._with_constants: dict[tuple[Any, ...], str] = {}

    def run(self, sql: str, params: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        named: Any = params
        with self.connection.cursor() as cursor:
            if not self._run_prepared(cursor, sql, params):
                cursor.execute(sql, named)
            return list(cursor.fetchall())

    def _run_prepared(self, cursor: Any, sql: str, params: Mapping[str, Any]) -> bool:
        """Tell whether *sql* has run as prepared; where it has not, nothing was written."""
        if self.prepares and is_alone(cursor.db):
            try:
                if prepared := self._prepared(cursor, sql, params):
                    cursor.execute(prepared.execution(params))
                    return True
            except DatabaseError as error:
                if REFUSED.isdisjoint(str(code)[:2] for code in error_codes(error)):
                    raise
                logger.info("prepared statement refused; sent whole from now on", exc_info=True)
                self.prepares = False
        return False

    def _prepared(self, cursor: Any, sql: str, params: Mapping[str, Any]) -> Prepared | None:
        """Return what executes *sql* as prepared; nothing until it has run often enough."""
        known = self._known.setdefault(cursor.db.connection, {})
        found = known.get(sql, 0)
        if not isinstance(found, int):
            return found
        if found < RUNS_BEFORE:
            known[sql] = found + 1
            return None
        prepared = known[sql] = prepare(cursor, sql, params) if may_prepare(cursor) else None
        return prepared

    def with_constants(self, sql: str, params: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        constants = [name for name in OF_A_TASK if name in params]
        key = (sql, *(params[name] for name in constants))
        text = self._with_constants.get(key)
        if text is None:
            if len(self._with_constants) >= MOST_WITH_CONSTANTS:
                return sql, params
            kept = {name: f"%({name})s" for name in params}
            ops: Any = self.connection.ops
            for name in constants:
                kept[name] = ops.compose_sql("%s", [params[name]]).replace("%", "%%")
            # In one go: a constant may look like the place of another.
            text = self._with_constants[key] = sql % kept
        return text, {name: value for name, value in params.items() if name not in constants}


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
        # There psycopg's own prepare_threshold works, which keeps each text that it has seen.
        return False
    if not hasattr(connection.connection, "pgconn"):
        # Psycopg 2 was not tried.
        return False
    cursor.execute("SELECT pg_backend_pid()")
    return bool(cursor.fetchone()[0] == connection.connection.info.backend_pid)


def prepare(cursor: Any, sql: str, params: Mapping[str, Any]) -> Prepared:
    """Prepare *sql* on the connection of *cursor*; return what executes it."""
    text = sql % {name: f"${number}" for number, name in enumerate(params, start=1)}
    name = f"workqueue_{hashlib.sha256(text.encode()).hexdigest()[:32]}"
    cursor.execute(f"PREPARE {name} AS {text}")
    return Prepared(name, list(params))


def literal(value: Any) -> str:
    """Return *value* as SQL, which means the same whatever the session is set to.

    As libpq writes it, but of letters: that one takes bytes in the encoding of the session, where
    a quote after a part of a letter may seem to belong to it.
    """
    if value is None:
        return "NULL"
    if isinstance(value, int | float):
        return str(value)
    text = text_of(value).replace("'", "''")
    if "\\" not in text:
        return f"'{text}'"
    text = text.replace("\\", "\\\\")
    return f" E'{text}'"
