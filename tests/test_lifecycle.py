"""The life cycle as a property: no interleaving of transitions leaves what the model says.

The controls break the store on purpose, one rule each: the machine must find every fault.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import pytest
from django.db.models import Q
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from django_workqueue.models import DeadJob, LiveJob
from django_workqueue.states import State
from django_workqueue.store import Ack, BaseStore, Claim, ErrorRecord, Hold, get_store
from tests.lifecycle_machine import LifecycleMachine

pytestmark = [
    pytest.mark.django_db(transaction=True),
    # Hypothesis may take five minutes to make a failing example small; a passing one takes none.
    pytest.mark.timeout(600),
]

# No deadline: a step waits for a database. Reproducible: the same examples in every run.
BOUNDED: Final = settings(
    max_examples=30,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)
CONTROL: Final = settings(BOUNDED, max_examples=200, phases=[Phase.generate])
SOAK: Final = settings(
    BOUNDED, max_examples=2000, stateful_step_count=100, derandomize=False, print_blob=True
)


def test_every_interleaving_of_transitions_does_what_the_model_says() -> None:
    run_state_machine_as_test(LifecycleMachine, settings=BOUNDED)


@pytest.mark.soak
def test_many_long_interleavings_do_what_the_model_says() -> None:
    # Other examples in each run; a failure prints the decorator that brings its example back.
    run_state_machine_as_test(LifecycleMachine, settings=SOAK)


class Faults:
    """Stores with one rule taken out; each docstring says which."""

    class SettlesWithoutToken(BaseStore):
        """retry, bury, release and hold match the id alone (I3)."""

        def _held_row(self, claim: Claim) -> Any:
            return self.live().filter(pk=claim.id, state=State.RUNNING)

    class AcksWithoutToken(BaseStore):
        """ack matches the id alone (I3)."""

        def ack(self, acks: Sequence[Ack], **options: Any) -> set[Hold]:
            rows = self.live().filter(state=State.RUNNING)
            tokens = dict(rows.values_list("pk", "token"))
            asked = {ack.claim.id: ack.claim.hold for ack in acks}
            taken = [
                ack._replace(claim=ack.claim._replace(token=token))
                for ack in acks
                if (token := tokens.get(ack.claim.id)) is not None
            ]
            return {asked[job_id] for job_id, _ in super().ack(taken, **options)}

    class ReclaimsLivingLeases(BaseStore):
        """reclaim takes every running job."""

        def lapsed(self, *, now: datetime | None = None) -> Q:
            return Q(state=State.RUNNING)

    class LapsesAnInstantLate(BaseStore):
        """A lease that ends exactly now is still living."""

        def lapsed(self, *, now: datetime | None = None) -> Q:
            return Q(state=State.RUNNING, lease_expires_at__lt=self.moment(now))

    class PromotesAnInstantEarly(BaseStore):
        """promote is a microsecond ahead."""

        def promote(self, *, limit: int = 500, now: datetime | None = None) -> int:
            assert now is not None
            return super().promote(limit=limit, now=now + timedelta(microseconds=1))

    class ExpiresUnderALivingLease(BaseStore):
        """expire looks at no lease."""

        def expired(self, *, now: datetime | None = None) -> Q:
            return Q(expires_at__lte=self.moment(now))

    class ClaimsInAnyOrder(BaseStore):
        """claim returns its jobs by id."""

        def claim(self, *args: Any, **kwargs: Any) -> list[Claim]:
            return sorted(super().claim(*args, **kwargs), key=lambda claim: claim.id)

    class ChargesNoClaim(BaseStore):
        """claim leaves the attempt as it is (I4)."""

        def _taken(self, *args: Any) -> tuple[str, list[Any]]:
            changes, params = super()._taken(*args)
            attempt = self.quote("attempt")
            return changes.replace(f"{attempt} = {attempt} + 1", f"{attempt} = {attempt}"), params

    class KeepsQueuedKeys(BaseStore):
        """A key of scope "queued" constrains after the first claim too."""

        def _taken(self, *args: Any) -> tuple[str, list[Any]]:
            changes, params = super()._taken(*args)
            return changes.replace("THEN NULL", f"THEN {self.quote('unique_hash')}"), params

    class ForgetsTheFence(BaseStore):
        """requeue begins the fence anew (I4)."""

        def _requeued(self, job: DeadJob, *args: Any) -> LiveJob:
            row = super()._requeued(job, *args)
            row.fence = 0
            return row

    class RetriesBeyondTheBudget(BaseStore):
        """retry does not look at the budget (G6)."""

        def retry(
            self, claim: Claim, delay_seconds: float, error: ErrorRecord, **options: Any
        ) -> str:
            return super().retry(claim._replace(max_attempts=99), delay_seconds, error, **options)

    class ForgetsCancels(BaseStore):
        """A cancel that was asked ends nothing but an ack."""

        def _cancel(self, job: LiveJob, now: datetime | None) -> Any:
            answer = super()._cancel(job, now)
            self.live().filter(pk=job.pk).update(cancel_asked_at=None)
            return answer

    class KeepsBothOfARequeue(BaseStore):
        """requeue leaves the dead row where it is (I1)."""

        def requeue(self, job_id: uuid.UUID, **options: Any) -> bool:
            row = self.dead().filter(pk=job_id).first()
            answer = super().requeue(job_id, **options)
            if row is not None:
                self.dead().bulk_create([row])
            return answer


FAULTS: Final = {name: fault for name, fault in vars(Faults).items() if isinstance(fault, type)}
RARE: Final = {
    "ExpiresUnderALivingLease",
    "ForgetsCancels",
    "KeepsBothOfARequeue",
    "RetriesBeyondTheBudget",
}
"""Found after some dozens of examples: with the long tests."""


def broken(fault: type[BaseStore]) -> Callable[[], BaseStore]:
    """Return what opens the store of the database with *fault* in it."""

    def open_store() -> BaseStore:
        store = get_store()
        kind: Any = type(fault.__name__, (fault, type(store)), {})
        return kind(store.alias)  # type: ignore[no-any-return]  # made here, of two stores

    return open_store


# They are about the machine: one database is enough, and they take long.
@pytest.mark.vendor("sqlite")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.soak] * (name in RARE)) for name in FAULTS]
)
def test_control_the_machine_finds_a_store_that(name: str) -> None:
    class Machine(LifecycleMachine):
        def __init__(self) -> None:
            super().__init__(broken(FAULTS[name]))

    with pytest.raises(AssertionError):
        run_state_machine_as_test(Machine, settings=CONTROL)
