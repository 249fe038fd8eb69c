import logging
import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_workqueue.backoff import (
    MAX_SECONDS,
    Backoff,
    asked_seconds,
    check_policy,
    decide,
    from_setting,
    maximum_seconds,
    planned,
)
from django_workqueue.exceptions import BackoffError

DEFAULT = Backoff(base=5, factor=2, maximum=60, jitter=False)
ERROR = ValueError("no")

# A busy machine may take long over one example without anything being wrong.
unhurried = settings(deadline=None)


def decided(policy: Any, attempt: int = 1, default: Backoff = DEFAULT) -> float | None:
    return decide(policy, attempt, ERROR, None, default=default)


# Delays


def test_default_delays_are_the_documented_table() -> None:
    table = [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600]
    assert [Backoff().longest_seconds(attempt) for attempt in range(1, 13)] == table
    assert planned(None, 13, Backoff()) == table


@pytest.mark.parametrize("factor", [2, 1.5, 1e7])
@pytest.mark.parametrize("attempt", [47, 5_000, 10**9, 10**400])
def test_a_late_attempt_waits_the_maximum_without_overflow(factor: float, attempt: int) -> None:
    backoff = Backoff(base=5, factor=factor, maximum=3600, jitter=False)
    assert backoff.delay_seconds(attempt) == 3600


def test_factor_1_and_base_0_stay_where_they_are() -> None:
    assert Backoff(base=7, factor=1, jitter=False).delay_seconds(10**400) == 7
    assert Backoff(base=0, factor=1e7).delay_seconds(5_000) == 0


@pytest.mark.parametrize("attempt", [0, -1, -5_000])
def test_an_attempt_below_1_counts_as_the_first(attempt: int) -> None:
    assert DEFAULT.delay_seconds(attempt) == 5


def test_jitter_is_spread_over_the_upper_half() -> None:
    backoff = Backoff(base=10)
    draws = iter([0.0, 0.5, 1.0])
    spread = [backoff.delay_seconds(1, random=draws.__next__) for _ in range(3)]
    assert spread == [5, 7.5, 10]
    drawn = [backoff.delay_seconds(1) for _ in range(200)]
    assert min(drawn) >= 5
    assert max(drawn) <= 10
    assert max(drawn) - min(drawn) > 2


@unhurried
@given(
    base=st.floats(0, MAX_SECONDS),
    factor=st.floats(1, MAX_SECONDS),
    extra=st.floats(0, 1e6),
    jitter=st.booleans(),
    attempt=st.integers(1, 10_000),
)
def test_any_backoff_stays_within_its_bounds(
    base: float, factor: float, extra: float, jitter: bool, attempt: int
) -> None:
    maximum = min(base + extra, MAX_SECONDS)
    backoff = Backoff(base=base, factor=factor, maximum=maximum, jitter=jitter)
    longest = backoff.longest_seconds(attempt)
    assert base <= longest <= maximum
    assert longest / 2 <= backoff.delay_seconds(attempt) <= longest
    assert longest <= backoff.longest_seconds(attempt + 1)


# Parameters


@pytest.mark.parametrize("name", ["base", "factor", "maximum"])
@pytest.mark.parametrize(
    "value", [-1, math.nan, math.inf, -math.inf, True, "5", None, 10**400, timedelta(1), 1e300]
)
def test_a_parameter_that_is_no_number_in_range_is_refused(name: str, value: Any) -> None:
    with pytest.raises(BackoffError, match=f"^{name} of a backoff must be a number from "):
        Backoff(**{name: value})


def test_a_factor_below_1_is_refused() -> None:
    with pytest.raises(BackoffError, match="from 1 to 315360000, got 0"):
        Backoff(factor=0.5)


def test_a_maximum_below_the_base_is_refused() -> None:
    with pytest.raises(BackoffError) as caught:
        Backoff(base=7200)
    assert str(caught.value) == (
        "maximum of a backoff must be at least its base, 7200, got 3600. "
        "Raise maximum or lower base."
    )


@pytest.mark.parametrize("jitter", [1, 0.5, "yes", None])
def test_jitter_is_true_or_false(jitter: Any) -> None:
    with pytest.raises(BackoffError, match="jitter of a backoff must be True or False, got "):
        Backoff(jitter=jitter)


def test_a_setting_becomes_a_backoff() -> None:
    assert from_setting({}) == Backoff()
    assert from_setting({"base": 1, "jitter": False}) == Backoff(base=1, jitter=False)


def test_an_unknown_key_of_a_setting_is_refused_with_the_nearest_known() -> None:
    with pytest.raises(BackoffError) as caught:
        from_setting({"maximun": 60})
    assert str(caught.value) == (
        "keys of a backoff setting must be of base, factor, maximum, jitter, got 'maximun'. "
        "Did you mean 'maximum'?"
    )
    with pytest.raises(BackoffError, match="got 5"):
        from_setting({5: 60})


@pytest.mark.parametrize("value", [None, 5, "base", ["base"]])
def test_a_setting_that_is_no_dict_is_refused(value: Any) -> None:
    with pytest.raises(BackoffError, match="a backoff setting must be a dict"):
        from_setting(value)


@pytest.mark.parametrize("policy", [None, Backoff(), 0, 5, 2.5, lambda e, r: 1])
def test_a_good_policy_is_kept(policy: Any) -> None:
    assert check_policy(policy) is policy


