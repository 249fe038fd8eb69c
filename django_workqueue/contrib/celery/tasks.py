"""A task in Celery's clothes: ``delay``, ``apply_async``, ``retry``, ``request``."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ... import arguments, backoff
from ...exceptions import MaxRetriesExceededError, Retry, Snooze, Terminal
from ...tasks import WorkQueueTask
from . import results
from .requests import Request, current, running

if TYPE_CHECKING:
    from .declaring import Options

# Enqueued with a moment that is past: what Celery's workers would throw away when they see it.
LEAST_EXPIRES: Final = 0.001

CALL_OPTIONS: Final = (
    "countdown, eta, expires, queue, priority, headers, time_limit and ignore_result"
)
ABOUT_THE_BROKER: Final = frozenset({"retry", "retry_policy"})
"""How often a broker is asked to take a message; there is none, and they are left aside."""

CALL_UNSUPPORTED: Final = (
    "task_id, link, link_error, producer, connection, router, exchange, routing_key, shadow, "
    "group_id, chord, compression, soft_time_limit"
)
MISSING: Final[dict[str, str]] = {
    **dict.fromkeys(
        ("s", "si", "signature", "subtask", "chunks", "map", "starmap", "replace"),
        "Signatures, chains and groups are not supported: enqueue the next task in this one.",
    ),
    "apply": "Call the task itself, which runs its body.",
    "update_state": 'Use django_workqueue\'s task and context.progress(done, total, note="").',
    "send_event": "There are no events; Django's signals tell of every start and end.",
}
"""What Celery's tasks have and these have not, and what to do instead."""


