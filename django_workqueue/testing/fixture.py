"""What the pytest fixture ``workqueue`` is."""

from __future__ import annotations

from dataclasses import dataclass

from .asserting import assert_enqueued
from .delivering import deliver_outbox
from .firing import fire_schedules
from .moving_clock import MovedClock
from .running import run_jobs


@dataclass(frozen=True, slots=True)
class WorkQueue:
    """The functions of ``django_workqueue.testing``, and the test's clock."""

    clock: MovedClock

    run_jobs = staticmethod(run_jobs)
    deliver_outbox = staticmethod(deliver_outbox)
    fire_schedules = staticmethod(fire_schedules)
    assert_enqueued = staticmethod(assert_enqueued)
