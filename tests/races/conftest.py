"""Stores in threads that begin together, each on a connection of its own, with real commits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import pytest
from django.db import connections

from django_workqueue.store import BaseStore, get_store
from tests import sound
from tests.timescale import PATIENCE_SECONDS


class Together(Protocol):
    # Each call may return something else, so what comes back is untyped.
    def __call__(self, calls: Sequence[Callable[..., Any]]) -> list[Any]: ...


@pytest.fixture
def store(transactional_db: None) -> Iterator[BaseStore]:
    sound.forget()
    yield get_store()
    sound.assert_all_sound()


@pytest.fixture
def together(transactional_db: None) -> Together:
    """Run calls at once, each in a thread with a store; return what they return, in order."""

    def run(calls: Sequence[Callable[..., Any]]) -> list[Any]:
        ready = threading.Barrier(len(calls), timeout=PATIENCE_SECONDS)

        def begin(call: Callable[..., Any]) -> Any:
            store = get_store()
            try:
                store.connection.ensure_connection()
                ready.wait()
                return call(store)
            finally:
                connections.close_all()

        with ThreadPoolExecutor(len(calls)) as threads:
            futures = [threads.submit(begin, call) for call in calls]
            return [each.result(timeout=2 * PATIENCE_SECONDS) for each in futures]

    return run
