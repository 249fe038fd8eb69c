"""A program: fire one tick after the other, killed with SIGKILL one step later each time.

Each is a process of its own, forked from this one, which has no thread and no connection open. For
each it prints a line of JSON: the step that it was killed at, and what the database has.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import timedelta
from typing import Any, Final

MOST_STEPS: Final = 60


def main() -> None:
    import django

    django.setup()
    for moment in ("before", "after"):
        for number in range(MOST_STEPS):
            if not kill_at(number, moment):
                break
        else:
            raise AssertionError("the tick never came to its end")


def kill_at(number: int, moment: str) -> bool:
    """Print what became of a tick killed at that step; return whether it came so far."""
    from django.db import connections

    name = f"{moment} {number}"
    add_schedule(name)
    connections.close_all()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        tick_and_die(name, number, moment, writer)
    os.close(writer)
    with os.fdopen(reader) as told:
        step = told.read()
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    left = state(name)
    fire(name)
    line = {"moment": moment, "step": step, "killed": killed, "left": left, "then": state(name)}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
    connections.close_all()
    return killed


def add_schedule(name: str) -> None:
    from django_workqueue.models import Schedule
    from django_workqueue.store import get_store

    store = get_store()
    now = store.now()
    schedule = Schedule(
        name=name,
        task="shop.tasks.report",
        expression="@every 1h",
        next_fire_at=now - timedelta(seconds=5),
        declared_at=now,
    )
    assert store.add_schedule(schedule)


def tick_and_die(name: str, number: int, moment: str, writer: int) -> None:
    from tests import driver_faults
    from tests.driver_faults import Moment

    def die(db: Any) -> Exception:
        os.write(writer, str(driver.hit[0]).encode())
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")

    with driver_faults.driver(driver_faults.at(number, Moment(moment)), raises=die) as driver:
        fire(name)
    os._exit(0)


def fire(name: str) -> None:
    from django_workqueue import conf, scheduler
    from django_workqueue.store import get_store

    scheduler.tick(get_store(), conf.current())


def state(name: str) -> list[int]:
    """Return how often the row says that it fired, and how many jobs there are."""
    from django_workqueue.store import get_store

    store = get_store()
    row = store.schedules().get(pk=name)
    return [row.fire_count, store.live().filter(schedule=name).count()]


if __name__ == "__main__":
    main()
    sys.exit(0)
