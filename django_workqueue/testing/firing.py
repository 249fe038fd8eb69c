"""Fire the schedules that are due, in the test's thread."""

from __future__ import annotations

from .. import conf, scheduler
from ..store import get_store
from ..transactions import refuse_open


def fire_schedules() -> dict[str, int]:
    """Write what is declared, fire what is due, and return how many jobs each schedule made.

    As ``runscheduler --once``, but in the test's transaction; ``run_jobs`` runs the jobs. A
    schedule that is new is planned from now: call it once, and move the clock. Raises
    AssertionError for a schedule that cannot be fired.
    """
    store = get_store()
    refuse_open(store.alias, "fire_schedules()", "each schedule has a transaction of its own")
    report = scheduler.once(store, conf.current())
    if report.failed:
        raise AssertionError(
            f"Every schedule must fire, and {', '.join(report.failed)} did not: its row's error, "
            "and the log, say why. Correct it."
        )
    return {name: len(fired.jobs) for name, fired in report.fired}
