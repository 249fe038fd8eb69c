"""The test's own transactions: what runs inside them behaves as if it committed by itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from django.db import DatabaseError, connections, transaction

from ..job import Outcome, Verb
from ..transactions import in_test

logger = logging.getLogger("django_workqueue.testing")


class _RolledBack(Exception):
    """Ends the savepoints of a run whose writes are gone in production too."""


def aliases_in_test() -> list[str]:
    """Return the aliases on which Django's TestCase has a transaction around the present test."""
    return [each.alias for each in connections.all(initialized_only=True) if in_test(each)]


def contained(run: Callable[[], Outcome], *, atomic: bool, errors: list[BaseException]) -> Outcome:
    """Run a body in a savepoint of each of the test's transactions; return its outcome.

    The savepoints go back where the body's writes would: with *atomic*, if it failed; else only
    after an error of the database, which would leave the test's transaction unusable.
    """
    aliases = aliases_in_test()
    outcome: Outcome | None = None
    try:
        with ExitStack() as stack:
            for alias in aliases:
                block: Any = transaction.atomic(using=alias)
                # No more of a transaction to the body than the test's own, unless it asked for one.
                block._from_testcase = not atomic  # noqa: SLF001  # what Django looks at
                stack.enter_context(block)
            outcome = run()
            broken = any(connections[alias].needs_rollback for alias in aliases)
            broken = broken or any(isinstance(each, DatabaseError) for each in errors)
            if broken or (atomic and outcome.verb is not Verb.ACK):
                raise _RolledBack
    except _RolledBack:
        pass
    assert outcome is not None
    return outcome


@contextmanager
def committing() -> Iterator[None]:
    """Run the ``on_commit`` hooks registered within the block at its end, and only those.

    Hooks from before are left to the test, whose ``captureOnCommitCallbacks`` looks at them.
    """
    counts = {alias: len(connections[alias].run_on_commit) for alias in aliases_in_test()}
    yield
    for alias, count in counts.items():
        hooks: list[Any] = connections[alias].run_on_commit
        while len(hooks) > count:
            _, hook, robust = hooks.pop(count)
            _call(hook, robust=robust)
            # A savepoint that went back inside the hook puts another list there.
            hooks = connections[alias].run_on_commit


def _call(hook: Callable[[], object], *, robust: bool) -> None:
    try:
        hook()
    except Exception:
        if not robust:
            raise
        logger.exception("robust hook failed, as it may")
