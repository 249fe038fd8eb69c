"""purge: rows past their retention, deleted in bounded batches."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from django.db.models import Q, QuerySet

from ..models import Lock, Seen, Worker
from .burying import SWEEP_BATCH
from .core import StoreCore, delete_rows, statement

SEEN_MARGIN_SECONDS: Final = 7 * 86_400


class Purging(StoreCore):
    """The end of what is kept for a while."""

    def purge(
        self,
        dead_ttl_seconds: float | None,
        *,
        limit: int = SWEEP_BATCH,
        now: datetime | None = None,
        dry_run: bool = False,
    ) -> dict[str, int]:
        """Delete up to *limit* rows of each kind past their retention; return how many of each.

        Dead jobs older than *dead_ttl_seconds* (None: none), results, locks nobody renewed.
        """
        past = Q(expires_at__lte=self.moment(now))
        counts = {
            "results": self._purge(self.results(), past, limit, dry_run=dry_run),
            "locks": self._purge(self._rows(Lock), past, limit, dry_run=dry_run),
        }
        if dead_ttl_seconds is not None:
            old = Q(died_at__lte=self.moment(now, -dead_ttl_seconds))
            counts["dead"] = self._purge(self.dead(), old, limit, dry_run=dry_run)
        return counts

    def forget_workers(self, silent_seconds: float, *, now: datetime | None = None) -> int:
        """Delete the rows of workers not seen for *silent_seconds*; return how many."""
        silent = Q(last_seen_at__lte=self.moment(now, -silent_seconds))
        return self._purge(self._rows(Worker), silent, SWEEP_BATCH, dry_run=False)

    def forget_seen(
        self,
        dead_ttl_seconds: float | None,
        *,
        limit: int = SWEEP_BATCH,
        now: datetime | None = None,
        dry_run: bool = False,
    ) -> int:
        """Delete up to *limit* notes of messages that hardly come again; return how many.

        Older than *dead_ttl_seconds*, in which a dead message may be requeued, and a week more.
        """
        if dead_ttl_seconds is None:
            return 0
        old = Q(seen_at__lte=self.moment(now, -dead_ttl_seconds - SEEN_MARGIN_SECONDS))
        return self._purge(self._rows(Seen), old, limit, dry_run=dry_run)

    @statement
    def _purge(self, rows: QuerySet[Any], old: Q, limit: int, *, dry_run: bool) -> int:
        ids = list(rows.filter(old).values_list("pk", flat=True)[:limit])
        if dry_run or not ids:
            return len(ids)
        with self.together():
            self.lock(rows.model, ids)
            return delete_rows(rows.filter(old, pk__in=ids))

    def _rows(self, model: type[Any]) -> QuerySet[Any]:
        rows: QuerySet[Any] = model._base_manager.using(self.alias)
        return rows
