"""What the database itself refuses, whoever writes: a state that is none, half a holder (I2)."""

from __future__ import annotations

import uuid
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from django_workqueue.models import LiveJob
from django_workqueue.states import State
from django_workqueue.store import BaseStore
from tests.factories import T0, insert

HOLDER: dict[str, Any] = {
    "token": uuid.UUID(int=7),
    "worker_id": "w1",
    "lease_expires_at": T0 + timedelta(seconds=30),
}


def written(store: BaseStore, **values: Any) -> bool:
    """Tell whether the database takes *values* for a job's row."""
    rows = LiveJob.objects.filter(pk=insert(store))
    try:
        with transaction.atomic():
            return rows.update(**values) == 1
    except IntegrityError:
        return False


@pytest.mark.parametrize("state", [*(each.value for each in State if each != State.RUNNING)])
def test_a_job_that_does_not_run_has_no_holder(store: BaseStore, state: str) -> None:
    assert written(store, state=state)
    for name, value in HOLDER.items():
        assert not written(store, state=state, **{name: value})
    assert not written(store, state=state, **HOLDER)


def test_a_job_that_runs_has_all_of_its_holder(store: BaseStore) -> None:
    for given in product([True, False], repeat=len(HOLDER)):
        part = {name: HOLDER[name] for name, is_set in zip(HOLDER, given, strict=True) if is_set}
        assert written(store, state=State.RUNNING.value, **part) is all(given)


@pytest.mark.parametrize("state", ["", "done", "READY", "ready,", "{ready", "run", " held"])
def test_no_other_word_is_a_state(store: BaseStore, state: str) -> None:
    assert not written(store, state=state)
