"""What a refusal says: the culprit's path, what came, and what to do.

Nothing here calls code of the culprit's class.
"""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from ..exceptions import PayloadError, PayloadTypeError

_SHOWN_CHARACTERS: Final = 80
_SHOWN_STEPS: Final = 16

_CONVERT = "Use {}, and parse it where it is read"
_HINTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "django.db.models.base.Model": "Use value.pk, and load the row where it is read",
        "django.db.models.query.QuerySet": 'Use list(value.values_list("pk", flat=True))',
        "django.utils.functional.Promise": "Use str(value), in the language that is active now",
        "django.utils.functional.LazyObject": "Use what the object stands for, e.g. value.pk",
        "decimal.Decimal": _CONVERT.format("str(value)"),
        "uuid.UUID": _CONVERT.format("str(value)"),
        "pathlib.PurePath": _CONVERT.format("str(value)"),
        "pathlib._local.PurePath": _CONVERT.format("str(value)"),  # Python 3.13
        "datetime.timedelta": "Use value.total_seconds()",
        "datetime.date": _CONVERT.format("value.isoformat()"),
        "datetime.time": _CONVERT.format("value.isoformat()"),
        "enum.Enum": "Use value.value",
        "builtins.bytes": "Use base64.b64encode(value).decode(), or store it and pass a reference",
        "builtins.bytearray": "Use base64.b64encode(value).decode(), or pass a reference",
        "builtins.set": "Use sorted(value), or list(value)",
        "builtins.frozenset": "Use sorted(value), or list(value)",
        "builtins.complex": "Use [value.real, value.imag]",
        "builtins.BaseException": "Use str(value)",
        "builtins.type": "Use a name that the reader knows",
        "builtins.generator": "Use list(value)",
        "builtins.range": "Use list(value)",
        "collections.deque": "Use list(value)",
        "builtins.mappingproxy": "Use dict(value)",
        "numpy.generic": "Use value.item()",
        "numpy.ndarray": "Use value.tolist()",
    },
)
_OTHER_HINT: Final = "Use str(value), or a dict of what the reader needs"

# Only these are shown: the repr of any other class is its author's code, and may query or raise.
_SHOWN: Final = frozenset(
    {
        *("decimal.Decimal", "uuid.UUID", "datetime.timedelta", "datetime.date", "datetime.time"),
        *(
            "datetime.datetime",
            "builtins.bytes",
            "builtins.bytearray",
            "builtins.complex",
            "builtins.range",
        ),
    },
)


def refusal(
    path: tuple[Any, ...], must: str, came: str, hint: str, prefix: str = ""
) -> PayloadError:
    """Return the error for the value at *path*, or for one of its keys if *prefix* says so."""
    where = formatted(path)
    return PayloadError(f"{prefix}{where} {must}, got {came}. {hint}.", path=where)


def type_refusal(value: Any, path: tuple[Any, ...]) -> PayloadTypeError:
    """Return the error for a value of a type that JSON lacks."""
    where = formatted(path)
    bases: tuple[type, ...] = vars(type)["__mro__"].__get__(type(value))
    names = (class_path(base) for base in bases)
    hint = next((_HINTS[name] for name in names if name in _HINTS), _OTHER_HINT)
    must = "must be a str, int, float, bool, None, list or dict"
    return PayloadTypeError(f"{where} {must}, got {shown(value)}. {hint}.", path=where)


def key_type_refusal(key: Any, path: tuple[Any, ...]) -> PayloadTypeError:
    """Return the error for a key of *path* that JSON cannot have."""
    where = formatted(path)
    hint = _CONVERT.format("str(key)")
    return PayloadTypeError(
        f"a key of {where} must be a str, got {shown(key)}. {hint}.", path=where
    )


def shown(value: Any) -> str:
    """Return the class of *value*, and its repr where that calls only the standard library."""
    name = class_path(type(value))
    if name in ("datetime.datetime", "datetime.time"):
        value = value.replace(tzinfo=None)  # whose repr may be anybody's code
    if name not in _SHOWN:
        return f"an instance of {cut(name)}"
    if type(value) in (bytes, bytearray):
        value = value[:_SHOWN_CHARACTERS]
    return f"{name} {cut(repr(value))}"


def cut(text: str) -> str:
    """Return *text*, or its beginning and an ellipsis."""
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def formatted(path: tuple[Any, ...]) -> str:
    """Return a path as Python would write it: `kwargs.order["unit price"][3]`."""
    steps = [str(path[0])]
    for step in path[1:]:
        if isinstance(step, str):
            short = len(step) <= _SHOWN_CHARACTERS
            steps.append(f".{step}" if short and step.isidentifier() else _quoted(step))
        else:
            steps.append(f"[{step}]")
    if len(steps) > _SHOWN_STEPS:
        steps[10:-5] = ["…"]
    return "".join(steps)


def _quoted(key: str) -> str:
    return f"[{json.dumps(cut(key), ensure_ascii=False)}]"


def class_path(cls: type) -> str:
    """Return "module.qualname" without calling the class or its metaclass."""
    module = vars(type)["__module__"].__get__(cls)
    name: str = vars(type)["__qualname__"].__get__(cls)
    return f"{str.__str__(module)}.{name}" if issubclass(type(module), str) else name
