"""`tasks`: options are judged where they are given, and both decorators make the same Task."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from django.test import override_settings

from django_workqueue import registry
from django_workqueue.binding import bind
from django_workqueue.compat import BACKPORT, InvalidTask, TaskResultStatus, task_backends
from django_workqueue.exceptions import ArgumentsError
from django_workqueue.tasks import Backoff, WorkQueueTask, task
from tests.app import tasks as app

BACKENDS = ("django_tasks" if BACKPORT else "django.tasks") + ".backends"


def plain(a: int, b: int = 2, *, c: int = 3) -> int:
    return a + b + c


def contextual(context: Any, a: int) -> int:
    return a


async def coroutine() -> None: ...


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Declare here without a trace in other tests."""
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))


def declared(**options: Any) -> WorkQueueTask:
    return task(**options)(plain)


# Declaring


def test_an_option_that_is_not_given_is_left_to_the_settings() -> None:
    made = task(plain)

    assert made.max_attempts is made.timeout is made.expires is made.result_ttl is None
    assert made.retry_on == (Exception,)
    assert made.terminal_on == ()
    assert made.dead_letter


def test_the_decorator_of_django_makes_a_task_of_ours() -> None:
    assert isinstance(app.add, WorkQueueTask)
    assert app.add.max_attempts is None
    assert app.add.call(1) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_attempts": 0}, "max_attempts of task plain must be a whole number from 1 to 32767"),
        ({"max_attempts": True}, "got True"),
        ({"max_attempts": 2.0}, "got 2.0"),
        ({"max_attempts": 32_768}, "got 32768"),
        ({"timeout": 0}, "timeout of task plain must be seconds above 0"),
        ({"timeout": float("nan")}, "got nan"),
        ({"timeout": "30"}, "got '30'"),
        ({"timeout": 1e300}, "timeout of task plain must be"),
        ({"expires": -1}, "expires of task plain must be seconds above 0"),
        ({"expires": float("inf")}, "got inf"),
        ({"expires": 1e11}, "expires of task plain must be"),
        ({"result_ttl": -0.5}, "result_ttl of task plain must be 0 or more seconds"),
        ({"result_ttl": 10**400}, "result_ttl of task plain must be"),
        ({"retry_on": ValueError("x")}, "retry_on of task plain must be exception classes"),
        ({"retry_on": (ValueError, str)}, "got (<class 'ValueError'>, <class 'str'>)"),
        ({"terminal_on": "ValueError"}, "terminal_on of task plain must be exception classes"),
        ({"unique_while": "running"}, "unique_while of task plain must be one of queued, live"),
        ({"unique_while": []}, "got []"),
        ({"on_conflict": "ignore"}, "on_conflict of task plain must be one of return, raise, repl"),
        ({"unique_key": 7}, "unique_key of task plain must be a string or a function"),
        ({"atomic": 1}, "atomic of task plain must be True or False, got 1"),
        ({"dead_letter": None}, "dead_letter of task plain must be True or False, got None"),
        ({"backoff": -1}, "backoff of task plain: seconds of a backoff"),
        ({"backoff": lambda: 1}, "must take two arguments"),
        ({"priority": 101}, "priority"),
        ({"priority": 0.5}, "priority"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused_by_name(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidTask) as caught:
        declared(**options)

    assert message in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 1},
        {"max_attempts": 32_767},
        {"timeout": 0.5},
        {"expires": 86_400},
        {"result_ttl": 0},
        {"retry_on": OSError},
        {"retry_on": [OSError, KeyError]},
        {"terminal_on": (KeyboardInterrupt,)},
        {"unique_key": "one"},
        {"unique_key": lambda a: str(a)},
        {"backoff": timedelta(minutes=1)},
        {"backoff": Backoff(base=1)},
        {"backoff": lambda exception, result: 3},
        {"priority": -100},
    ],
)
def test_an_option_that_can_be_used_is_kept(options: dict[str, Any]) -> None:
    declared(**options)


def test_classes_of_errors_may_come_alone_or_in_a_list() -> None:
    assert declared(retry_on=OSError).retry_on == (OSError,)
    assert declared(terminal_on=[OSError, KeyError]).terminal_on == (OSError, KeyError)


def test_a_fixed_backoff_may_be_a_timedelta() -> None:
    assert declared(backoff=timedelta(minutes=1)).backoff == 60


def test_an_unknown_option_is_a_type_error_that_names_the_known_ones() -> None:
    with pytest.raises(
        TypeError, match=r"takes the options .*got 'max_atempts'\. Did you mean max_attempts\?$"
    ):
        task(max_atempts=3)  # type: ignore[call-overload]


@pytest.mark.parametrize("name", ["run_after", "headers"])
def test_a_moment_and_headers_belong_to_a_call(name: str) -> None:
    with pytest.raises(TypeError, match=rf"use \.using\({name}=…\)"):
        declared(**{name: None})


def test_a_function_inside_a_function_is_refused() -> None:
    def inner() -> None: ...

    with pytest.raises(InvalidTask):
        task(inner)


def test_a_transaction_for_a_coroutine_is_refused() -> None:
    with pytest.raises(InvalidTask, match="atomic of task coroutine must be False"):
        task(atomic=True)(coroutine)


