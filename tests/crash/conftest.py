"""Workers in processes of their own, and what they did."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from django_workqueue.store import BaseStore, get_store
from tests.crash.fleet import Fleet, fleet_of_a_test
from tests.ledger import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def fleet(transactional_db: None) -> Iterator[Fleet]:
    with fleet_of_a_test() as fleet:
        yield fleet


@pytest.fixture
def store() -> BaseStore:
    return get_store()
