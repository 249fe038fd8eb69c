"""Work in several threads, each with a connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from django.db import connections

T = TypeVar("T")

PATIENCE_SECONDS = 20
"""How long a thread is waited for: a bound on failure, never on success."""


def in_thread(work: Callable[[], T]) -> Callable[[], T]:
    """Start *work*; return a function that waits for it and returns, or raises, its outcome."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again where the outcome is asked for
            errors.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def outcome() -> T:
        thread.join(PATIENCE_SECONDS)
        if errors:
            raise errors[0]
        assert results, "the thread must end in time"
        return results[0]

    return outcome


def together(count: int, work: Callable[[], T]) -> list[T]:
    """Run *work* in *count* threads that begin at once; return what each returned."""
    barrier = threading.Barrier(count)

    def begin() -> T:
        barrier.wait(PATIENCE_SECONDS)
        return work()

    outcomes = [in_thread(begin) for _ in range(count)]
    return [outcome() for outcome in outcomes]
