"""Python values to JSON.

There are two passes. The quick one looks at types only and lets the C encoder do the rest; it must
never accept what the thorough one refuses. The thorough one runs when the quick one is not certain:
it builds a copy of plain types and knows the path of whatever it refuses.
"""

import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..exceptions import PayloadError
from .refusals import class_path, cut, key_type_refusal, refusal, type_refusal

MAX_DEPTH: Final = 64
"""Containers within containers that one value may hold; far below any recursion limit."""

MAX_INT_DIGITS: Final = 4300
"""Digits of the longest integer: Python's default limit, which a worker may have when we do not."""

_INT_BOUND: Final = 10**MAX_INT_DIGITS
_LEAVES: Final = frozenset({str, int, float, bool, type(None)})

# The depth is checked before the encoder runs, so that its own look for cycles is not needed.
_encoder = json.JSONEncoder(
    ensure_ascii=False,
    allow_nan=False,
    check_circular=False,
    separators=(",", ":"),
)


def encode(value: Any, *, max_bytes: int, root: str, what: str = "value") -> str:
    """Return *value* as compact JSON that every database stores and `decode` reads back equal.

    Tuples become lists; keys that are numbers, booleans or None become what `json.dumps` makes of
    them; subclasses of str, int and float (enum members, safe strings) become the plain value.
    No code of the value's classes is called except to iterate over its containers.

    Raises PayloadError for content that JSON or a limit refuses, PayloadTypeError for a type that
    JSON lacks. Both name the culprit's path, which begins with *root*. *max_bytes* counts UTF-8;
    *what* is the noun that the message about the size uses.
    """
    text = _encode_quickly(value, MAX_DEPTH)
    if text is None:
        text = _encoder.encode(_plain(value, (root,), (), MAX_DEPTH))
    _check_size(text, max_bytes, root, what)
    return text


def encode_call(args: Sequence[Any], kwargs: Mapping[str, Any], *, max_bytes: int) -> str:
    """Return the JSON of `{"args": [...], "kwargs": {...}}`; paths are `args[0]`, `kwargs.name`.

    Raises what `encode` raises. The depth is counted within each argument.
    """
    text = _encode_quickly({"args": args, "kwargs": kwargs}, MAX_DEPTH + 2)
    if text is None:
        plain = {
            "args": _plain(args, ("args",), (), MAX_DEPTH + 1),
            "kwargs": _plain(kwargs, ("kwargs",), (), MAX_DEPTH + 1),
        }
        text = _encoder.encode(plain)
    _check_size(text, max_bytes, "args, kwargs", "arguments")
    return text


def _encode_quickly(value: Any, depth: int) -> str | None:
    """Return the JSON of a value that is certainly good, else None: ask the thorough pass."""
    if not _has_plain_types(value, depth):
        return None
    try:
        text = _encoder.encode(value)
    except ValueError:  # NaN, Infinity, or an integer over this process's limit of digits
        return None
    if "\\u0000" in text:  # a NUL, or a backslash before "u0000"
        return None
    if not text.isascii() and not _is_utf8(text):
        return None
    if len(text) > MAX_INT_DIGITS and sys.get_int_max_str_digits() != MAX_INT_DIGITS:
        return None
    return text


def _has_plain_types(value: Any, depth: int) -> bool:
    """Say whether *value* holds only plain JSON types and str keys, within *depth* levels."""
    kind = type(value)
    if kind in _LEAVES:
        return True
    if depth == 0:
        return False
    if kind is dict:
        for key in value:
            if type(key) is not str:
                return False
        items = value.values()
    elif kind is list or kind is tuple:
        items = value
    else:
        return False
    for item in items:
        if type(item) not in _LEAVES and not _has_plain_types(item, depth - 1):
            return False
    return True


