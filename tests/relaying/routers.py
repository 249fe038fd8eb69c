"""Where the data is, and where the queue, in tests of two databases."""

from __future__ import annotations

from typing import Any


class DataInOther:
    """A project's own rows are in "other", and the queue in "default"."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "default" if model._meta.app_label == "workqueue" else "other"

    db_for_write = db_for_read
