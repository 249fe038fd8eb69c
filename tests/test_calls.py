"""`calls`: everything wrong with a call is found before any SQL (cases H)."""

from __future__ import annotations

import decimal
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection, transaction

from django_workqueue import calls, conf
from django_workqueue.exceptions import ArgumentsError, PayloadError, PayloadTypeError
from django_workqueue.models import LiveJob
from tests import jobs
from tests.jobs import app

deep: Any = []
for _ in range(100):
    deep = [deep]

HOSTILE: list[tuple[Any, str, str]] = [
    ("a\x00b", "args[0]", "NUL"),
    ({"k\x00": 1}, "args[0]", "NUL"),
    ({"a": ["\udc80"]}, "args[0].a[0]", "surrogate"),
    (float("nan"), "args[0]", "finite"),
    ([float("-inf")], "args[0][0]", "finite"),
    (1e308 * 10, "args[0]", "finite"),
    (10**5000, "args[0]", "digits"),
    ({1: "a", "1": "b"}, "args[0]", "twice"),
    ({(1, 2): "a"}, "args[0]", "key"),
    ({"price": decimal.Decimal("1.10")}, "args[0].price", "decimal.Decimal"),
    (datetime(2030, 1, 1, tzinfo=UTC), "args[0]", "datetime.datetime"),
    (uuid.UUID(int=1), "args[0]", "uuid.UUID"),
    ({1, 2}, "args[0]", "set"),
    (object(), "args[0]", "object"),
    (b"bytes", "args[0]", "bytes"),
    (deep, "args[0]", "nested"),
    ("x" * 1_048_577, "args, kwargs", "bytes"),
]


@pytest.mark.django_db
@pytest.mark.parametrize(("value", "path", "word"), HOSTILE, ids=[word for *_, word in HOSTILE])
def test_an_argument_that_json_lacks_is_refused_with_its_path_before_any_sql(
    value: Any, path: str, word: str, django_assert_num_queries: Any
) -> None:
    with django_assert_num_queries(0), pytest.raises(PayloadError) as caught:
        app.echo.enqueue(value)

    assert isinstance(caught.value, ValueError)
    assert caught.value.path.startswith(path)
    assert word in str(caught.value)
    # The caller's transaction goes on.
    assert not LiveJob.objects.exists()


def test_a_type_that_json_lacks_is_a_type_error_too() -> None:
    with pytest.raises(TypeError) as caught:
        app.echo.enqueue(value=decimal.Decimal("1.10"))

    assert isinstance(caught.value, PayloadTypeError)
    assert caught.value.path == "kwargs.value"


@pytest.mark.django_db
def test_a_refused_call_leaves_the_callers_transaction_usable() -> None:
    with transaction.atomic():
        with pytest.raises(PayloadError):
            app.echo.enqueue("a\x00b")
        with pytest.raises(ArgumentsError):
            app.add.enqueue()
        kept = app.echo.enqueue("c")

    assert not connection.needs_rollback
    assert jobs.live(kept).payload["args"] == ["c"]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("value", "arrives"),
    [
        (2**70, 2**70),
        ((1, (2,)), [1, [2]]),
        ({1: "a"}, {"1": "a"}),
        ({True: 1, None: 2, 1.5: 3}, {"true": 1, "null": 2, "1.5": 3}),
        ("Ærøskøbing 东京 🚚", "Ærøskøbing 东京 🚚"),
        (1e16, 1e16),
        (-0.0, -0.0),
        ("\\u0000", "\\u0000"),
        (None, None),
    ],
)
def test_the_result_shows_at_once_what_the_task_will_get(value: Any, arrives: Any) -> None:
    result = app.echo.enqueue(value)

    assert result.args == [arrives]
    assert jobs.live(result).payload == {"args": [arrives], "kwargs": {}}


def test_a_call_must_fit_the_signature() -> None:
    with pytest.raises(ArgumentsError, match=r"tests\.app\.tasks\.add must fit its signature"):
        app.add.enqueue(1, 2, 3)


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"queue_name": "\udc80"}, "queue_name"),
        ({"queue_name": "a\x00"}, "queue_name"),
        ({"queue_name": "q" * 256}, "queue_name"),
        ({"unique_key": "\udc80"}, "unique_key"),
        ({"unique_key": "a\x00"}, "unique_key"),
        ({"unique_key": "k" * 10_000}, "unique_key"),
        ({"unique_key": lambda *args: 7}, "unique_key"),
        ({"headers": {"traceparent": "\x00"}}, "headers.traceparent"),
        ({"headers": {"when": datetime(2030, 1, 1, tzinfo=UTC)}}, "headers.when"),
    ],
)
def test_names_keys_and_headers_pass_the_same_gate(options: dict[str, Any], path: str) -> None:
    with pytest.raises(PayloadError) as caught:
        app.echo.using(**options).enqueue(1)

    assert caught.value.path == path


@pytest.mark.django_db
def test_a_queue_name_may_be_long_and_of_any_script() -> None:
    name = "очередь" * 36

    result = app.echo.using(queue_name=name).enqueue()

    assert jobs.live(result).queue_name == name


def test_an_option_that_is_none_is_resolved_from_the_settings_at_enqueue() -> None:
    with jobs.workqueue(MAX_ATTEMPTS=7, RESULT_TTL_SECONDS=60):
        job = calls.new_job(app.echo, (), {}, conf.current())
    given = calls.new_job(app.echo.using(max_attempts=2, result_ttl=0), (), {}, conf.current())

    assert (job.max_attempts, job.result_ttl) == (7, 60)
    assert (given.max_attempts, given.result_ttl) == (2, 0)


def test_a_unique_key_may_be_made_of_the_arguments() -> None:
    task = app.add.using(unique_key=lambda a, b=0: f"{a}-{b}")

    assert calls.new_job(task, (1,), {"b": 3}, conf.current()).unique_key == "1-3"


def test_what_the_key_function_raises_reaches_the_caller() -> None:
    def key(*args: Any) -> str:
        raise KeyError("customer")

    with pytest.raises(KeyError, match="customer"):
        app.add.using(unique_key=key).enqueue(1)
