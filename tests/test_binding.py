"""`binding`: the quick look at a call says what the signature says."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from django_workqueue.binding import bind, check_call
from django_workqueue.exceptions import ArgumentsError


def plain(a: int, b: int = 2) -> None: ...


def nothing() -> None: ...


def by_position(a: int, /, b: int) -> None: ...


def any_number(a: int, *rest: int) -> None: ...


def by_name(a: int, *, b: int) -> None: ...


def optional_by_name(a: int, *, b: int = 1, **more: int) -> None: ...


CALLS: list[tuple[tuple[int, ...], dict[str, int]]] = [
    ((1,) * count, names)
    for count in range(4)
    for names in ({}, {"b": 1}, {"a": 1}, {"a": 1, "b": 2}, {"c": 3})
]


def refused(check: Callable[..., Any], target: Any, call: Any) -> bool:
    try:
        check(target, *call)
    except ArgumentsError:
        return True
    return False


@pytest.mark.parametrize("takes_context", [False, True])
@pytest.mark.parametrize(
    "function", [plain, nothing, by_position, any_number, by_name, optional_by_name]
)
def test_a_call_is_refused_exactly_where_the_signature_refuses_it(
    function: Any, takes_context: bool
) -> None:
    target: Any = SimpleNamespace(func=function, takes_context=takes_context, module_path="a.b")

    for call in CALLS:
        assert refused(check_call, target, call) == refused(bind, target, call), call
