"""Indexes without entries for rows that lack the value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.models import Q

if TYPE_CHECKING:
    from django.db.backends.base.schema import BaseDatabaseSchemaEditor


class SetIndex(models.Index):
    """An index over the rows in which its one field is set.

    Where the database has partial indexes, a row that lacks the value costs nothing. Elsewhere
    (MariaDB, MySQL) an ordinary index.
    """

    def create_sql(
        self,
        model: type[models.Model],
        schema_editor: BaseDatabaseSchemaEditor,
        using: str = "",
        **options: Any,
    ) -> Any:
        condition = set_condition(self.fields, schema_editor)
        plain = models.Index(fields=self.fields, name=self.name, condition=condition)
        return plain.create_sql(model, schema_editor, using, **options)


class SetUniqueConstraint(models.UniqueConstraint):
    """One field that is unique where it is set, without an entry for the rows that lack it."""

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

    def remove_sql(
        self, model: type[models.Model] | None, schema_editor: BaseDatabaseSchemaEditor | None
    ) -> Any:
        assert schema_editor is not None
        return self._plain(schema_editor).remove_sql(model, schema_editor)

    def _plain(self, schema_editor: BaseDatabaseSchemaEditor) -> models.UniqueConstraint:
        condition = set_condition(self.fields, schema_editor)
        return models.UniqueConstraint(fields=self.fields, name=self.name, condition=condition)


def set_condition(fields: Sequence[str], schema_editor: BaseDatabaseSchemaEditor) -> Q | None:
    """Return the condition that the field is set; None where no index can have one."""
    (name,) = fields
    partial = schema_editor.connection.features.supports_partial_indexes
    return Q(**{f"{name}__isnull": False}) if partial else None
