"""Which databases have an outbox."""

from __future__ import annotations

from .. import arguments, conf


def database_of(using: str | None, call: str) -> str:
    """Return the alias that *call* means. Raises ValueError for one whose outbox nobody relays."""
    from ..store import outbox_aliases, queue_alias

    relayed = {queue_alias(), *outbox_aliases()}
    aliases = [alias for alias in conf.current().outbox_databases if alias in relayed]
    if using is None and aliases:
        return aliases[0]
    if using in aliases:
        return str(using)
    named = (
        f"one of {', '.join(aliases)}"
        if aliases
        else "a database with an outbox, and there is none"
    )
    hint = (
        f'Add the alias to {conf.NAME}["OUTBOX_DATABASES"], migrate it, and restart the workers: '
        "they relay the outboxes of those databases only."
    )
    raise arguments.refusal(f"using of {call}", named, using, hint)
