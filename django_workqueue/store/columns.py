"""Many rows as the parameters of one statement, whose text is the same for any number of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

from ..models.fields import to_database
from .core import StoreCore

T = TypeVar("T")

ROWS_PER_STATEMENT: Final = 2_000
"""About what a worker of short jobs has in flight at most: it settles them in one."""
BYTES_PER_STATEMENT: Final = 4_000_000
"""Of a statement's long texts: servers have a largest packet, 16 MB where it is small."""

KINDS: Final = {
    "id": "uuid",
    "token": "uuid",
    "rank": "whole",
    "max_attempts": "whole",
    "seq": "whole",
    "timeout": "number",
    "result_ttl": "number",
    "delay": "number",
    "expires": "number",
    "dead_letter": "flag",
    "atomic": "flag",
    "scheduled_for": "moment",
    "due": "moment",
    "started_at": "moment",
}
"""Of columns that are no texts."""


class Columns(StoreCore):
    """A table named ``given``, made of parameters."""

    def given_sql(self, names: Sequence[str]) -> str:
        """Return ``given`` with columns *names*, to stand behind FROM.

        Its parameters are those of `given_params`, by name.
        """
        raise NotImplementedError  # pragma: no cover

    def given_params(self, columns: Mapping[str, Sequence[Any]]) -> dict[str, str]:
        """Return the values of ``given``: one JSON text, an array for each row."""
        rows = list(zip(*columns.values(), strict=True))
        return {"given": json.dumps(rows, ensure_ascii=False, default=str)}

    def dump_moment(self, moment: datetime | None) -> Any:
        (dumped,) = self.dump_moments([moment])
        return dumped

    def dump_moments(self, moments: Iterable[datetime | None]) -> list[Any]:
        vendor = self.connection.vendor
        return [None if each is None else to_database(each, vendor) for each in moments]

    def named_now_sql(self, now: datetime | None) -> tuple[str, dict[str, Any]]:
        """Return the same as now_sql, for a statement whose parameters have names."""
        sql, params = self.now_sql(now)
        return sql.replace("%s", "%(now)s"), dict.fromkeys(["now"] * len(params), *params)


def most_bytes(*texts: str) -> int:
    """Return how many bytes *texts* have at most in UTF-8, without encoding them."""
    return sum(len(text) if text.isascii() else 4 * len(text) for text in texts)


def bounded(items: Sequence[T], lengths: Sequence[int]) -> Iterator[Sequence[T]]:
    """Yield *items* in parts that fit a statement; *lengths* says how many bytes each has."""
    start = total = 0
    for number, length in enumerate(lengths):
        total += length
        full = number - start == ROWS_PER_STATEMENT or total > BYTES_PER_STATEMENT
        if full and number > start:
            yield items[start:number]
            start, total = number, length
    if items:
        yield items[start:]
