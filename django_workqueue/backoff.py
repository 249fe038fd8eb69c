"""How long to wait before the next attempt.

A *policy* is what the `backoff` option of a task takes:

- None: the project's own, `WORKQUEUE["BACKOFF"]`, which callers pass here as *default*;
- a `Backoff`: delays that grow with the attempts;
- seconds, or a timedelta: the same delay after every attempt, without jitter;
- a function `f(exception, task_result)` that returns seconds, a timedelta, or None: give up.

`check_policy` is strict, where a task is declared. `decide` is lenient, where an attempt failed: a
policy that does not work there costs a delay, never the job.
"""

import difflib
import inspect
import logging
import math
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Final, TypeAlias

from .exceptions import BackoffError

logger = logging.getLogger("django_workqueue")

MAX_SECONDS: Final = 10 * 365 * 86400
"""The longest delay: ten years, so that adding one to a moment never leaves the calendar."""

_SHOWN_CHARACTERS: Final = 80

Seconds: TypeAlias = float | timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Delays that begin at *base* seconds, grow by *factor* at each attempt and end at *maximum*.

    *jitter* spreads each delay evenly over its upper half, so that jobs that failed together do
    not come back together. Raises BackoffError, a ValueError, for parameters that cannot be used.
    """

    base: float = 5
    factor: float = 2
    maximum: float = 3600
    jitter: bool = True

    def __post_init__(self) -> None:
        _check_number("base", self.base, at_least=0, at_most=MAX_SECONDS)
        _check_number("factor", self.factor, at_least=1, at_most=MAX_SECONDS)
        _check_number("maximum", self.maximum, at_least=0, at_most=MAX_SECONDS)
        if self.maximum < self.base:
            raise BackoffError(
                f"maximum of a backoff must be at least its base, {self.base!r}, got "
                f"{self.maximum!r}. Raise maximum or lower base."
            )
        if not isinstance(self.jitter, bool):
            raise BackoffError(
                f"jitter of a backoff must be True or False, got {_cut(self.jitter)}. "
                "True spreads each delay over its upper half."
            )

    def delay_seconds(self, attempt: int, *, random: Callable[[], float] = random.random) -> float:
        """Return the seconds to wait after *attempt*, which counts from 1.

        Within [delay / 2, delay] with jitter; never negative, never above *maximum*.
        """
        delay = self.longest_seconds(attempt)
        return delay * (1 + random()) / 2 if self.jitter else delay

    def longest_seconds(self, attempt: int) -> float:
        """Return the delay after *attempt* before jitter."""
        exponent = min(max(attempt - 1, 0), sys.maxsize)
        if self.base == 0:
            return 0.0
        try:
            return min(self.base * float(self.factor) ** exponent, float(self.maximum))
        except OverflowError:
            return float(self.maximum)


Policy: TypeAlias = Backoff | Seconds | Callable[[BaseException, Any], Seconds | None] | None


def decide(
    policy: Policy, attempt: int, error: BaseException, task_result: Any, *, default: Backoff
) -> float | None:
    """Return the seconds to wait after *attempt* ended in *error*, or None: give up.

    Never raises. What a function returns is held within 0 and `maximum_seconds`. A delay that the
    policy cannot compute is that maximum, and logged with its traceback: a broken policy must not
    end a job's retries.
    """
    try:
        chosen = default if policy is None else policy
        if isinstance(chosen, Backoff):
            delay: Seconds | None = chosen.delay_seconds(attempt)
        else:
            delay = chosen(error, task_result) if callable(chosen) else chosen
        return None if delay is None else _within(delay, maximum_seconds(policy, default))
    except BaseException as fault:  # noqa: BLE001 - the policy's own code, which may call sys.exit
        return _fallback_seconds(fault, policy, default, attempt)


def asked_seconds(after: Seconds, policy: Policy, attempt: int, *, default: Backoff) -> float:
    """Return the seconds to wait when a task asked for *after* (`Retry(after=…)`). Never raises.

    Held within 0 and `maximum_seconds`; what is not a delay is that maximum, and logged.
    """
    try:
        return _within(after, maximum_seconds(policy, default))
    except BackoffError as fault:
        return _fallback_seconds(fault, policy, default, attempt)


def maximum_seconds(policy: Policy, default: Backoff) -> float:
    """Return the longest delay that *policy* lets a function or a `Retry(after=…)` ask for.

    Its own maximum for a Backoff; otherwise the default's, or the policy's seconds if they are
    more.
    """
    if isinstance(policy, Backoff):
        return float(policy.maximum)
    seconds = float(default.maximum)
    if isinstance(policy, (int, float, timedelta)):
        try:
            return max(seconds, _within(policy, MAX_SECONDS))
        except BackoffError:
            return seconds
    return seconds


def planned(policy: Policy, max_attempts: int, default: Backoff) -> list[float] | None:
    """Return the delays between *max_attempts* attempts before jitter, for showing to people.

    One fewer than the attempts; None where only the project's function knows. Raises BackoffError
    for a policy that `check_policy` would refuse.
    """
    chosen = default if policy is None else policy
    if isinstance(chosen, Backoff):
        return [chosen.longest_seconds(attempt) for attempt in range(1, max_attempts)]
    if callable(chosen):
        return None
    return [_within(chosen, MAX_SECONDS)] * (max_attempts - 1)


def check_policy(value: Any) -> Policy:
    """Return *value* if it is a policy, a timedelta as seconds. Raises BackoffError otherwise."""
    if value is None or isinstance(value, Backoff):
        return value
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        _check_number("seconds", value, at_least=0, at_most=MAX_SECONDS)
        return value
    if callable(value) and not isinstance(value, type):
        _check_function(value)
        return value  # type: ignore[no-any-return]  # any callable that takes the two arguments
    raise BackoffError(
        "a backoff must be a Backoff, seconds, a timedelta, a function f(exception, task_result) "
        f"or None, got {_cut(value)}. For growing delays use Backoff(base=5, maximum=3600)."
    )


def from_setting(value: Any) -> Backoff:
    """Return the Backoff that a dict of its parameters describes. Raises BackoffError."""
    names = [field.name for field in fields(Backoff)]
    if not isinstance(value, Mapping):
        raise BackoffError(
            f"a backoff setting must be a dict with keys of {', '.join(names)}, got {_cut(value)}."
            ' Write {"base": 5, "maximum": 3600}.'
        )
    for key in value:
        if key not in names:
            nearest = difflib.get_close_matches(str(key), names, n=1)
            fix = f"Did you mean {nearest[0]!r}?" if nearest else "Remove it."
            raise BackoffError(
                f"keys of a backoff setting must be of {', '.join(names)}, got {_cut(key)}. {fix}"
            )
    return Backoff(**value)


def _within(delay: Any, maximum: float) -> float:
    """Return *delay* in seconds, held within 0 and *maximum*. Raises BackoffError if it is none."""
    if isinstance(delay, timedelta):
        delay = delay.total_seconds()
    if not _is_number(delay):
        raise BackoffError(
            f"a delay must be finite seconds, a timedelta or None, got {_cut(delay)}. "
            "Correct what the backoff function returns, or what Retry was given."
        )
    return float(min(max(delay, 0), maximum))


def _fallback_seconds(
    fault: BaseException, policy: Policy, default: Backoff, attempt: int
) -> float:
    """Log *fault* with its traceback and return the maximum."""
    seconds = maximum_seconds(policy, default)
    logger.warning(
        "backoff failed; waiting its maximum",
        exc_info=fault,
        extra={"attempt": attempt, "delay_seconds": seconds},
    )
    return seconds


def _check_number(name: str, value: Any, *, at_least: float, at_most: float) -> None:
    if _is_number(value) and at_least <= value <= at_most:
        return
    raise BackoffError(
        f"{name} of a backoff must be a number from {at_least} to {at_most}, got {_cut(value)}. "
        "Delays are in seconds; the defaults are base 5, factor 2, maximum 3600."
    )


def _check_function(function: Callable[..., Any]) -> None:
    call = "f(exception, task_result)"
    if any(map(inspect.iscoroutinefunction, (function, type(function).__call__))):
        raise BackoffError(
            f"a backoff function must be a plain one, called as {call}, got the coroutine function "
            f"{_cut(function)}. Make it def, not async def."
        )
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # some functions written in C have none: the call will tell
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise BackoffError(
            f"a backoff function must take two arguments, {call}, got {_cut(function)}: {error}. "
            "Give it both parameters."
        ) from error


def _is_number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


def _cut(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - the value's own code
        return (
            f"an instance of {type(value).__qualname__}, whose repr raised {type(error).__name__}"
        )
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
