"""What the machine of the life cycle may do next, and with what: turns, weights, arguments.

Several holders speak up with claims that are current or stale; the clock stands still, or moves on
to a boundary, or to one microsecond beside it. Jobs and claims are named by their numbers, in the
order of their making.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from django_workqueue.models import DeadJob, LiveJob, Queue, Result
from django_workqueue.states import Lane
from django_workqueue.store import BaseStore, Claim, get_store
from tests import sound
from tests.factories import T0
from tests.lifecycle_model import Model
from tests.lifecycle_rows import FOREVER

T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., None])

QUEUES: Final = ("mail", "Mail")
TASKS: Final = ("shop.tasks.send", "shop.tasks.pack")
WORKERS: Final = ("w1", "w2", "w3")
DEAD_TTL: Final = 20.0
UNKNOWN_GRACE: Final = 12.0
DEFAULTS: Final[dict[str, Any]] = {
    "lane": Lane.TASK,
    "queue_name": "mail",
    "task": "shop.tasks.send",
    "kind": "",
    "payload": "null",
    "priority": 0,
    "max_attempts": 3,
    "delay_seconds": 0.0,
    "due_in": None,
    "expires_seconds": None,
    "unique_key": None,
    "unique_while": "live",
    "result_ttl": None,
    "dead_letter": True,
}
"""Of a job whose turn names only what it has otherwise."""
EVERYTHING: Final = 500
INSTANT: Final = timedelta(microseconds=1)
EXACTLY: Final = timedelta(0)

# What is named more than once is drawn more often.
queues = st.sampled_from([*QUEUES[:1] * 3, *QUEUES])
lanes = st.sampled_from([*[Lane.TASK] * 4, Lane.PAYLOAD])
delays = st.sampled_from([0.0, 0.000_001, 1.0, 2.5, 10.0])
leases = st.sampled_from([0.000_001, 2.5, 10.0, 0.000_001, 10.0])
limits = st.sampled_from([EVERYTHING, 1, 2])
dry_runs = st.sampled_from([False, False, False, True])


def machine_choice(
    choose: Callable[[Choices], st.SearchStrategy[T]],
) -> st.SearchStrategy[T]:
    """Return a strategy that depends on how far the machine has come."""
    return st.runner().flatmap(choose)


running_jobs = machine_choice(
    lambda machine: machine.choose_job(machine.claims[number].id for number in machine.current())
)
dead_jobs = machine_choice(lambda machine: machine.choose_job(machine.model.dead))
ready_jobs = machine_choice(
    lambda machine: machine.choose_job(row["id"] for row in machine.model.where(state="ready"))
)
stale_claims = machine_choice(lambda machine: machine.choose_stale())
claims = machine_choice(lambda machine: machine.choose_claim())
claim_groups = machine_choice(
    lambda machine: st.lists(machine.choose_claim(), min_size=1, max_size=4, unique=True)
)
moments = machine_choice(lambda machine: st.sampled_from(machine.boundaries()))


def turn(
    weight: int = 1,
    when: Callable[[Any], object] = lambda self: True,
    **arguments: st.SearchStrategy[Any],
) -> Callable[[Method], Method]:
    """Declare one of the machine's turns: as hypothesis's rule, with a weight.

    Hypothesis leaves out many rules of a machine in each of its examples, which here would be lives
    without a claim, or without time. Every turn may come in every example.
    """

    def declare(method: Method) -> Method:
        TURNS[method.__name__] = weight, when, st.fixed_dictionaries(arguments)
        return method

    return declare


TURNS: Final[dict[str, tuple[int, Callable[[Any], object], st.SearchStrategy[dict[str, Any]]]]] = {}


@st.composite
def new_jobs(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the options of a job; *due_in*: the seconds to its run_after, where it has one."""
    lane = draw(lanes)
    key = draw(st.sampled_from([None, None, "k", "K"]))
    drawn = {
        "lane": lane,
        "queue_name": draw(queues),
        "task": draw(st.sampled_from(TASKS)) if lane == Lane.TASK else "",
        "kind": draw(st.sampled_from(["", "big"])),
        "payload": draw(st.sampled_from(["null", '{"args":[7],"kwargs":{}}'])),
        "priority": draw(st.sampled_from([0, 0, 100, -100])),
        "max_attempts": draw(st.sampled_from([3, 2, 1])),
        "delay_seconds": draw(st.sampled_from([0.0, 0.0, 0.0, 2.5, 0.000_001])),
        "due_in": draw(st.sampled_from([*[None] * 6, 2.5, 0.0, -5.0])),
        "expires_seconds": draw(st.sampled_from([None, None, 10.0, 2.5, 2.5, 0.000_001])),
        "unique_key": key,
        "unique_while": draw(st.sampled_from(["live", "queued"])),
        "result_ttl": draw(st.sampled_from([None, 0.0, 5.0])),
        "dead_letter": draw(st.sampled_from([True, True, False])),
    }
    return {name: value for name, value in drawn.items() if value != DEFAULTS[name]}


