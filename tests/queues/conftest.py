"""What the tests of `queues` share: each ends with a look at the invariants of every job."""

from collections.abc import Iterator

import pytest

from django_workqueue.queues import Queue
from tests import sound
from tests.database_clock import EPOCH, DatabaseClock


@pytest.fixture
def queue(db: None) -> Iterator[Queue]:
    sound.forget()
    yield Queue("agents")
    sound.assert_all_sound()


@pytest.fixture
def database_clock(monkeypatch: pytest.MonkeyPatch) -> DatabaseClock:
    return DatabaseClock(EPOCH).install(monkeypatch)
