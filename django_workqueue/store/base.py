"""The store: every write to a job's row, one method a transition, in the order of a job's life."""

from __future__ import annotations

from .scheduling import Scheduling


class BaseStore(Scheduling):
    """The portable store. Databases override only the statements that must differ, and say why.

    Where a subclass leaves them alone: ``INSERT … ON CONFLICT``, ``UPDATE … RETURNING`` and
    ``DELETE … RETURNING`` in the dialect that PostgreSQL and SQLite share.
    """
