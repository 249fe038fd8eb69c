"""Run what is due, in the test's thread: the worker's own claim, execution and settle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from .. import conf, registry
from ..announcing import tell_finished
from ..claimer import Claimer
from ..compat import TaskResult, TaskResultStatus
from ..demand import Room
from ..exceptions import Retry
from ..executor import execute
from ..flight import ENDS
from ..job import Job, Outcome, Verb
from ..results import task_error
from ..settler import Settled, settle
from ..states import DJANGO_STATUS, Lane
from ..store import BaseStore, get_store
from ..transactions import refuse_open
from .inside import committing, contained

WORKER_ID: Final = "a-test"
LEASE_SECONDS: Final = 3_600.0
"""Nothing extends it, and a test that is debugged takes its time."""


@dataclass(slots=True)
class Ran:
    """A job that a test ran: where it is now, and what went wrong in its words and traceback."""

    job: Job
    place: str = ""
    errors: list[BaseException] = field(default_factory=list)

    def raise_error(self) -> None:
        """Raise what the task raised; not a Retry that it asked for and gets."""
        outcome = self.job.outcome
        if not self.errors or outcome is None:
            return
        error, claim = self.errors[-1], self.job.claim
        if isinstance(error, Retry) and outcome.verb is Verb.RETRY:
            return
        what = claim.task or claim.queue_name
        error.add_note(f"Raised by attempt {claim.attempt} of {what}, which is {self.place} now.")
        raise error


def run_jobs(
    *, queues: Sequence[str] | None = None, max_jobs: int = 1_000, raise_errors: bool = True
) -> list[TaskResult[..., Any]]:
    """Run the jobs that are due, in this thread, until none is; return their results in order.

    Each is claimed, run and settled as by a worker, but in the test's transaction. *queues*: only
    these, in order of preference. An error of a task is raised once its job is settled, and what
    else is due stays so; with *raise_errors* False it is only in the result. Raises
    AssertionError where more than *max_jobs* are run: one that enqueues itself, say.
    """
    store, settings = get_store(), conf.current()
    refuse_open(store.alias, "run_jobs()", "what a task commits would depend on the caller")
    registry.discover()
    claimer = Claimer(store, WORKER_ID, None if queues is None else tuple(queues), LEASE_SECONDS)
    results: list[TaskResult[..., Any]] = []
    while (job := _next(store, claimer)) is not None:
        if len(results) >= max_jobs:
            store.release(job.claim)
            raise too_many("run_jobs()", f"max_jobs={max_jobs}", job.claim.task)
        ran = run(store, job, partial(execute, job, settings))
        if job.result is not None:
            results.append(_told(job.result, ran))
        if raise_errors:
            ran.raise_error()
    return results


def run(store: BaseStore, job: Job, execution: Callable[[], Outcome]) -> Ran:
    """Run a claimed job in the test's transactions, settle it, and tell of its end."""
    ran = Ran(job)
    job.on_error = ran.errors.append
    with committing():
        job.finish(contained(execution, atomic=job.claim.atomic, errors=ran.errors))

    def answered(settled: Settled) -> None:
        ran.place = settled.place

    with committing():
        settle(store, [job], answered)
        if ran.place in ENDS and job.claim.lane == Lane.TASK:
            tell_finished([job])
    return ran


def too_many(call: str, limit: str, what: str) -> AssertionError:
    """Return the error of a call that would go on and on."""
    return AssertionError(
        f"{call} must come to its end within {limit}, and more is due, the next of {what}. "
        "Let what publishes or enqueues itself end or be due later, or raise the limit."
    )


def _next(store: BaseStore, claimer: Claimer) -> Job | None:
    taken: list[Job] = []
    claimer.claim(Room(threads=1, coroutines=1, total=1), taken.extend)
    return taken[0] if taken else None


def _told(result: TaskResult[..., Any], ran: Ran) -> TaskResult[..., Any]:
    """Return the result as a look at the row would give it."""
    outcome = ran.job.outcome
    if ran.place not in ENDS:
        object.__setattr__(result, "status", TaskResultStatus[DJANGO_STATUS[ran.place]])
        if outcome is not None and outcome.error is not None:
            result.errors.append(task_error(outcome.error.as_json()))
    return result