# A copy with other options


def test_using_makes_a_copy_with_other_options() -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    base = declared(max_attempts=5)

    copy = base.using(
        priority=7,
        run_after=moment,
        max_attempts=2,
        timeout=3,
        expires=4,
        result_ttl=5,
        unique_key="k",
        unique_while="queued",
        on_conflict="raise",
        dead_letter=False,
        headers={"tenant": "a"},
    )

    assert (copy.priority, copy.run_after, copy.max_attempts) == (7, moment, 2)
    assert copy.headers == {"tenant": "a"}
    assert base.max_attempts == 5
    assert copy.func is base.func


def test_using_keeps_what_it_is_not_given() -> None:
    copy = declared(priority=7, max_attempts=5).using(priority=None, timeout=1)

    assert (copy.priority, copy.max_attempts) == (7, 5)


def test_using_refuses_a_name_that_is_no_option() -> None:
    with pytest.raises(
        TypeError, match=r"using\(\) takes .*got 'max_atempts'\. Did you mean max_attempts\?$"
    ):
        declared().using(max_atempts=3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("backoff", 5),
        ("retry_on", (OSError,)),
        ("terminal_on", (OSError,)),
        ("takes_context", True),
        ("atomic", True),
    ],
)
def test_using_refuses_an_option_that_no_job_carries(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=rf"{name} belongs to the task.*@task\({name}=…\)"):
        declared().using(**{name: value})


def test_using_judges_options_as_the_decorator_does() -> None:
    with pytest.raises(InvalidTask, match="max_attempts of task plain"):
        declared().using(max_attempts=0)


@pytest.mark.parametrize(
    "moment",
    [
        datetime.max.replace(tzinfo=UTC),
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5))),
        "tomorrow",
        timedelta(seconds=5),
    ],
)
def test_a_moment_that_is_none_or_ends_the_calendar_is_refused(moment: Any) -> None:
    with pytest.raises(InvalidTask, match="run_after of task plain must be a datetime"):
        declared().using(run_after=moment)


def test_using_does_not_change_what_a_worker_finds_under_the_path() -> None:
    base = declared(max_attempts=5)

    base.using(max_attempts=2)

    assert registry.get(base.module_path) is base


# Binding a call


@pytest.mark.parametrize(
    ("args", "kwargs"), [((1,), {}), ((1, 2), {"c": 4}), ((), {"a": 1}), ((), {"a": 1, "b": 2})]
)
def test_a_call_that_fits_the_signature_is_bound(args: Any, kwargs: Any) -> None:
    bind(declared(), args, kwargs)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "missing a required argument: 'a'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"d": 1}, "got an unexpected keyword argument 'd'."),
        ((), {"d": 1, "e": 1}, "missing a required argument: 'a'; it takes no 'd', 'e'."),
        ((1,), {"a": 1}, "multiple values for argument 'a'"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_with_the_signature(
    args: Any, kwargs: Any, message: str
) -> None:
    with pytest.raises(ArgumentsError) as caught:
        bind(declared(), args, kwargs)

    assert isinstance(caught.value, TypeError)
    assert message in str(caught.value)
    assert "tests.test_tasks.plain must fit its signature (a: 'int'" in str(caught.value)


def test_the_context_is_no_argument_of_the_call() -> None:
    made = task(takes_context=True)(contextual)

    bind(made, (1,), {})
    with pytest.raises(ArgumentsError) as caught:
        bind(made, (1, 2), {})
    assert "context" not in str(caught.value).partition("signature")[2]


# On other backends


@pytest.fixture
def immediate() -> Iterator[None]:
    with override_settings(
        TASKS={"default": {"BACKEND": f"{BACKENDS}.immediate.ImmediateBackend"}}
    ):
        yield


@pytest.fixture
def dummy() -> Iterator[None]:
    with override_settings(TASKS={"default": {"BACKEND": f"{BACKENDS}.dummy.DummyBackend"}}):
        yield


OPTIONS: dict[str, Any] = {
    "max_attempts": 5,
    "backoff": Backoff(base=1),
    "timeout": 3,
    "unique_key": "k",
    "result_ttl": 0,
    "retry_on": (OSError,),
}


def test_the_immediate_backend_accepts_and_ignores_the_options(immediate: None) -> None:
    made = declared(**OPTIONS)

    result = made.using(max_attempts=1).enqueue(1, b=5)

    assert result.status == TaskResultStatus.SUCCESSFUL
    assert result.return_value == 9


def test_the_dummy_backend_accepts_and_ignores_the_options(dummy: None) -> None:
    declared(**OPTIONS)
    # The backend copies results, and a copy finds its task by the path of a module's attribute.
    result = app.run_choosy.using(unique_key="k", timeout=3).enqueue("name")

    backend: Any = task_backends["default"]
    assert [each.id for each in backend.results] == [result.id]


def test_many_are_enqueued_one_by_one_where_the_backend_knows_no_other_way(
    immediate: None,
) -> None:
    results = declared().enqueue_many([((1,), {}), ((2,), {"b": 0})])

    assert [each.return_value for each in results] == [6, 5]