def _plain(value: Any, path: tuple[Any, ...], parents: tuple[int, ...], depth: int) -> Any:
    """Return a copy of *value* made of plain JSON types; raise, with the path, where it cannot.

    `issubclass(type(value), …)` and not isinstance: a lazy object answers isinstance by evaluating
    itself, which is its author's code and may query.
    """
    kind = type(value)
    if value is None or kind is bool:
        return value
    if issubclass(kind, str):
        return _plain_text(value, path, "")
    if issubclass(kind, int):
        return _plain_int(value, path, "")
    if issubclass(kind, float):
        return _plain_float(value, path, "")
    if not issubclass(kind, (dict, list, tuple)):
        raise type_refusal(value, path)
    if id(value) in parents:
        raise refusal(
            path, "must not contain itself", "a reference to a value around it", "Copy it"
        )
    if len(parents) == depth:
        limit = f"must be nested at most {MAX_DEPTH} levels deep"
        raise refusal(path, limit, f"a further {class_path(kind)}", "Pass flatter data")
    parents = (*parents, id(value))
    if issubclass(kind, dict):
        return _plain_dict(value, path, parents, depth)
    return [_plain(item, (*path, index), parents, depth) for index, item in enumerate(value)]


def _plain_dict(
    value: dict[Any, Any],
    path: tuple[Any, ...],
    parents: tuple[int, ...],
    depth: int,
) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, item in value.items():
        name = _plain_key(key, path)
        if name in plain:
            must = "must have keys that stay different in JSON"
            raise refusal(path, must, f"{cut(repr(name))} twice", "Use str keys only")
        plain[name] = _plain(item, (*path, name), parents, depth)
    return plain


def _plain_key(key: Any, path: tuple[Any, ...]) -> str:
    kind = type(key)
    if issubclass(kind, str):
        return _plain_text(key, path, "a key of ")
    if key is None or kind is bool:
        return {None: "null", True: "true", False: "false"}[key]
    if issubclass(kind, int):
        return int.__repr__(_plain_int(key, path, "a key of "))
    if issubclass(kind, float):
        return float.__repr__(_plain_float(key, path, "a key of "))
    raise key_type_refusal(key, path)


def _plain_text(value: str, path: tuple[Any, ...], prefix: str) -> str:
    text = str.__str__(value)
    index = text.find("\x00")
    if index >= 0:
        must, hint = "must hold no NUL character", 'Remove it: value.replace("\\0", "")'
    elif not _is_utf8(text):
        index = _first_surrogate(text)
        must, hint = "must hold no lone surrogate", 'Decode the bytes with errors="replace"'
    else:
        return text
    around = cut(repr(text[max(0, index - 20) : index + 20]))
    raise refusal(path, must, f"{around} ({text[index]!r} at index {index})", hint, prefix)


def _plain_int(value: int, path: tuple[Any, ...], prefix: str) -> int:
    number = int.__int__(value)
    limit = MAX_INT_DIGITS
    if -_INT_BOUND < number < _INT_BOUND:
        try:
            int.__repr__(number)
        except ValueError:  # this process's own limit is lower
            limit = sys.get_int_max_str_digits()
        else:
            return number
    digits = number.bit_length() * 30103 // 100000  # by log10(2): writing it out is what is refused
    must = f"must be an integer of at most {limit} digits"
    raise refusal(path, must, f"one of about {digits}", "Pass it as text: hex(value)", prefix)


def _plain_float(value: float, path: tuple[Any, ...], prefix: str) -> float:
    number = float.__float__(value)
    if math.isfinite(number):
        return number
    must = "must be a finite number, which NaN and Infinity are not"
    raise refusal(path, must, repr(number), "Pass None, or a text", prefix)


def _check_size(text: str, max_bytes: int, root: str, what: str) -> None:
    size = len(text) if text.isascii() else len(text.encode())
    if size > max_bytes:
        raise PayloadError(
            f"the {what} must be at most {max_bytes} bytes of JSON, got {size} bytes. Store the "
            "data where it can be read, and pass a reference to it.",
            path=root,
        )


def _is_utf8(text: str) -> bool:
    try:
        str.encode(text)
    except UnicodeEncodeError:
        return False
    return True


def _first_surrogate(text: str) -> int:
    match = re.search("[\ud800-\udfff]", text)
    return match.start() if match else 0
