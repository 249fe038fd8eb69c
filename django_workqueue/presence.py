"""Rows that show people which workers there are; never the source of a promise."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Final

from . import __version__
from .models import Worker
from .store import BaseStore

SILENT_SECONDS: Final = 3600.0
"""A row nobody kept current for so long is a worker that is gone."""


def show(
    store: BaseStore,
    workers: Mapping[str, tuple[int, int]],
    queues: Sequence[str] | None,
) -> None:
    """Keep the rows of *workers* current: id to process id and number of running tasks."""
    rows = Worker._base_manager.using(store.alias)
    for worker_id, (pid, running) in workers.items():
        # One statement, every few seconds: only this process writes the row.
        if rows.filter(pk=worker_id).update(last_seen_at=store.moment(None), running=running):
            continue
        rows.create(
            id=worker_id,
            host=socket.gethostname()[:255],
            pid=pid,
            queues=list(queues or ()),
            started_at=store.moment(None),
            last_seen_at=store.moment(None),
            running=running,
            version=__version__,
        )


def forget(store: BaseStore, worker_ids: Sequence[str]) -> None:
    """Delete the rows of workers that ended, and of those that are silent for an hour."""
    Worker._base_manager.using(store.alias).filter(pk__in=list(worker_ids)).delete()
    store.forget_workers(SILENT_SECONDS)
