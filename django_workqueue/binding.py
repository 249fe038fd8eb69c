"""Whether a call fits the signature of its task; looked up once a task, not once a call."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .exceptions import ArgumentsError


def bind(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
    """Bind a call to the task's signature. Raises ArgumentsError where it does not fit."""
    signature = _signature(target.func)
    given = (None, *args) if target.takes_context else args
    try:
        return signature.bind(*given, **kwargs)
    except TypeError as error:
        raise ArgumentsError(
            f"A call of {target.module_path} must fit its signature "
            f"{_of_the_call(target, signature)}: {error}{_unexpected(signature, kwargs, error)}."
        ) from None


def _of_the_call(target: Any, signature: inspect.Signature) -> inspect.Signature:
    """Return the signature without the context, which the worker gives and no caller."""
    parameters = list(signature.parameters.values())
    is_own = bool(parameters) and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL
    hidden = 1 if target.takes_context and is_own else 0
    return signature.replace(parameters=parameters[hidden:])


def _unexpected(signature: inspect.Signature, kwargs: Mapping[str, Any], error: TypeError) -> str:
    """Return what to add to *error*, which names one fault: the names that nothing takes."""
    parameters = signature.parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return ""
    known = {each.name for each in parameters if each.kind is not each.POSITIONAL_ONLY}
    names = [repr(name) for name in kwargs if name not in known and repr(name) not in str(error)]
    return f"; it takes no {', '.join(names)}" if names else ""


def check_call(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise ArgumentsError where a call does not fit the task's signature."""
    least, most = _positional(target.func)
    # Most calls: by position only. The rest, and every error, take the thorough way.
    if kwargs or not least <= len(args) + target.takes_context <= most:
        bind(target, args, kwargs)


@functools.lru_cache(maxsize=4096)
def _positional(func: Callable[..., Any]) -> tuple[int, float]:
    """Return how many arguments a call needs at least, and takes at most, by position alone."""
    least, most = 0, 0.0
    for each in _signature(func).parameters.values():
        required = each.default is each.empty
        if each.kind is each.VAR_POSITIONAL:
            most = math.inf
        elif each.kind is each.KEYWORD_ONLY and required:
            # No call by position alone fits.
            return 1, 0.0
        elif each.kind in {each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD}:
            most += 1
            least += required
    return least, most


@functools.lru_cache(maxsize=4096)
def _signature(func: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(func)
