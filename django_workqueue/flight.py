"""The jobs a worker has, from their claim to the answer of their settle."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable

from . import clock, notifying, registry
from .claimer import Claimer
from .demand import FIRST_GUESS_SECONDS, estimate
from .faults import DATABASE_FAULTS
from .job import Job, Outcome, Verb
from .settler import LOST, Settled, settle
from .states import Place, ResultOutcome
from .store import BaseStore, Hold
from .threads import Executors

logger = logging.getLogger("django_workqueue.worker")

ENDS = (ResultOutcome.SUCCEEDED, ResultOutcome.CANCELLED, Place.DEAD, "dropped")


class Flight:
    """Jobs in flight, and those of them whose outcome waits to be written.

    `all` and `holds` may be called from any thread, the rest from the worker's main thread.
    """

    def __init__(
        self,
        store: BaseStore,
        executors: Executors,
        claimer: Claimer,
        on_settled: Callable[[Settled], None],
    ) -> None:
        self._store = store
        self._executors = executors
        self._claimer = claimer
        self._on_settled = on_settled
        self._jobs: dict[Job, None] = {}
        self._jobs_lock = threading.Lock()
        self._unwritten: dict[Job, None] = {}
        # Of each kind (whether it is a coroutine), what a job takes, for what to claim next.
        self.job_seconds = {False: FIRST_GUESS_SECONDS, True: FIRST_GUESS_SECONDS}
        # And how large it is.
        self.job_bytes = 0.0

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def all(self) -> list[Job]:
        with self._jobs_lock:
            return list(self._jobs)

    def holds(self) -> set[Hold]:
        with self._jobs_lock:
            return {job.claim.hold for job in self._jobs}

    def add(self, jobs: Collection[Job]) -> None:
        self.job_bytes = estimate(self.job_bytes, [len(job.claim.payload) for job in jobs])
        with self._jobs_lock:
            self._jobs |= dict.fromkeys(jobs)

    def end(self, jobs: Iterable[Job]) -> None:
        """Let the next settle write the outcomes of *jobs*; without one they are given back."""
        for job in jobs:
            job.finish(None)
            self._unwritten[job] = None

    def cut(self, delay_seconds: float) -> None:
        """Let what still runs be given back with its attempt refunded.

        With a delay: a body can no longer be stopped but with the process, which ends at once.
        """
        now = clock.monotonic()
        for job in self.all():
            back = Outcome(
                verb=Verb.RELEASE,
                started=job.started or now,
                ended=now,
                delay_seconds=delay_seconds,
            )
            if job.finish(back):
                self._unwritten[job] = None

    def settle(self) -> bool:
        """Write the outcomes that have gathered; return whether there were any.

        A job is in flight until its settle was answered.
        """
        self._gather()
        for job in [job for job in self._unwritten if job.lease_lost.is_set()]:
            self._on_answer(Settled(job, LOST))
        if not self._unwritten:
            return False
        finished: list[Job] = []

        def answered(settled: Settled) -> None:
            self._on_answer(settled)
            outcome = settled.job.outcome
            if settled.place in ENDS and outcome is not None:
                finished.append(settled.job)

        gives_back = any(job.outcome is None for job in self._unwritten)
        try:
            settle(self._store, list(self._unwritten), answered)
        except DATABASE_FAULTS:
            for job in self._unwritten:
                job.settle_retried = True
            raise
        finally:
            if finished:
                self._executors.tell(finished)
        if gives_back:
            # Others may sleep until they are told of something to do.
            notifying.notify(self._store)
        return True

    def _gather(self) -> None:
        """Take over what the executors have done; not what was cut short, and ended after all."""
        done = self._executors.take_done()
        for kind in (False, True):
            seconds = [
                job.outcome.ended - job.outcome.started
                for job in done
                if job.is_async is kind and job.outcome is not None
            ]
            self.job_seconds[kind] = estimate(self.job_seconds[kind], seconds)
        for job in done:
            if job in self._jobs:
                self._unwritten[job] = None

    def _on_answer(self, settled: Settled) -> None:
        job = settled.job
        del self._unwritten[job]
        with self._jobs_lock:
            self._jobs.pop(job, None)
        self._executors.forget(job)
        held = job.outcome is not None and job.outcome.verb is Verb.HOLD
        if held and registry.get(job.claim.task) is None:
            self._claimer.note_unknown(job.claim.task)
        # The extender has warned of those whose lease it saw refused.
        if settled.place == LOST and not job.lease_lost.is_set():
            logger.warning("job lost to another claim", extra=job.claim.log_fields)
        if logger.isEnabledFor(logging.INFO):
            logger.info("job settled", extra=settled.log_fields)
        try:
            self._on_settled(settled)
        except Exception:
            # It only tells: a closed terminal, say, is no reason to stop working.
            logger.exception("outcome could not be told", extra=job.claim.log_fields)
