"""A clock of the database that stands still until a test moves it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Self

import pytest

from django_workqueue.store import get_store
from django_workqueue.store.core import StoreCore

EPOCH = datetime(2030, 1, 1, tzinfo=UTC)


class DatabaseClock:
    """Takes the place of the clock of the store's database, in this process."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def install(self, monkeypatch: pytest.MonkeyPatch) -> Self:
        def clock_sql(store: StoreCore, offset_seconds: float) -> tuple[str, list[Any]]:
            return store.now_sql(self.now, offset_seconds)

        monkeypatch.setattr(type(get_store()), "clock_sql", clock_sql)
        return self

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