class SharedTask:
    """A task of this queue, called as one of Celery's. ``task`` is the task of this queue.

    Called directly, it runs its body here and now.
    """

    MaxRetriesExceededError = MaxRetriesExceededError
    AsyncResult = results.AsyncResult
    task: WorkQueueTask

    def __init__(self, run: Callable[..., Any], options: Options) -> None:
        functools.update_wrapper(self, run)
        self.run = run
        self.options = options
        self.name = options.name or f"{run.__module__}.{run.__name__}"
        self.max_retries = options.max_retries
        self.default_retry_delay = options.default_retry_delay

    def __repr__(self) -> str:
        return f"<shared_task {self.name}>"

    def __getattr__(self, name: str) -> Any:
        hint = MISSING.get(name)
        told = f" {hint}" if hint else ""
        raise AttributeError(f"A task of django_workqueue.contrib.celery has no {name}.{told}")

    @property
    def request(self) -> Request:
        """What is known of the present run."""
        return current()

    # Enqueueing

    def delay(self, *args: Any, **kwargs: Any) -> results.AsyncResult:
        """Enqueue a job with these arguments; see apply_async()."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        countdown: float | None = None,
        eta: datetime | None = None,
        expires: float | datetime | None = None,
        queue: str | None = None,
        priority: int | None = None,
        headers: Mapping[str, Any] | None = None,
        time_limit: float | None = None,
        ignore_result: bool = False,
        **unsupported: Any,
    ) -> results.AsyncResult:
        """Enqueue a job in the caller's transaction, if there is one.

        *countdown* is seconds from now, by the database's clock, and *eta* a moment, a naive one in
        Django's time zone. *expires*: seconds from now, or a moment; no start after it. Raises
        TypeError for an option that is not supported, by its name, and what ``enqueue`` raises
        for arguments that do not fit or that JSON lacks: no datetime, UUID or Decimal.
        """
        if unknown := unsupported.keys() - ABOUT_THE_BROKER:
            raise TypeError(
                f"apply_async() of {self.name} takes {CALL_OPTIONS}, got "
                f"{', '.join(sorted(unknown))}. Not supported are, among others, "
                f"{CALL_UNSUPPORTED}."
            )
        changes: dict[str, Any] = {"queue_name": queue, "priority": priority, "headers": headers}
        changes |= {"timeout": time_limit, "result_ttl": 0 if ignore_result else None}
        changes |= self._moments(countdown, eta, expires)
        task = self.task.using(**{name: each for name, each in changes.items() if each is not None})
        return results.AsyncResult(task.enqueue(*(args or ()), **(kwargs or {})).id)

    @staticmethod
    def _moments(
        countdown: float | None, eta: datetime | None, expires: float | datetime | None
    ) -> dict[str, Any]:
        """Return when a job becomes due, and how many seconds later it may still start."""
        if not countdown and eta is None and not isinstance(expires, datetime):
            seconds = _seconds("expires", expires)
            return {"expires": None if seconds is None else max(seconds, LEAST_EXPIRES)}
        from ...store import get_store

        now = due = get_store().now()
        if eta is not None:
            due = arguments.moment("eta", eta, hint="For seconds from now use countdown.")
        elif countdown is not None:
            due = now + timedelta(seconds=_seconds("countdown", countdown) or 0.0)
        if isinstance(expires, datetime):
            end = arguments.moment("expires", expires, hint="Or give seconds.")
        elif expires is not None:
            end = now + timedelta(seconds=_seconds("expires", expires) or 0.0)
        else:
            return {"run_after": due}
        left = (end - max(due, now)).total_seconds()
        return {"run_after": due, "expires": max(left, LEAST_EXPIRES)}

    # Running

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with running(None):
            return self.attempt(*args, **kwargs)

    def attempt(self, *args: Any, **kwargs: Any) -> Any:
        """Run the body once; turn an error that is retried into a retry."""
        given = (self, *args) if self.options.bind else args
        try:
            return self.run(*given, **kwargs)
        except (Retry, Snooze, Terminal):
            raise
        except self.options.dont_autoretry_for:
            raise
        except self.options.autoretry_for as error:
            asked = dict(self.options.retry_kwargs)
            if self.options.retry_backoff:
                asked["countdown"] = self._backoff_seconds()
            raise self.retry(exc=error, **asked) from error

    def retry(  # noqa: PLR0917  # Celery's own order
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        exc: BaseException | None = None,
        throw: bool = True,  # noqa: FBT001, FBT002  # as Celery has it
        eta: datetime | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **unsupported: Any,
    ) -> Retry:
        """Raise what makes the job be run again, after *countdown* or ``default_retry_delay``.

        Where no retry is left raises *exc*, or MaxRetriesExceededError. With *throw* False a retry
        is returned, to be raised. Called directly, nothing is run again: *exc* is raised.
        """
        request = current()
        if request.called_directly:
            raise exc or Retry(message=f"{self.name} asked to be retried, and was called directly")
        self._refuse_changes(request, args, kwargs, unsupported)
        most = self.max_retries if max_retries is None else self._checked_most(max_retries)
        if most is not None and request.retries >= most:
            self._give_up(request, exc)
        if eta is not None:
            moment = arguments.moment("eta", eta, hint="For seconds from now use countdown.")
            from ...store import get_store

            countdown = max((moment - get_store().now()).total_seconds(), 0.0)
        seconds = self.default_retry_delay if countdown is None else countdown
        told = Retry(_seconds("countdown", seconds), message=_why(exc))
        told.__cause__ = exc
        if throw:
            raise told
        return told

    def _give_up(self, request: Request, exc: BaseException | None) -> NoReturn:
        if exc is not None:
            raise exc
        raise MaxRetriesExceededError(
            f"{self.name} must end within {request.retries} retries, and asked for another one. "
            "Raise max_retries, or look at what keeps failing."
        )

    def _refuse_changes(
        self,
        request: Request,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        unsupported: Mapping[str, Any],
    ) -> None:
        changed = [*unsupported]
        if args is not None and list(args) != list(request.args):
            changed.append("args")
        if kwargs is not None and dict(kwargs) != dict(request.kwargs):
            changed.append("kwargs")
        if changed:
            raise TypeError(
                f"retry() of {self.name} runs the same job again, and cannot change "
                f"{', '.join(changed)}. Enqueue another job with apply_async(), and return."
            )

    def _checked_most(self, asked: int) -> int:
        budget = self.options.most_retries
        if budget is not None and asked > budget:
            raise TypeError(
                f"max_retries of retry() must be at most the task's own, {budget}, got {asked}: "
                f"a job's budget is fixed when it is enqueued. Declare max_retries={asked}."
            )
        return asked

    def _backoff_seconds(self) -> float:
        factor = max(1.0, float(self.options.retry_backoff))
        # Celery's own: the factor, doubled with every retry.
        exponent = min(current().retries, 64)
        longest = min(factor * 2**exponent, self.options.retry_backoff_max, backoff.MAX_SECONDS)
        return random.uniform(0, longest) if self.options.retry_jitter else longest


def _seconds(argument: str, value: Any) -> float | None:
    if value is None:
        return None
    return arguments.seconds(argument, value, hint="For a moment give eta, a datetime.")


def _why(exc: BaseException | None) -> str:
    return "" if exc is None else f"{type(exc).__qualname__}: {exc}"
