"""On SQLite with its default transactions, no call of the store fails because another wrote.

A deferred transaction that has read and then writes fails at once where another wrote in between,
and the busy timeout is not waited for (cases F 118 and 120).
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection, connections, transaction

from django_workqueue.models import LiveJob
from django_workqueue.store import BaseStore, get_store
from tests import factories
from tests.contract.test_conflicts import CALLS
from tests.sound import assert_all_sound, forget

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.vendor("sqlite")]


@pytest.fixture
def store() -> Iterator[BaseStore]:
    """A store on a connection with SQLite's own, deferred transactions."""
    forget()
    connection.ensure_connection()
    wrapper: Any = connections["default"]
    assert wrapper.transaction_mode == "IMMEDIATE"
    wrapper.transaction_mode = None
    yield get_store()
    assert_all_sound()
    wrapper.transaction_mode = "IMMEDIATE"


class Neighbour:
    """Writes to the same file before each statement of a block, wherever the lock is free."""

    def __init__(self) -> None:
        self.wrote = 0
        self._file = sqlite3.connect(
            connection.settings_dict["NAME"], timeout=0, isolation_level=None
        )

    def __call__(
        self, execute: Callable[..., Any], sql: str, params: Any, many: Any, context: Any
    ) -> Any:
        with contextlib.suppress(sqlite3.OperationalError):  # The call holds the lock.
            self._file.execute("UPDATE django_content_type SET model = model")
            self.wrote += 1
        return execute(sql, params, many, context)

    def close(self) -> None:
        self._file.close()


@pytest.fixture
def neighbour() -> Iterator[Neighbour]:
    made = Neighbour()
    yield made
    made.close()


@pytest.mark.parametrize("call", CALLS)
def test_a_call_of_the_store_outlives_a_neighbour_that_writes(
    store: BaseStore, neighbour: Neighbour, call: str
) -> None:
    act = CALLS[call](store)
    with connection.execute_wrapper(neighbour):
        assert act()
    assert neighbour.wrote


def test_the_control_a_transaction_that_reads_first_fails(
    store: BaseStore, neighbour: Neighbour
) -> None:
    job_id = factories.insert(store)
    with (
        pytest.raises(OperationalError, match="locked"),
        connection.execute_wrapper(neighbour),
        transaction.atomic(),
    ):
        assert LiveJob.objects.filter(pk=job_id).exists()
        LiveJob.objects.filter(pk=job_id).update(suspect=True)


@pytest.mark.parametrize("call", CALLS)
def test_a_transaction_of_the_application_stays_as_it_is_configured(
    store: BaseStore, call: str
) -> None:
    """Case F 120: what the store did before it on the connection changes nothing."""
    CALLS[call](store)()
    statements: list[str] = []
    driver: Any = connection.connection
    driver.set_trace_callback(statements.append)
    with transaction.atomic():
        LiveJob.objects.exists()
    driver.set_trace_callback(None)
    assert statements[0] == "BEGIN"
