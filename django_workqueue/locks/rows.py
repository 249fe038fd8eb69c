"""The statements of a lock: the same on every database, but for the microseconds of a moment.

A row is taken by an UPDATE of one that is expired or this owner's, or by the INSERT of one that is
not there; the row count says who got it, never an earlier read (I9). Writes come first, so that a
deferred transaction of SQLite never has to turn a read lock into a write one. All walk the primary
key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from django.db import IntegrityError
from django.db.models import BigIntegerField, F, Q, QuerySet
from django.db.models.expressions import RawSQL
from django.db.models.functions import Greatest

if TYPE_CHECKING:
    from ..models import Lock
    from ..store import BaseStore

ACQUIRE_ROUNDS: Final = 3

MICROSECONDS: Final[Mapping[str, str]] = {
    "postgresql": "(extract(epoch FROM {moment}) * 1000000)::bigint",
    "sqlite": (
        "(CAST(strftime('%%s', {moment}) AS INTEGER) * 1000000 "
        "+ CAST(substr({moment}, -6) AS INTEGER))"
    ),
    # Not UNIX_TIMESTAMP(), which takes a moment to be in the session's zone.
    "mysql": "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {moment})",
}
"""By the connection's vendor: SQL for the microseconds since 1970 of a moment of the store's."""


@dataclass(frozen=True, slots=True)
class LockRow:
    """Which row, for whom, for how many seconds."""

    name: str
    owner: str
    ttl: float


def acquire(store: BaseStore, row: LockRow) -> int | None:
    """Take the row, or make it; return its token. None: another has it."""
    from ..store.core import transition

    for _ in range(ACQUIRE_ROUNDS):
        token = transition(_take)(store, row)
        if token is not None or find(store, row.name).exists():
            return token
        # Nobody had it since the last sweep. Several may make it at once, and one of them does.
        token = transition(_make)(store, row)
        if token is not None:
            return token
    return None


def _take(store: BaseStore, row: LockRow) -> int | None:
    free = Q(owner=row.owner) | Q(expires_at__lte=store.moment(None))
    count = (
        find(store, row.name)
        .filter(free)
        .update(
            owner=row.owner,
            token=Greatest(F("token") + 1, _microseconds(store)),
            expires_at=store.moment(None, row.ttl),
        )
    )
    return _token(store, row) if count else None


def _make(store: BaseStore, row: LockRow) -> int | None:
    from ..models import Lock

    lock = Lock(name=row.name, owner=row.owner)
    # Expressions of the database's own, which the fields' types do not know.
    for name, value in (
        ("token", _microseconds(store)),
        ("expires_at", store.moment(None, row.ttl)),
    ):
        setattr(lock, name, value)
    try:
        with store.own():
            find(store, row.name).bulk_create([lock])
    except IntegrityError:
        return None
    return _token(store, row)


def _token(store: BaseStore, row: LockRow) -> int:
    # Under the lock that this transaction's write took on the row.
    return find(store, row.name).values_list("token", flat=True).get()


def renew(store: BaseStore, row: LockRow, token: int) -> bool:
    """Move the end to a ttl from now; False: expired, or another's."""
    return bool(_held(store, row, token).update(expires_at=store.moment(None, row.ttl)))


def release(store: BaseStore, row: LockRow, token: int) -> bool:
    """Let the row be expired; False: it was, or it is another's.

    It is not deleted, or its token would be forgotten, and on a clock of milliseconds the next
    one could be the same. A sweep deletes it.
    """
    return bool(_held(store, row, token).update(expires_at=store.moment(None)))


def is_held(store: BaseStore, row: LockRow, token: int) -> bool:
    """Tell whether the row is this acquisition's: not another's, and not expired."""
    return _held(store, row, token).exists()


def find(store: BaseStore, name: str) -> QuerySet[Lock]:
    """Return the row of *name*, if there is one."""
    from ..models import Lock

    return Lock._base_manager.using(store.alias).filter(name=name)


def _held(store: BaseStore, row: LockRow, token: int) -> QuerySet[Lock]:
    rows = find(store, row.name).filter(owner=row.owner, token=token)
    return rows.filter(expires_at__gt=store.moment(None))


def _microseconds(store: BaseStore) -> RawSQL:
    sql, params = store.now_sql(None)
    template = MICROSECONDS[store.connection.vendor]
    params = params * template.count("{moment}")
    return RawSQL(template.format(moment=sql), params, BigIntegerField())  # noqa: S611  # our own SQL
