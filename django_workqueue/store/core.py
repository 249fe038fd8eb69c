"""What every part of the store stands on: the connection, the database's clock, transactions."""

from __future__ import annotations

import functools
import random
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, TypeVar

from django.db import DatabaseError, connections, transaction
from django.db.models import Expression, Model, QuerySet, Value
from django.db.models.expressions import RawSQL

from .. import clock
from ..exceptions import LeaseLost
from ..models import DeadJob, LiveJob, Result
from ..models.fields import MomentField, as_utc, from_database, to_database

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="StoreCore")
M = TypeVar("M", bound=Model)

OWN_RETRIES = 3


def transition(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Run *method* in one transaction; run it again, whole, after a deadlock if we own it.

    Inside a caller's ``atomic()`` it joins that transaction, and an error is the caller's: a
    deadlock on MariaDB rolls back the whole of it, so a repeated statement would commit alone.
    """

    @functools.wraps(method)
    def run(store: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        def in_one_transaction() -> R:
            with transaction.atomic(using=store.alias):
                return method(store, *args, **kwargs)

        if store.connection.in_atomic_block:
            return method(store, *args, **kwargs)
        return until_no_conflict(store, in_one_transaction)

    return run


def statement(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Run *method*, whose only write is one statement; run it again after a deadlock if we own it.

    In autocommit the statement is its own transaction, and BEGIN and COMMIT around it would cost
    two more journeys. Inside a caller's ``atomic()``, as `transition`.
    """

    @functools.wraps(method)
    def run(store: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return until_no_conflict(store, method, store, *args, **kwargs)

    return run


def compiled(build: Callable[Concatenate[S, P], str]) -> Callable[Concatenate[S, P], str]:
    """Keep the SQL text that *build* returns for its arguments: it is the same for every call."""

    @functools.wraps(build)
    def kept(store: S, /, *args: P.args, **kwargs: P.kwargs) -> str:
        key = (build, args, *kwargs.items())
        text = store.texts.get(key)
        if text is None:
            text = store.texts[key] = build(store, *args, **kwargs)
        return text

    return kept


def until_no_conflict(
    store: StoreCore, call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
) -> R:
    """Return what *call* returns, tried again up to OWN_RETRIES times after a conflict of ours."""
    for attempt in range(OWN_RETRIES):
        try:
            return call(*args, **kwargs)
        except DatabaseError as error:
            if store.connection.in_atomic_block or not store.is_conflict(error):
                raise
        clock.sleep(random.uniform(0.005, 0.05) * (attempt + 1))
    return call(*args, **kwargs)


class StoreCore:
    """A store of one database alias. Connections are Django's, one a thread."""

    conflict_codes: ClassVar[frozenset[str | int]] = frozenset()
    """SQLSTATEs or error numbers of a deadlock or a lost serialization race."""

    outage_codes: ClassVar[frozenset[str | int]] = frozenset()
    """Those of a server that answers and cannot be written to: read-only, shutting down."""

    too_large_codes: ClassVar[frozenset[str | int]] = frozenset()
    """Those of a statement that is larger than the server takes, whenever it comes."""

    by_primary_key: ClassVar[str] = ""
    """A hint that rows are to be found by it, for a planner that may take another index."""

    moved_seconds: ClassVar[float] = 0.0
    """How far a test has moved the database's clock, as this process sees it (testing)."""

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.texts: dict[Any, str] = {}
        # To ask a connection for each of a statement's forty names takes longer than to send it.
        self._quoted: dict[str, str] = {}

    @property
    def connection(self) -> BaseDatabaseWrapper:
        return connections[self.alias]

    # The database's clock

    def now_sql(self, now: datetime | None, offset_seconds: float = 0.0) -> tuple[str, list[Any]]:
        """Return SQL, and its parameters, for the database's now plus *offset_seconds*.

        With *now* given, that moment takes the place of the database's clock (tests).
        """
        if now is not None:
            moment = as_utc(now) + timedelta(seconds=offset_seconds)
            return "%s", [to_database(moment, self.connection.vendor)]
        return self.clock_sql(offset_seconds + self.moved_seconds)

    def clock_sql(self, offset_seconds: float) -> tuple[str, list[Any]]:
        """Return SQL for the database's own clock; a moment in the form of MomentField."""
        raise NotImplementedError  # pragma: no cover

    def later_sql(self, moment: str, seconds: str) -> str:
        """Return SQL for *moment* plus the number *seconds*; null where that is null."""
        raise NotImplementedError  # pragma: no cover

    def moment(self, now: datetime | None, offset_seconds: float = 0.0) -> Expression:
        """Return the same as an expression for the ORM."""
        if now is not None:
            return Value(as_utc(now) + timedelta(seconds=offset_seconds), MomentField())
        sql, params = self.now_sql(None, offset_seconds)
        return RawSQL(sql, params, output_field=MomentField())  # noqa: S611  # our own SQL

    def now(self) -> datetime:
        """Return the database's moment."""
        sql, params = self.now_sql(None)
        with self.connection.cursor() as cursor:
            cursor.execute(f"SELECT {self.read_moment_sql(sql)}", params)
            moment = from_database(cursor.fetchone()[0])
        assert moment is not None
        return moment

    # Raw columns: moments go through from_database, ids through dump_uuid and load_uuid

    def read_moment_sql(self, sql: str) -> str:
        """Return *sql* as it must be selected so that a moment is read in UTC."""
        return sql

    def dump_uuid(self, value: uuid.UUID) -> Any:
        (dumped,) = self.dump_uuids([value])
        return dumped

    def dump_uuids(self, values: Iterable[uuid.UUID]) -> list[Any]:
        native = self.connection.features.has_native_uuid_field
        return list(values) if native else [value.hex for value in values]

    def load_uuid(self, value: Any) -> uuid.UUID:
        return value if isinstance(value, uuid.UUID) else uuid.UUID(value)

    def run(self, sql: str, params: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Return the rows of *sql*, a short statement that runs often, with named parameters."""
        named: Any = params
        with self.connection.cursor() as cursor:
            cursor.execute(sql, named)
            return list(cursor.fetchall())

    # Rows

    def live(self) -> QuerySet[LiveJob]:
        return LiveJob._base_manager.using(self.alias)

    def dead(self) -> QuerySet[DeadJob]:
        return DeadJob._base_manager.using(self.alias)

    def results(self) -> QuerySet[Result]:
        return Result._base_manager.using(self.alias)

    def current(self, rows: QuerySet[M]) -> QuerySet[M]:
        """Return *rows* to be read as they are now, not as of the start of the transaction.

        For a look that a person's answer depends on; what decides is the write that follows.
        """
        return rows

    def quote(self, name: str) -> str:
        quoted = self._quoted.get(name)
        if quoted is None:
            quoted = self._quoted[name] = self.connection.ops.quote_name(name)
        return quoted

    @property
    def live_table(self) -> str:
        return self.quote(LiveJob._meta.db_table)

    def own(self) -> AbstractContextManager[Any]:
        """Return a transaction, or a savepoint where the caller has one."""
        return transaction.atomic(using=self.alias)

    def together(self) -> AbstractContextManager[Any]:
        """Return a transaction for a batch and its `lock`, where there is something to lock."""
        return nullcontext()

    def lock(
        self, model: type[Model], ids: Collection[Any], *, skip_locked: bool = False
    ) -> Collection[Any]:
        """Lock rows by their primary keys, first of all, where the order of locks is ours to say.

        Returns the keys to go on with: with *skip_locked*, not of rows that others have locked.

        For a database that may find the row of the statement that follows by another index, lock
        its entry, and then wait for a row that waits for the entry.
        """
        return ids

    def unlocked(self, ids: Collection[uuid.UUID]) -> set[uuid.UUID]:
        """Return those of live rows *ids* that no other transaction has locked; waits for none."""
        if not ids or not self.connection.features.has_select_for_update_skip_locked:
            return set(ids)
        q = self.quote
        # Whatever it locks it lets go at once: in autocommit, its end is the statement's.
        sql = (
            f"SELECT {q('id')} FROM {self.live_table} {self.by_primary_key} "
            f"WHERE {q('id')} IN ({', '.join(['%s'] * len(ids))}) "
            f"ORDER BY {q('id')} FOR UPDATE SKIP LOCKED"
        )
        with self.connection.cursor() as cursor:
            cursor.execute(sql, [self.dump_uuid(job_id) for job_id in ids])
            return {self.load_uuid(row[0]) for row in cursor.fetchall()}

    # A run with atomic=True

    def begin_run(self, lease_seconds: float, timeout: float | None) -> None:
        """Prepare the transaction just begun for a task's run: its first statement."""
        raise NotImplementedError  # pragma: no cover

    def end_run(self) -> None:
        """Make sure that nothing of the run was rolled back behind its back, before its settle.

        Raises the database's error, for which ``is_run_broken`` is True, where it was.
        """

    def is_run_broken(self, error: BaseException) -> bool:
        """Tell that error of ``end_run`` from others."""
        return False

    def run_bound_seconds(self, lease_seconds: float) -> float | None:
        """Return how long a run may hold its transaction; None: as long as it needs."""
        return None

    # Errors

    def is_outage(self, error: BaseException) -> bool:
        """Tell a database that went away, cannot be written, or lost a race from a task's fault."""
        return (
            not self.outage_codes.isdisjoint(error_codes(error))
            or self.is_conflict(error)
            or not self.connection.is_usable()
        )

    def is_conflict(self, error: BaseException) -> bool:
        """Tell a deadlock or lost race, after which the transaction may be run again."""
        return not self.conflict_codes.isdisjoint(error_codes(error))

    def is_too_large(self, error: BaseException, texts: Iterable[str]) -> bool:
        """Tell a statement that the server will never take from a fault that passes.

        *texts* are the long ones of its parameters. Outside of transactions only: the connection
        may be closed.
        """
        return not self.too_large_codes.isdisjoint(error_codes(error))


def delete_rows(rows: QuerySet[Any]) -> int:
    """Delete *rows* in one statement that holds their whole condition; return how many.

    Not QuerySet.delete(): where a project listens to the deletes of all models, that reads the
    rows first and then deletes by primary key alone, whoever holds them by then (I9).
    """
    count: int = rows._raw_delete(using=rows.db)  # noqa: SLF001  # the only way there is
    return count


def error_codes(error: BaseException) -> set[Any]:
    """Return the SQLSTATE and the number of the driver's error behind Django's, as far as it has.

    Both: PyMySQL has a SQLSTATE too, which says less than its number.
    """
    cause = error.__cause__
    number = cause.args[0] if cause is not None and cause.args else None
    sqlstate = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)  # psycopg2
    return {sqlstate, number if isinstance(number, int) else None} - {None}


def lost(job_id: uuid.UUID, verb: str) -> LeaseLost:
    """Return the error for a call by a claim that no longer holds its job."""
    return LeaseLost(
        f"A claim must hold its job to {verb} it, and job {job_id} was settled or taken by "
        "another claim. Nothing was written; stop working on it.",
        job_id=job_id,
    )
