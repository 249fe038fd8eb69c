"""Faults of the database, put around a store's calls; each counts how often it bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from django.db import OperationalError

from django_workqueue.store import BaseStore


def too_large(store: BaseStore) -> OperationalError:
    """Return the error with which the server of *store* refuses a statement for its size."""
    code = max(store.too_large_codes, key=str)
    told = OperationalError("larger than the server takes")
    told.__cause__ = cause = Exception(code)
    cause.sqlstate = code  # type: ignore[attr-defined]  # as psycopg's errors have it
    return told


class Fault:
    """Raises *error* at the first *times* calls of *method*, before it is done or after.

    After: the call was committed, and its answer lost. *when* looks at the call's arguments.
    """

    def __init__(
        self,
        method: str,
        error: Exception,
        *,
        times: int = 1,
        after: bool = False,
        when: Callable[..., bool] = lambda *args, **kwargs: True,
    ) -> None:
        self.method = method
        self.error = error
        self.left = times
        self.after = after
        self.when = when
        self.bitten = 0

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def faulty(*args: Any, **kwargs: Any) -> Any:
            bites = self.left > 0 and self.when(*args, **kwargs)
            if not bites:
                return call(*args, **kwargs)
            self.left -= 1
            if self.after:
                call(*args, **kwargs)
            self.bitten += 1
            raise self.error

        return faulty


class _FaultyStore:
    def __init__(self, store: BaseStore, faults: tuple[Fault, ...]) -> None:
        self._store = store
        self._faults = {fault.method: fault for fault in faults}

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        return self._faults[name].around(value) if name in self._faults else value


def with_faults(store: BaseStore, *faults: Fault) -> BaseStore:
    """Return *store* with *faults* around its calls."""
    return cast("BaseStore", _FaultyStore(store, faults))
