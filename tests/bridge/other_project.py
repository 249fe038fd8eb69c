"""A project of its own, without Django: a Celery worker that notes what it ran.

BRIDGE_BROKER   the broker's URL
BRIDGE_BACKEND  where it keeps results (default: nowhere)
BRIDGE_LEDGER   the file that gets a line for each run: the task's id and its arguments, as JSON
"""

import json
import os
from pathlib import Path
from typing import Any

from celery import Celery

app = Celery("other", broker=os.environ["BRIDGE_BROKER"], backend=os.environ.get("BRIDGE_BACKEND"))
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    task_acks_late=True,
    worker_enable_remote_control=False,
    # Or a worker ends, with the messages it has, when its result backend goes away.
    result_backend_always_retry=True,
    result_backend_transport_options={"retry_policy": {"timeout": 1.0}},
)
ledger = Path(os.environ["BRIDGE_LEDGER"])


@app.task(name="billing.tasks.book", bind=True)
def book(self: Any, number: int, text: str) -> None:
    """Note the run in one write."""
    line = json.dumps([self.request.id, number, text])
    with ledger.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
