"""Stored JSON to Python values."""

import json
import math
from typing import Any, NoReturn

from ..exceptions import PayloadError
from .refusals import class_path, cut


def decode(text: Any) -> Any:
    """Return the value of a stored JSON text. Raises PayloadError, and nothing else, on rubbish."""
    if not isinstance(text, str):
        raise PayloadError(
            f"a stored value must be JSON text, got an instance of {class_path(type(text))}. "
            "Correct or discard the row.",
            path="",
        )
    try:
        # Only what was edited by hand has space around it, for which decode() looks at length.
        value, end = _decoder.raw_decode(text.lstrip(" \t\n\r"))
        return value if end == len(text) else _decoder.decode(text)
    except (ValueError, RecursionError) as error:
        # Not the text itself: it holds arguments, and this message goes to the log.
        raise PayloadError(
            f"a stored value must be JSON, got {len(text)} characters that are not: {error}. "
            "Correct or discard the row.",
            path="",
        ) from error


def decode_call(text: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the args and kwargs that `encode_call` wrote. Raises PayloadError on anything else."""
    call = decode(text)
    if (
        isinstance(call, dict)
        and call.keys() == {"args", "kwargs"}
        and isinstance(call["args"], list)
        and isinstance(call["kwargs"], dict)
    ):
        return call["args"], call["kwargs"]
    raise PayloadError(
        'a stored call must be {"args": [...], "kwargs": {...}} and no more, got '
        f"{_outline(call)}. Correct or discard the row.",
        path="",
    )


def _outline(value: Any) -> str:
    """Return the shape of a decoded value without its content."""
    if isinstance(value, dict):
        shape = ", ".join(f"{cut(k)!r}: {type(v).__name__}" for k, v in [*value.items()][:5])
        return f"an object of {len(value)} keys {{{shape}}}"
    return f"a {type(value).__name__}"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError("a number is too large for a float")
    return number


_decoder = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
