"""G4: only the holder of the current claim settles or extends; a late call changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from unittest import mock

import pytest

from django_workqueue.exceptions import LeaseLost
from django_workqueue.states import DeathReason
from django_workqueue.store import Ack, BaseStore, Claim
from tests import factories, sound

pytestmark = pytest.mark.django_db

CALLS: Final[dict[str, Callable[[BaseStore, Claim], Any]]] = {
    "ack": lambda store, stale: store.ack([Ack(claim=stale, value="1")]),
    "extend": lambda store, stale: store.extend([stale], 60),
    "mark_started": lambda store, stale: store.mark_started([stale]),
    "note_progress": lambda store, stale: store.note_progress(stale, "{}"),
    "retry": lambda store, stale: store.retry(stale, 1, factories.error(stale)),
    "bury": lambda store, stale: store.bury(stale, DeathReason.TERMINAL, factories.error(stale)),
    "release": lambda store, stale: store.release(stale),
}
RAISES: Final = frozenset({"retry", "bury", "release"})


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("where", factories.NOT_HELD)
def test_g4_a_late_call_changes_nothing_and_says_so(
    name: str, where: str, store: BaseStore
) -> None:
    """Cases A 16 and L 6: the newer holder has the same worker's name."""
    stale = factories.NOT_HELD[where](store)
    before = sound.rows()
    if name in RAISES:
        with pytest.raises(LeaseLost):
            CALLS[name](store, stale)
    else:
        assert not CALLS[name](store, stale)
    assert sound.rows() == before


def test_g4_a_delayed_duplicate_of_a_release_leaves_the_later_holder_alone(
    store: BaseStore,
) -> None:
    """Case O4: the later claim has the same worker, the same job and the same attempt number."""
    first = factories.running(store)
    store.release(first, now=factories.T0)
    (later,) = factories.claim(store, worker_id=first.worker_id)
    assert (later.id, later.attempt) == (first.id, first.attempt)
    before = sound.rows()
    with pytest.raises(LeaseLost):
        store.release(first, now=factories.T0)
    assert sound.rows() == before


@pytest.mark.parametrize("name", sorted(RAISES))
def test_g4_control_without_the_token_a_late_call_takes_the_job_away(
    name: str, store: BaseStore
) -> None:
    stale = factories.retaken(store)

    def unfenced(self: BaseStore, claim: Claim) -> Any:
        return self.live().filter(pk=claim.id)

    before = sound.rows()
    with mock.patch.object(BaseStore, "_held_row", unfenced):
        CALLS[name](store, stale)
    assert sound.rows() != before
