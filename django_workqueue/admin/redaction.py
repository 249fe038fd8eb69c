"""Hiding the values of the names in ``WORKQUEUE["REDACT"]``, and bringing them back on an edit."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Final

from .. import conf
from ..models.fields import EncodedJSON

MASK: Final = "•••"


class HiddenValueMoved(ValueError):
    """A hidden value stands where none was stored. *path* says where."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


def redacted(value: Any) -> Any:
    """Return *value* with the mask in place of what stands under a redacted name, at any depth.

    Names are told apart without regard to case.
    """
    names = _names()
    return _redacted(value, names) if names else value


def redacted_call(call: Any, task: Any | None) -> Any:
    """Return the stored arguments of a task, redacted by parameter name as well.

    Positional arguments have names only where *task* is known: without it all of them are hidden,
    as soon as there is any name to hide.
    """
    names = _names()
    if not names or not is_call(call):
        return redacted(call)
    hidden = _hidden_positions(call["args"], task, names)
    shown = [
        MASK if hide else _redacted(item, names)
        for item, hide in zip(call["args"], hidden, strict=True)
    ]
    return {**_redacted(call, names), "args": shown}


def is_call(value: Any) -> bool:
    """Tell whether *value* has the shape of a task's stored arguments."""
    return (
        isinstance(value, Mapping)
        and value.keys() == {"args", "kwargs"}
        and isinstance(value["args"], list)
        and isinstance(value["kwargs"], dict)
    )


def restored(edited: Any, shown: Any, stored: Any, path: str = "") -> Any:
    """Return *edited* with the stored value where a mask was left in its place.

    *shown* is what the editor was given for *stored*. Raises HiddenValueMoved for a mask that
    stands where none was shown: which value is meant cannot be told.
    """
    if edited == MASK:
        if shown != MASK:
            raise HiddenValueMoved(path or "the value")
        return stored
    if isinstance(edited, dict):
        return {
            key: restored(item, _at(shown, key), _at(stored, key), f"{path}.{key}".lstrip("."))
            for key, item in edited.items()
        }
    if isinstance(edited, list):
        return [
            restored(item, _at(shown, index), _at(stored, index), f"{path}[{index}]")
            for index, item in enumerate(edited)
        ]
    return edited


def _names() -> frozenset[str]:
    return frozenset(name.casefold() for name in conf.current().redact)


def _redacted(value: Any, names: frozenset[str]) -> Any:
    if isinstance(value, Mapping):
        return {
            key: MASK if str(key).casefold() in names else _redacted(item, names)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_redacted(item, names) for item in value]
    # Text that is no JSON, an edit by hand, has no names to tell what may be shown.
    return MASK if isinstance(value, EncodedJSON) else value


def _hidden_positions(args: Sequence[Any], task: Any | None, names: frozenset[str]) -> list[bool]:
    parameters = None if task is None else _positional_names(task, len(args))
    if parameters is None:
        return [True] * len(args)
    return [name.casefold() in names for name in parameters]


def _positional_names(task: Any, count: int) -> list[str] | None:
    """Return the parameters' names of *count* positional arguments; None: it takes fewer."""
    names: list[str] = []
    for parameter in inspect.signature(task.func).parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
        elif parameter.kind is parameter.VAR_POSITIONAL:
            names += [parameter.name] * (count + 1)
    # The context is given by the worker, and is no argument of the call.
    names = names[1:] if task.takes_context else names
    return names[:count] if len(names) >= count else None


def _at(container: Any, key: Any) -> Any:
    if isinstance(container, dict):
        return container.get(key)
    if isinstance(container, list) and isinstance(key, int) and key < len(container):
        return container[key]
    return None
