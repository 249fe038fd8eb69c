"""G13: data is never code. Only registered tasks are called, and no row makes a module import."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from django_workqueue.models import LiveJob
from django_workqueue.store import BaseStore
from tests import factories
from tests.promises.work import drain, enqueue

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("path", ["os.system", "evil_module.run", "tests.ledger.write", ""])
def test_g13_a_row_cannot_name_code(
    path: str, store: BaseStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case H 142."""
    proof = tmp_path / "it was run"
    (tmp_path / "evil_module.py").write_text(f"open({str(proof)!r}, 'w')\ndef run(text): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    payload = f'{{"args":["touch \'{proof}\'"],"kwargs":{{}}}}'
    job_id = factories.insert(store, now=None, task=path, payload=payload)
    drain()
    job: Any = LiveJob.objects.get(pk=job_id)
    assert (job.state, job.held_reason, job.attempt) == ("held", "unknown", 0)
    assert not proof.exists()
    assert "evil_module" not in sys.modules


def test_g13_control_a_declared_task_is_called() -> None:
    called: list[Any] = []
    enqueue(called.append)
    drain()
    assert len(called) == 1
