"""The receiver's side: a message that comes twice is taken in once."""

from __future__ import annotations

import uuid

from django.db import IntegrityError, transaction

from .. import arguments, conf
from ..transactions import require_open


def seen(message_id: uuid.UUID | str, *, consumer: str, using: str | None = None) -> bool:
    """Note in the caller's transaction that *consumer* takes in a message; True if it did before.

    The note commits or rolls back with what the caller writes, so a message that comes twice is
    taken in once. A second caller waits for the first one's commit. *using* None: the queue's
    database. Raises NotInTransaction outside of ``atomic()``.
    """
    from ..models import Seen
    from ..store import get_store, queue_alias

    alias = _database(using, queue_alias())
    text = arguments.name("message_id", str(message_id))
    consumer = arguments.name("consumer", consumer)
    require_open(alias, "outbox.seen()")
    row = Seen(consumer=consumer, message_id=text, seen_at=get_store(alias).moment(None))
    try:
        with transaction.atomic(using=alias):
            Seen._base_manager.using(alias).bulk_create([row])
    except IntegrityError:
        return True
    return False


def _database(using: str | None, home: str) -> str:
    if using is None or using == home:
        return home
    aliases = conf.current().outbox_databases
    if using in aliases:
        return using
    hint = f'Only there are old notes swept. Add the alias to {conf.NAME}["OUTBOX_DATABASES"].'
    known = ", ".join(dict.fromkeys([home, *aliases]))
    raise arguments.refusal("using of outbox.seen()", f"one of {known}", using, hint)