class Choices(RuleBasedStateMachine):
    """A machine that draws its turns by weight from what is possible now."""

    def __init__(self, open_store: Callable[[], BaseStore] = get_store) -> None:
        super().__init__()
        for model in (LiveJob, DeadJob, Result, Queue):
            model._base_manager.all().delete()
        sound.forget()
        self.store = open_store()
        self.model: Model = Model()
        self.now = T0
        self.ids: list[uuid.UUID] = []
        self.claims: list[Claim] = []
        self.stored = sound.rows()

    # What there is to choose from

    def current(self) -> list[int]:
        return [n for n, each in enumerate(self.claims) if self.model.held(each.hold)]

    def stale(self) -> list[int]:
        return [n for n, each in enumerate(self.claims) if not self.model.held(each.hold)]

    def choose_claim(self) -> st.SearchStrategy[int]:
        """Choose among those that hold their jobs, or among all that ever did."""
        current = self.current()
        return st.sampled_from([*current * 4, *range(len(self.claims))])

    def choose_stale(self) -> st.SearchStrategy[int]:
        """Choose among those whose jobs run under another token, or among all that lost theirs."""
        taken = {self.claims[number].id for number in self.current()}
        superseded = [number for number in self.stale() if self.claims[number].id in taken]
        return st.sampled_from([*superseded * 6, *self.stale()])

    def choose_job(self, likely: Iterable[uuid.UUID]) -> st.SearchStrategy[int]:
        """Choose among those for which the rule is made, or among all there ever were."""
        numbers = [self.ids.index(job_id) for job_id in likely]
        return st.sampled_from([*numbers * 4, *range(len(self.ids))])

    def boundaries(self) -> list[datetime]:
        """Return the next moment of each kind at which something ends, and its neighbours."""
        live, finished = self.model.live.values(), self.model.finished.values()
        grace, ttl = timedelta(seconds=UNKNOWN_GRACE), timedelta(seconds=DEAD_TTL)
        kinds = [
            [row["lease_expires_at"] for row in live],
            [row["run_after"] for row in live if row["state"] != "running"],
            [row["expires_at"] for row in live],
            [row["unknown_since"] + grace for row in live if row["unknown_since"]],
            [row["died_at"] + ttl for row in self.model.dead.values()],
            [*(row["expires_at"] for row in finished), *self.model.paused_until.values()],
        ]
        moments = [self.now + INSTANT]
        for kind in kinds:
            ahead = [each for each in kind if each is not None and self.now < each < FOREVER]
            moments += [
                min(ahead) + step for step in (EXACTLY, EXACTLY, -INSTANT, INSTANT) if ahead
            ]
        return [each for each in moments if each > self.now]

    def turns(self) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
        """Choose among the turns that can do something now, with their arguments."""
        names = [
            name for name, (weight, when, _) in TURNS.items() if when(self) for _ in range(weight)
        ]
        return st.sampled_from(names).flatmap(lambda name: st.tuples(st.just(name), TURNS[name][2]))

    @rule(turn=machine_choice(lambda machine: machine.turns()))
    def act(self, turn: tuple[str, dict[str, Any]]) -> None:
        name, arguments = turn
        getattr(self, name)(**arguments)
