"""Messages of one key leave the outbox in the order of their commits.

A publisher takes the key's next number from the key's row and holds that row's lock until it
commits, so that numbers follow commits. Number 1 is ready, every later one is inserted as held,
and `advance` lets it go once what was before it has left. When all have left, numbers begin anew:
that is how a publisher knows, from the one row it has locked, that nothing is before it. It reads
no other row, whose state an older snapshot would show it wrongly.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import Any, Final

from django.db import transaction
from django.db.models import OuterRef, Q, QuerySet, Subquery

from ..models import DeadJob, JobFacts, LiveJob, OutboxKey
from ..states import HeldReason, OutboxKind, State
from .core import StoreCore, delete_rows, transition

KEYS_PER_PASS: Final = 500


class Ordering(StoreCore):
    """The order within a key."""

    def next_seq(self, queue_name: str, key: str) -> int:
        """Take the next number of *key* and hold its row's lock until the caller's commit.

        1: every message before it has left, and it may go at once.
        """
        q = self.quote
        table = q(OutboxKey._meta.db_table)
        columns = ", ".join(map(q, ("destination", "key", "last_seq")))
        with self.connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO {table} ({columns}) VALUES (%s, %s, 1) "
                f"ON CONFLICT ({q('destination')}, {q('key')}) "
                f"DO UPDATE SET {q('last_seq')} = {table}.{q('last_seq')} + 1 "
                f"RETURNING {q('last_seq')}",
                [queue_name, key],
            )
            return int(cursor.fetchone()[0])

    def left(self, job: JobFacts) -> None:
        """Advance the key of a job that left, if it has one, once that is committed.

        Not before: a caller's transaction may see less than what is committed.
        """
        if job.seq is not None:
            call = functools.partial(self.advance, job.queue_name, job.order_key)
            transaction.on_commit(call, using=self.alias, robust=True)

    @transition
    def advance(self, queue_name: str, key: str) -> bool:
        """Make the first message of *key* ready if it is held; say whether that was decided.

        False: a publisher has the key's row locked, and its message, which is not visible yet,
        may be the next. Ask again once it committed; `tend_keys` asks for those that cannot.
        """
        rows = self.keys().filter(destination=queue_name, key=key)
        if not self.lock_key(rows):
            return not rows.exists()
        live, dead = self._heads(queue_name, key)
        if live is None and dead is None:
            rows.update(last_seq=0)
        elif live is not None and (dead is None or live < dead):
            self._unhold_first(queue_name, key, live)
        return True

    def tend_keys(self, *, limit: int = KEYS_PER_PASS) -> int:
        """Advance keys that nobody advanced, and forget idle ones; return how many were forgotten.

        The guarantee behind `advance`: whoever settled a message may have died before it asked, or
        found the key's row locked. Looks at *limit* keys, and where there are more at as many
        others, from a random one on.
        """
        found = self._keys_from(0, limit)
        if len(found) == limit:
            last = self.keys().order_by("-pk").values_list("pk", flat=True)[0]
            found += self._keys_from(random.randint(0, last), limit)
        for queue_name, key, last_seq, head in found:
            if last_seq and head in {None, State.HELD}:
                self.advance(queue_name, key)
        idle = [(queue_name, key) for queue_name, key, last_seq, _ in found if not last_seq]
        return sum(self._forget_key(*each) for each in idle)

    def lock_key(self, rows: QuerySet[OutboxKey]) -> bool:
        """Lock the key's row; False, without waiting, if another has it or there is none."""
        locked = rows.select_for_update(skip_locked=True).values_list("pk", flat=True)
        return bool(list(locked))

    def is_first(self, job: JobFacts) -> bool:
        """Tell whether nothing of the job's key is before it."""
        heads = self._heads(job.queue_name, job.order_key)
        return all(head is None or job.seq is None or head >= job.seq for head in heads)

    def keys(self) -> QuerySet[OutboxKey]:
        return OutboxKey._base_manager.using(self.alias)

    def _heads(self, queue_name: str, key: str) -> Sequence[int | None]:
        """Return the lowest numbers among the live and the dead; walks their numbered indexes.

        In one statement: between two, a message that moved would be missed. A skippable message
        that is dead has left.
        """
        q = self.quote
        own = f"{q('queue_name')} = %s AND {q('order_key')} = %s AND {q('seq')} IS NOT NULL"
        first = f"ORDER BY {q('seq')} LIMIT 1"
        live, dead = q(LiveJob._meta.db_table), q(DeadJob._meta.db_table)
        sql = (
            f"SELECT (SELECT {q('seq')} FROM {live} WHERE {own} {first}), "
            f"(SELECT {q('seq')} FROM {dead} WHERE {own} AND {q('kind')} <> %s {first})"
        )
        with self.connection.cursor() as cursor:
            cursor.execute(sql, [queue_name, key, queue_name, key, OutboxKind.SKIPPABLE.value])
            heads: Sequence[int | None] = cursor.fetchone()
        return heads

    def _unhold_first(self, queue_name: str, key: str, seq: int) -> None:
        held = Q(state=State.HELD, held_reason=HeldReason.KEY)
        rows = self.live().filter(held, queue_name=queue_name, order_key=key, seq=seq)
        ids = list(rows.values_list("pk", flat=True))
        if ids:
            self.lock(LiveJob, ids)
            self.live().filter(held, pk__in=ids).update(state=State.READY, held_reason="")

    def _keys_from(self, first: int, limit: int) -> list[tuple[str, str, int, str | None]]:
        head: Any = self.live().filter(
            queue_name=OuterRef("destination"), order_key=OuterRef("key"), seq__isnull=False
        )
        state = Subquery(head.order_by("seq").values("state")[:1])
        rows = self.keys().filter(pk__gte=first).order_by("pk").annotate(head=state)
        return list(rows.values_list("destination", "key", "last_seq", "head")[:limit])

    @transition
    def _forget_key(self, queue_name: str, key: str) -> bool:
        rows = self.keys().filter(destination=queue_name, key=key, last_seq=0)
        # A publisher that holds the lock takes number 1; whoever waits for it makes a new row.
        if not self.lock_key(rows):
            return False
        return bool(delete_rows(rows))
