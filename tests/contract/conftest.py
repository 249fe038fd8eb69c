"""A store whose every call is followed by a look at the invariants."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_workqueue.store import BaseStore, get_store
from tests import sound


@pytest.fixture
def store(db: None) -> Iterator[BaseStore]:
    """The store of the database that the settings name; I1, I2 and I4 are asserted after calls."""
    sound.forget()
    yield sound.watched(get_store())
    sound.assert_all_sound()
