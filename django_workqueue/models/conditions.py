"""Conditions that a database keeps of each row it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.models.expressions import RawSQL

if TYPE_CHECKING:
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor


class ShortCheck(models.CheckConstraint):  # noqa: PLW1641  # nor has its base a hash
    """A condition, and the shortest way to say it to PostgreSQL.

    That server reads the tree of a condition anew for each statement, and by its length: as Django
    writes them, those of a live job took a tenth of an enqueue.
    """

    def __init__(self, *, postgresql: str, **given: Any) -> None:
        super().__init__(**given)
        self.postgresql = postgresql

    def __eq__(self, other: object) -> Any:
        if not isinstance(other, ShortCheck):
            return False
        return self.postgresql == other.postgresql and super().__eq__(other)

    def deconstruct(self) -> Any:
        path, args, given = super().deconstruct()
        return path, args, {**given, "postgresql": self.postgresql}

    def create_sql(
        self, model: type[models.Model] | None, schema_editor: BaseDatabaseSchemaEditor | None
    ) -> Any:
        assert schema_editor is not None
        return self._plain(schema_editor).create_sql(model, schema_editor)

    def constraint_sql(
        self, model: type[models.Model] | None, schema_editor: BaseDatabaseSchemaEditor | None
    ) -> Any:
        assert schema_editor is not None
        return self._plain(schema_editor).constraint_sql(model, schema_editor)

    def _plain(self, schema_editor: BaseDatabaseSchemaEditor) -> models.CheckConstraint:
        condition: Any = self.condition
        if schema_editor.connection.vendor == "postgresql":
            condition = RawSQL(self.postgresql, [], models.BooleanField())  # noqa: S611  # our own
        return models.CheckConstraint(name=self.name, condition=condition)
