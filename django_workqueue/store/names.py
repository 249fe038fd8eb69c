"""The different names in an indexed column, without reading its rows."""

from __future__ import annotations

from django.db import connections, models


def names_in(model: type[models.Model], column: str, *, alias: str, limit: int) -> list[str]:
    """Return up to *limit* different values of *column*, the first in its order.

    *column* must lead an index. One entry of it is read for each name, however many rows have
    that name: a DISTINCT would read them all.
    """
    connection = connections[alias]
    quote = connection.ops.quote_name
    table, name = quote(model._meta.db_table), quote(column)
    sql = (
        f"WITH RECURSIVE names (name) AS (SELECT MIN({name}) FROM {table} UNION ALL "
        f"SELECT (SELECT MIN({name}) FROM {table} WHERE {name} > names.name) "
        f"FROM names WHERE names.name IS NOT NULL) "
        f"SELECT names.name FROM names WHERE names.name IS NOT NULL LIMIT {limit:d}"
    )
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return [row[0] for row in cursor.fetchall()]
