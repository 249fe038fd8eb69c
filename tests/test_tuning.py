"""What a worker's process sets for the whole of it, and puts back."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Iterator

import pytest

from django_workqueue import logs
from django_workqueue.compat import SIGNALS_LOGGER
from django_workqueue.tuning import COLLECTED_OBJECTS, SWITCH_SECONDS, tuned


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*thresholds)


def in_force() -> tuple[float, int, int]:
    return sys.getswitchinterval(), gc.get_threshold()[0], logging.getLogger(SIGNALS_LOGGER).level


def test_what_was_set_before_is_back_afterwards() -> None:
    former = in_force()
    with tuned():
        interval, objects, _ = in_force()
        assert interval == pytest.approx(SWITCH_SECONDS)
        assert objects == COLLECTED_OBJECTS
    assert in_force() == pytest.approx(former)


@pytest.mark.parametrize(("interval", "objects"), [(0.0005, 0), (0.0001, 10 * COLLECTED_OBJECTS)])
def test_what_a_project_has_set_further_stays(interval: float, objects: int) -> None:
    sys.setswitchinterval(interval)
    gc.set_threshold(objects)
    former = in_force()
    with tuned():
        assert in_force()[:2] == pytest.approx(former[:2], rel=0.1)


def test_a_level_that_the_project_sets_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "is_heard", lambda *args: False)
    logger = logging.getLogger(SIGNALS_LOGGER)
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    with tuned():
        assert logger.level == logging.INFO + 1
        logger.setLevel(logging.DEBUG)
    assert logger.level == logging.DEBUG
    logger.setLevel(logging.NOTSET)
