"""Column types whose meaning is the same on every database."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from django.db import models
from django.db.models import Q
from django.utils import timezone

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor
    from django.db.models import CharField, DateTimeField, TextField
else:
    # Generic for type checkers only: Django's fields cannot be subscripted when they run.
    class Subscriptable:
        def __class_getitem__(cls, item):
            return cls

    class DateTimeField(Subscriptable, models.DateTimeField):
        pass

    class TextField(Subscriptable, models.TextField):
        pass

    class CharField(Subscriptable, models.CharField):
        pass


Set_contra = TypeVar("Set_contra", contravariant=True)
Get_co = TypeVar("Get_co", covariant=True)

SQLITE_MOMENT = "%Y-%m-%d %H:%M:%S.%f"


class MomentField(DateTimeField[Set_contra, Get_co]):
    """A moment: aware, UTC, six digits, whatever ``USE_TZ`` and the session's zone say.

    ``timestamp with time zone`` on PostgreSQL, ``datetime(6)`` in UTC on MariaDB and MySQL, text
    in one format on SQLite, where texts of different precision would compare wrongly.
    A naive value is taken to be in Django's current time zone.
    """

    def get_internal_type(self) -> str:
        # Not DateTimeField: its converters depend on USE_TZ and on the connection's zone.
        return "MomentField"

    def db_type(self, connection: BaseDatabaseWrapper) -> str:
        return {
            "postgresql": "timestamp with time zone",
            "mysql": "datetime(6)",
            "sqlite": "text",
        }[connection.vendor]

    def to_python(self, value: Any) -> Any:
        moment = super().to_python(value)
        return None if moment is None else as_utc(moment)

    def get_prep_value(self, value: Any) -> Any:
        if value is None or hasattr(value, "resolve_expression"):
            return value
        return self.to_python(value)

    def get_db_prep_value(
        self,
        value: Any,
        connection: BaseDatabaseWrapper,
        prepared: bool = False,  # noqa: FBT001, FBT002  # Django's signature
    ) -> Any:
        if not prepared:
            value = self.get_prep_value(value)
        if not isinstance(value, datetime):
            return value
        return to_database(value, connection.vendor)

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> datetime | None:
        return from_database(value)

    def select_format(self, compiler: Any, sql: str, params: Any) -> tuple[str, Any]:
        # Without USE_TZ, psycopg would return the session's local time with the zone cut off.
        if compiler.connection.vendor == "postgresql":
            return f"({sql} AT TIME ZONE 'UTC')", params
        return sql, params


def as_utc(moment: datetime) -> datetime:
    """Return *moment* aware in UTC; a naive one is in Django's current time zone."""
    if moment.tzinfo is UTC:
        return moment
    if timezone.is_naive(moment):
        moment = timezone.make_aware(moment)
    return moment.astimezone(UTC)


def to_database(moment: datetime, vendor: str) -> datetime | str:
    """Return what the driver of *vendor* is given for an aware moment."""
    utc = as_utc(moment)
    if vendor == "sqlite":
        return utc.strftime(SQLITE_MOMENT)
    return utc.replace(tzinfo=None) if vendor == "mysql" else utc


def from_database(value: Any) -> datetime | None:
    """Return the aware moment for what a driver read: text, or a datetime in UTC."""
    if value is None:
        return None
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if value.tzinfo is None:
        return value.replace(tzinfo=UTC)  # type: ignore[no-any-return]  # drivers are untyped
    return value.astimezone(UTC)  # type: ignore[no-any-return]


class EncodedJSON(str):
    """JSON text that is written as it is; a plain str would be encoded as a JSON string."""

    __slots__ = ()


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"a number of JSON must be finite, got {text:.80}.")
    return number


_DECODER: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


def decoded(text: str) -> Any:
    """Return the value of JSON *text*. Raises ValueError for one that could not be written again:
    no JSON, with infinity or NaN in it, or nested too deeply.
    """
    try:
        return _DECODER.decode(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


class JSONTextField(TextField[Set_contra, Get_co]):
    """A JSON value kept as text: the same characters on every database.

    Not Django's JSONField: ``jsonb`` reorders keys, turns 1e16 into a whole number and refuses
    NUL, and the text is already made, and measured, by the time it is stored.
    """

    def get_internal_type(self) -> str:
        return "TextField"

    def get_prep_value(self, value: Any) -> Any:
        if value is None:
            # JSON's null where the column takes no other: a payload may be null.
            return None if self.null else "null"
        if isinstance(value, EncodedJSON) or hasattr(value, "resolve_expression"):
            return value
        return json.dumps(value, separators=(",", ":"), allow_nan=False)

    def from_db_value(self, value: str | None, expression: Any, connection: Any) -> Any:
        if value is None:
            return None
        try:
            return decoded(value)
        except ValueError:
            # Edited by hand. Whoever reads many rows must not fail for one; it is kept as it is.
            return EncodedJSON(value)

    def value_to_string(self, obj: models.Model) -> str:
        return json.dumps(self.value_from_object(obj))

    def to_python(self, value: Any) -> Any:
        return json.loads(value) if isinstance(value, EncodedJSON) else value


class ExactCharField(CharField[Set_contra, Get_co]):
    """Text compared exactly: "Key", "key" and "key " are three names on every database."""

    def get_internal_type(self) -> str:
        return "CharField"

    def db_type(self, connection: BaseDatabaseWrapper) -> str | None:
        base = super().db_type(connection)
        return f"{base} CHARACTER SET utf8mb4" if connection.vendor == "mysql" else base

    def db_parameters(self, connection: BaseDatabaseWrapper) -> dict[str, Any]:
        parameters = dict(super().db_parameters(connection))
        if connection.vendor == "mysql":
            # NO PAD: the plain utf8mb4_bin ignores trailing spaces when it compares.
            is_mariadb = getattr(connection, "mysql_is_mariadb", False)
            parameters["collation"] = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"
        return parameters


class NumberedIndex(models.Index):
    """An index over the rows that have a number within a key (``seq``).

    A partial index where the database has them; elsewhere it holds every row.
    """

    def create_sql(
        self,
        model: type[models.Model],
        schema_editor: BaseDatabaseSchemaEditor,
        using: str = "",
        **options: Any,
    ) -> Any:
        numbered = Q(seq__isnull=False)
        partial = schema_editor.connection.features.supports_partial_indexes
        plain = models.Index(
            fields=self.fields, name=self.name, condition=numbered if partial else None
        )
        return plain.create_sql(model, schema_editor, using, **options)


class StateIndex(models.Index):
    """An index over the rows of one state.

    A partial index where the database has them; elsewhere (MariaDB, MySQL) *state* stands in the
    columns, after those that are always compared for equality.
    """

    def __init__(self, *expressions: Any, state: str = "", **options: Any) -> None:
        self.state = state
        super().__init__(*expressions, **options)

    def deconstruct(self) -> Any:
        path, expressions, options = super().deconstruct()
        return path, expressions, {**options, "state": self.state}

    def create_sql(
        self,
        model: type[models.Model],
        schema_editor: BaseDatabaseSchemaEditor,
        using: str = "",
        **options: Any,
    ) -> Any:
        features = schema_editor.connection.features
        if features.supports_partial_indexes:
            plain = models.Index(fields=self.fields, name=self.name, condition=Q(state=self.state))
        else:
            plain = models.Index(fields=["state", *self.fields], name=self.name)
        return plain.create_sql(model, schema_editor, using, **options)