def test_a_timedelta_becomes_seconds() -> None:
    assert check_policy(timedelta(minutes=1)) == 60.0


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("policy", "came"),
    [
        ("5", "got '5'"),
        ({"base": 5}, "got {'base': 5}"),
        (True, "got True"),
        (Backoff, "got <class "),
        ("x" * 1000, "got 'xxx"),
        (Unprintable(), "got an instance of Unprintable, whose repr raised RuntimeError"),
        (-1, "got -1"),
        (math.nan, "got nan"),
        (timedelta(-1), "got -86400.0"),
    ],
)
def test_a_bad_policy_is_refused_naming_what_came(policy: Any, came: str) -> None:
    with pytest.raises(BackoffError) as caught:
        check_policy(policy)
    assert came in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_function_of_other_than_two_arguments_is_refused() -> None:
    for policy in (lambda: 1, lambda e: 1, lambda e, r, more: 1):
        with pytest.raises(BackoffError, match="must take two arguments"):
            check_policy(policy)
    for good in (lambda *args: 1, lambda e, r, more=None: 1, max):
        assert check_policy(good) is good


def test_a_coroutine_function_is_refused() -> None:
    async def function(exception: BaseException, task_result: object) -> float:
        return 1

    class Instance:
        async def __call__(self, exception: BaseException, task_result: object) -> float:
            return 1

    for policy in (function, Instance()):
        with pytest.raises(BackoffError, match="Make it def, not async def"):
            check_policy(policy)


# Decisions


def test_no_policy_is_the_default() -> None:
    assert [decided(None, attempt) for attempt in range(1, 7)] == [5, 10, 20, 40, 60, 60]


def test_seconds_are_the_same_at_every_attempt_and_may_pass_the_default_maximum() -> None:
    assert [decided(7, attempt) for attempt in (1, 2, 9)] == [7, 7, 7]
    assert decided(7200) == 7200
    assert decided(timedelta(hours=2)) == 7200
    assert decided(0) == 0


def test_a_backoff_is_used_with_its_own_maximum() -> None:
    assert decided(Backoff(base=100, maximum=150, jitter=False), 2) == 150


def test_a_function_is_given_error_and_result() -> None:
    seen: list[Any] = []
    result = object()
    assert decide(lambda *args: seen.append(args), 1, ERROR, result, default=DEFAULT) is None
    assert seen == [(ERROR, result)]


@pytest.mark.parametrize(
    ("returned", "delay"),
    [
        (3, 3.0),
        (timedelta(seconds=3), 3.0),
        (None, None),
        (-5, 0.0),
        (timedelta(-1), 0.0),
        (86400, 60.0),
        (10**400, 60.0),
    ],
)
def test_what_a_function_returns_is_held_within_0_and_the_maximum(
    returned: Any, delay: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    assert decided(lambda exception, task_result: returned) == delay
    assert not caplog.records


@pytest.mark.parametrize("returned", [math.nan, math.inf, -math.inf, "5", True, [], object()])
def test_what_is_no_delay_falls_back_to_the_maximum_and_is_logged(
    returned: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert decided(lambda exception, task_result: returned, 3) == 60
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("django_workqueue", logging.WARNING)
    assert record.__dict__["attempt"] == 3
    assert "a delay must be finite seconds" in caplog.text


@pytest.mark.parametrize("fault", [ZeroDivisionError, SystemExit, KeyboardInterrupt])
def test_a_function_that_raises_does_not_end_retries(
    fault: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def broken(exception: BaseException, task_result: object) -> float:
        raise fault

    assert decided(broken) == 60
    assert fault.__name__ in caplog.text


@pytest.mark.parametrize("policy", ["5", object(), math.nan, [1], lambda: 1])
def test_an_unchecked_policy_falls_back_too(policy: Any) -> None:
    assert decided(policy) == 60


class RaisingBackoff(Backoff):
    def delay_seconds(self, attempt: int, **options: Any) -> float:
        raise ZeroDivisionError


class WildBackoff(Backoff):
    def delay_seconds(self, attempt: int, **options: Any) -> float:
        return math.nan if attempt == 1 else 1e9


def test_a_subclass_of_backoff_is_held_to_its_own_maximum() -> None:
    assert decided(RaisingBackoff(maximum=99)) == 99
    assert [decided(WildBackoff(maximum=99), attempt) for attempt in (1, 2)] == [99, 99]


@pytest.mark.parametrize(
    ("policy", "maximum"),
    [
        (None, 60),
        (Backoff(maximum=99), 99),
        (5, 60),
        (90, 90),
        (timedelta(seconds=90), 90),
        (lambda e, r: 1, 60),
        (math.nan, 60),
        (1e300, MAX_SECONDS),
    ],
)
def test_the_maximum_is_the_policys_own_or_the_defaults(policy: Any, maximum: float) -> None:
    assert maximum_seconds(policy, DEFAULT) == maximum


@pytest.mark.parametrize(
    ("after", "seconds"),
    [(7, 7), (86400, 60), (timedelta(seconds=7), 7), (-1, 0), (0, 0), (math.nan, 60), ("7", 60)],
)
def test_what_a_task_asks_for_is_capped(after: Any, seconds: float) -> None:
    assert asked_seconds(after, None, 1, default=DEFAULT) == seconds


def test_planned_delays_are_one_fewer_than_the_attempts() -> None:
    assert planned(None, 5, DEFAULT) == [5, 10, 20, 40]
    assert planned(Backoff(base=1), 3, DEFAULT) == [1, 2]
    assert planned(7, 3, DEFAULT) == [7, 7]
    assert planned(None, 1, DEFAULT) == []
    assert planned(lambda e, r: 1, 3, DEFAULT) is None
