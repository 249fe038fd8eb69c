"""G7: a success is never recorded as a failure, whatever the database does to the settle."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection

from django_workqueue.models import DeadJob, LiveJob, Result
from tests import driver_faults
from tests.driver_faults import Moment, Step
from tests.promises.work import drain, enqueue

pytestmark = pytest.mark.django_db(transaction=True)


def read_only(db: Any) -> Exception:
    """Return what a server says that may not be written to; the connection stays open."""
    error: Exception
    if db.vendor == "postgresql":
        from psycopg.errors import ReadOnlySqlTransaction

        error = ReadOnlySqlTransaction("cannot execute DELETE in a read-only transaction")
    elif db.vendor == "mysql":
        text = "The MariaDB server is running with the --read-only option"
        error = db.Database.OperationalError(1290, text)
    else:
        error = db.Database.OperationalError("attempt to write a readonly database")
    return error


@pytest.mark.parametrize("moment", list(Moment))
@pytest.mark.parametrize("raises", [driver_faults.cut, read_only])
def test_g7_a_settle_that_fails_is_repeated_and_the_task_is_not(
    raises: Any, moment: Moment
) -> None:
    """Cases A 34 and E 113."""
    if raises is read_only and moment is Moment.AFTER:
        pytest.skip("what may not be written is refused before it is done")
    runs: list[int] = []
    job_id = enqueue(lambda context: runs.append(context.charged_attempt))
    faults_left = [1, 2, 3, 4]
    connections: set[int] = set()

    def at_the_ack(step: Step) -> Moment | None:
        ack = step.text.startswith(("DELETE", "INSERT", "WITH held")) or (
            step.text == "COMMIT" and runs
        )
        if not ack or not runs or not faults_left:
            return None
        connections.add(id(connection.connection))
        faults_left.pop()
        return moment

    with driver_faults.driver(
        at_the_ack, counts=lambda thread: thread != "workqueue-helper", raises=raises
    ) as driver:
        drain(lease_seconds=1.0)
    assert len(driver.hit) == 4 or moment is Moment.AFTER
    assert driver.hit, "no fault hit a settle: nothing was tested"
    assert runs == [1]
    result: Any = Result.objects.get(pk=job_id)
    assert (result.outcome, result.attempts, result.errors) == ("succeeded", 1, [])
    assert not DeadJob.objects.exists()
    assert not LiveJob.objects.exists()
