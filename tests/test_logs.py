"""Log events as JSON: whole lines, the fields of each event, nothing of arguments or results."""

from __future__ import annotations

import functools
import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings
from django.utils.log import RequireDebugTrue

from django_workqueue.logs import (
    LINE_BYTES,
    JSONFormatter,
    TextFormatter,
    json_to,
    unheard_left_out,
)
from django_workqueue.models import DeadJob, Result
from tests.jobs import app
from tests.processes import ROOT, command, environment
from tests.timescale import PATIENCE_SECONDS

logger = logging.getLogger("django_workqueue.worker")
AS_JSON = ("--log-format", "json")
FIELDS = {"job_id", "task", "queue", "attempt", "worker_id"}


def told(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_object_with_its_text_its_fields_and_the_moment() -> None:
    stream = io.StringIO()
    with json_to(stream, logging.INFO):
        logger.info("job settled", extra={"job_id": "a", "place": "dead", "nothing": None})
        logger.debug("job claimed")

    (event,) = told(stream)
    time = event.pop("time")
    assert time.endswith("+00:00")
    assert event == {
        "level": "INFO",
        "logger": "django_workqueue.worker",
        "event": "job settled",
        "job_id": "a",
        "place": "dead",
    }


def test_a_warning_has_its_fields_in_text_and_another_package_s_is_left_alone() -> None:
    def line(name: str, **fields: Any) -> str:
        record = logging.makeLogRecord({"name": name, "msg": "ticks missed", **fields})
        return TextFormatter().format(record)

    assert line("django_workqueue.scheduler", schedule="nightly", missed=3, nothing=None) == (
        "ticks missed  schedule=nightly missed=3"
    )
    assert line("django_workqueue", why="a b\nc", none="") == (
        "ticks missed  why='a b\\nc' none=''"
    )
    assert line("django_workqueue") == "ticks missed"
    assert line("shop.tasks", schedule="nightly") == "ticks missed"
    assert len(line("django_workqueue", lost=["x" * 100] * 9)) < 250


def test_a_line_is_never_longer_than_a_pipe_takes_in_one_piece() -> None:
    stream = io.StringIO()
    with json_to(stream, logging.INFO):
        for size in (100, 3_000, 4_050, 100_000):
            try:
                raise ValueError("é" * size + "the end")
            except ValueError:
                logger.exception("sweep failed", extra={"lost": ["x" * size] * 9, "worker_id": "w"})

    assert all(len(line) < LINE_BYTES for line in stream.getvalue().splitlines())
    assert [event["exception"][-7:] for event in told(stream)] == ["the end"] * 4
    assert {event["worker_id"] for event in told(stream)} == {"w"}


def test_what_was_set_up_before_is_back_afterwards() -> None:
    package = logging.getLogger("django_workqueue")
    former = package.level, package.propagate, package.handlers[:]
    with json_to(io.StringIO(), logging.DEBUG):
        assert logger.isEnabledFor(logging.DEBUG)

    assert (package.level, package.propagate, package.handlers) == former
    assert not logger.isEnabledFor(logging.DEBUG)


@pytest.mark.parametrize(
    ("debug", "filters", "level", "heard"),
    [
        # Django's own LOGGING, and what a project may have made of it.
        (False, [RequireDebugTrue()], logging.INFO, False),
        (True, [RequireDebugTrue()], logging.INFO, True),
        (False, [], logging.INFO, True),
        (False, [lambda record: False], logging.INFO, True),
        (False, [], logging.ERROR, False),
    ],
)
def test_records_that_no_handler_would_show_are_not_made(
    *, debug: bool, filters: list[Any], level: int, heard: bool
) -> None:
    parent, child = logging.getLogger("tests.unheard"), logging.getLogger("tests.unheard.child")
    handler = logging.Handler(level)
    handler.filters = filters
    parent.handlers, parent.propagate = [handler], False
    parent.setLevel(logging.INFO)
    with override_settings(DEBUG=debug), unheard_left_out(child.name):
        assert child.isEnabledFor(logging.INFO) is heard
        assert child.isEnabledFor(logging.WARNING)
    assert child.isEnabledFor(logging.INFO)


def test_who_sees_all_records_without_a_handler_goes_on_seeing_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As Sentry does, for what went before an error.
    seen: list[str] = []
    call = logging.Logger.callHandlers

    @functools.wraps(call)
    def watched(self: logging.Logger, record: logging.LogRecord) -> None:
        seen.append(record.getMessage())
        call(self, record)

    child = logging.getLogger("tests.unheard.watched")
    parent = logging.getLogger("tests.unheard")
    parent.handlers, parent.propagate = [], False
    parent.setLevel(logging.INFO)
    with unheard_left_out(child.name):
        assert not child.isEnabledFor(logging.INFO)
    monkeypatch.setattr(logging.Logger, "callHandlers", watched)
    with unheard_left_out(child.name):
        child.info("seen")
    assert seen == ["seen"]


def test_a_level_that_the_project_set_is_left_alone() -> None:
    child = logging.getLogger("tests.unheard.leveled")
    child.setLevel(logging.DEBUG)
    with unheard_left_out(child.name):
        assert child.isEnabledFor(logging.DEBUG)


def test_the_formatter_serves_a_projects_own_logging() -> None:
    record = logging.makeLogRecord({"msg": "job %s", "args": ("settled",), "attempt": 2})

    event = json.loads(JSONFormatter().format(record))

    assert (event["event"], event["attempt"]) == ("job settled", 2)


@pytest.mark.usefixtures("transactional_db")
def test_processes_that_share_a_pipe_tell_each_outcome_in_a_whole_line(tmp_path: Path) -> None:
    secret = "not to be logged"
    app.echo.enqueue_many([((f"{secret} {number}",), {}) for number in range(200)])
    fails = [app.fails_slowly.using(max_attempts=1).enqueue("x" * 50_000) for _ in range(20)]

    done = command("runworker", "--processes", "2", "--drain", *AS_JSON, "--verbosity", "2")

    assert (done.returncode, done.stderr) == (0, "")
    assert secret not in done.stdout
    events = [json.loads(line) for line in done.stdout.splitlines()]
    by_event: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        by_event.setdefault(event["event"], []).append(event)
    settled = by_event["job settled"]
    assert sum(event["place"] == "succeeded" for event in settled) == Result.objects.count() == 200
    dead = [event for event in settled if event["place"] == "dead"]
    assert len(dead) == DeadJob.objects.count() == len(fails)
    assert all(event["error"].startswith("builtins.ValueError: xxx") for event in dead)
    assert all(event.keys() >= FIELDS for event in settled + by_event["job claimed"])
    assert len(by_event["job claimed"]) == 220
    assert len(by_event["worker started"]) == len(by_event["worker drained"]) == 2
    (started,) = by_event["runworker started"]
    assert started["slots"] == "2 processes of 4 threads"
    assert len({event["worker_id"] for event in by_event["worker started"]}) == 2


@pytest.mark.usefixtures("transactional_db")
def test_a_worker_whose_events_nobody_reads_goes_on() -> None:
    app.echo.enqueue_many([((number,), {}) for number in range(9)])
    reader, writer = os.pipe()
    os.close(reader)

    done = subprocess.run(
        [sys.executable, "-m", "django", "runworker", "--processes", "1", "--drain", *AS_JSON],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=2 * PATIENCE_SECONDS,
    )
    os.close(writer)

    assert (done.returncode, done.stderr) == (0, b"")
    assert Result.objects.count() == 9
