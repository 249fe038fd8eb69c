import contextlib
import datetime
import decimal
import enum
import json
import math
import sys
import uuid
from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_workqueue import payload
from django_workqueue.exceptions import PayloadError, PayloadTypeError

LIMIT = 1_000_000

# A busy machine may take long over one example without anything being wrong.
unhurried = settings(deadline=None)


def encode(value: Any, max_bytes: int = LIMIT) -> str:
    return payload.encode(value, max_bytes=max_bytes, root="value")


def refusal(*args: Any, **kwargs: Any) -> PayloadError:
    with pytest.raises(PayloadError) as caught:
        payload.encode_call(args, kwargs, max_bytes=LIMIT)
    assert payload.storable_text(str(caught.value), max_bytes=LIMIT) == str(caught.value)
    return caught.value


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


# Values that are accepted

storable_strings = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | storable_strings
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(storable_strings, inner)
        | st.dictionaries(st.integers(), inner)
    ),
    max_leaves=20,
)


def normalised(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): normalised(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [normalised(item) for item in value]
    return value


@unhurried
@given(values)
def test_any_json_value_comes_back_equal_and_of_the_same_types(value: Any) -> None:
    back = payload.decode(encode(value))
    assert repr(back) == repr(normalised(value))  # repr: 1, 1.0 and True are equal


@unhurried
@given(values)
def test_the_text_is_what_json_dumps_writes(value: Any) -> None:
    expected = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert encode(value) == expected


@unhurried
@given(st.lists(values), st.dictionaries(storable_strings, values))
def test_a_call_comes_back_as_list_and_dict(args: list[Any], kwargs: dict[str, Any]) -> None:
    text = payload.encode_call(tuple(args), kwargs, max_bytes=LIMIT)
    assert payload.decode_call(text) == (normalised(args), normalised(kwargs))


@unhurried
@given(st.recursive(leaves | st.text() | st.floats(), st.lists, max_leaves=10))
def test_what_is_accepted_holds_nothing_a_database_refuses(value: Any) -> None:
    try:
        text = encode(value)
    except PayloadError:
        return
    text.encode()
    decoded = repr(payload.decode(text))
    assert "\\x00" not in decoded.replace("\\\\", "")


@pytest.mark.parametrize(
    "value",
    [2**70, -(2**70), 10**4300 - 1, -0.0, 1e308, 5e-324, "\\u0000", "\\\\u0000", "\x01\x7f", "😀"],
)
def test_odd_but_good_values_survive(value: Any) -> None:
    assert repr(payload.decode(encode([value]))) == repr([value])


def test_text_is_not_escaped_to_ascii() -> None:
    assert encode({"name": "Жанна"}) == '{"name":"Жанна"}'


def test_keys_become_what_json_dumps_makes_of_them() -> None:
    assert encode({1: 0, None: 0, 2.5: 0}) == '{"1":0,"null":0,"2.5":0}'
    assert encode({True: 1}) == '{"true":1}'


class Colour(enum.IntEnum):
    RED = 1


class Size(enum.StrEnum):
    LARGE = "large"


class Ratio(float):
    def __repr__(self) -> str:
        raise AssertionError("code of the value's class was called")

    __str__ = __float__ = __repr__  # type: ignore[assignment]


class Point(NamedTuple):
    x: int
    y: int


class Loud(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise AssertionError("code of the value's class was called")

    __repr__ = __hash__ = encode = __str__  # type: ignore[assignment]


def test_subclasses_of_str_int_and_float_become_the_plain_value() -> None:
    value = [Colour.RED, Size.LARGE, Ratio(0.5), Loud("x"), {Colour.RED: 1, Size.LARGE: 2}]
    assert encode(value) == '[1,"large",0.5,"x",{"1":1,"large":2}]'


def test_subclasses_of_containers_are_read_by_iteration() -> None:
    ordered = OrderedDict(a=1, b=2)
    ordered.move_to_end("a")
    assert encode([ordered, Point(1, 2), Counter("aa")]) == '[{"b":2,"a":1},[1,2],{"a":2}]'


def test_one_object_in_two_places_is_not_a_cycle() -> None:
    shared = {1: "a"}
    assert encode([shared, shared]) == '[{"1":"a"},{"1":"a"}]'


# Values that are refused


@pytest.mark.parametrize(
    ("args", "kwargs", "path"),
    [
        ([{"price": decimal.Decimal(1)}], {}, "args[0].price"),
        ([1, [2, (3, b"")]], {}, "args[1][1][1]"),
        ([], {"when": [1, 2, 3, datetime.time()]}, "kwargs.when[3]"),
        ([], {"order": {"unit price": math.nan}}, 'kwargs.order["unit price"]'),
        ([{1: {True: "\x00"}}], {}, 'args[0]["1"].true'),
        ([], {"when": {"a\x00": 1}}, "kwargs.when"),
    ],
)
def test_a_refusal_names_the_path_of_the_culprit(
    args: list[Any],
    kwargs: dict[str, Any],
    path: str,
) -> None:
    error = refusal(*args, **kwargs)
    assert error.path == path
    assert path in str(error)


@pytest.mark.parametrize(
    "number",
    [math.nan, math.inf, -math.inf, pytest.param(1e308 * 10, id="overflow")],
)
def test_a_float_that_is_not_finite_is_refused(number: float) -> None:
    assert "args[0] must be a finite number" in str(refusal(number))
    assert "a key of args[0] must be a finite number" in str(refusal({number: 1}))


def test_nul_is_refused_in_texts_and_keys() -> None:
    assert str(refusal("a\x00b")) == (
        "args[0] must hold no NUL character, got 'a\\x00b' ('\\x00' at index 1). "
        'Remove it: value.replace("\\0", "").'
    )
    assert "a key of args[0] must hold no NUL" in str(refusal({"a\x00b": 1}))


def test_a_lone_surrogate_is_refused_in_texts_and_keys() -> None:
    assert "args[0] must hold no lone surrogate" in str(refusal("é" * 500 + "\udc80"))
    assert "a key of args[0] must hold no lone surrogate" in str(refusal({"\ud800": 1}))


def test_an_integer_beyond_the_limit_of_digits_is_refused_without_writing_it_out() -> None:
    expected = "args[0] must be an integer of at most 4300 digits, got one of about 5000."
    assert str(refusal(10**5000)).startswith(expected)
    assert "a key of args[0] must be an integer" in str(refusal({10**5000: 1}))


@pytest.fixture
def int_digits() -> Iterator[None]:
    before = sys.get_int_max_str_digits()
    yield
    sys.set_int_max_str_digits(before)


@pytest.mark.usefixtures("int_digits")
@pytest.mark.parametrize("limit", [0, 10_000])
def test_a_raised_limit_of_digits_does_not_let_through_what_a_worker_cannot_read(
    limit: int,
) -> None:
    sys.set_int_max_str_digits(limit)
    assert "at most 4300 digits" in str(refusal(10**5000))


@pytest.mark.usefixtures("int_digits")
def test_a_lowered_limit_of_digits_is_an_error_with_a_path_too() -> None:
    sys.set_int_max_str_digits(640)
    assert "at most 640 digits" in str(refusal(10**1000))
    with pytest.raises(PayloadError):
        payload.decode("9" * 1000)


@pytest.mark.parametrize(
    ("value", "came", "hint"),
    [
        (decimal.Decimal("1.10"), "got decimal.Decimal Decimal('1.10')", "str(value)"),
        (uuid.UUID(int=1), "got uuid.UUID UUID('00000000-", "str(value)"),
        (datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), "2026, 1, 2", "value.isoformat()"),
        (datetime.timedelta(1), "days=1", "value.total_seconds()"),
        ({1, 2}, "an instance of builtins.set", "sorted(value)"),
        (b"x" * 1000, "builtins.bytes b'xxx", "base64"),
        (object(), "an instance of builtins.object", "str(value)"),
        (ValueError("x"), "an instance of builtins.ValueError", "str(value)"),
        (print, "an instance of builtins.", "str(value)"),
        ((n for n in "ab"), "an instance of builtins.generator", "list(value)"),
    ],
)
def test_a_type_that_json_lacks_is_named_with_what_to_do(value: Any, came: str, hint: str) -> None:
    error = refusal(value)
    assert isinstance(error, PayloadTypeError)
    assert isinstance(error, TypeError)
    assert came in str(error)
    assert hint in str(error)
    assert len(str(error)) < 400


def test_a_lazy_translation_is_refused_with_the_way_to_resolve_it() -> None:
    functional = pytest.importorskip("django.utils.functional")
    lazy = functional.lazystr("x")
    assert "Use str(value), in the language" in str(refusal(lazy))


def test_a_lazy_object_is_refused_without_being_evaluated() -> None:
    functional = pytest.importorskip("django.utils.functional")

    def evaluate() -> str:
        raise AssertionError("evaluated")

    assert "stands for" in str(refusal(functional.SimpleLazyObject(evaluate)))


def test_a_model_instance_is_refused_with_a_hint_to_its_key() -> None:
    base = type("Model", (), {"__module__": "django.db.models.base"})
    order = type("Order", (base,), {"__module__": "shop.models", "__repr__": _fail})()
    assert str(refusal(order)).endswith(
        "got an instance of shop.models.Order. Use value.pk, and load the row where it is read.",
    )


def _fail(self: object) -> str:
    raise AssertionError("code of the value's class was called")


def test_keys_that_become_equal_are_refused() -> None:
    assert "got '1' twice" in str(refusal({1: "a", "1": "b"}))
    assert "got 'true' twice" in str(refusal({True: "a", "true": "b"}))


def test_a_key_of_another_type_is_refused() -> None:
    error = refusal({(1, 2): 3})
    assert isinstance(error, PayloadTypeError)
    assert "a key of args[0] must be a str, got an instance of builtins.tuple" in str(error)


def test_depth_is_counted_within_each_argument() -> None:
    deepest, deeper = nested(payload.MAX_DEPTH), nested(payload.MAX_DEPTH + 1)
    assert payload.decode(encode(deepest)) == deepest
    payload.encode_call([deepest], {"a": deepest}, max_bytes=LIMIT)
    assert "at most 64 levels" in str(refusal(deeper))
    assert "at most 64 levels" in str(refusal(a=deeper))
    with pytest.raises(PayloadError, match="at most 64 levels"):
        encode(deeper)


def test_depth_is_the_same_for_both_passes() -> None:
    for slow in ({1: 1}, {"a": 1}):
        value: Any = slow
        for _ in range(payload.MAX_DEPTH - 1):
            value = [value]
        encode(value)
        payload.encode_call([value], {}, max_bytes=LIMIT)
        with pytest.raises(PayloadError, match="at most 64 levels"):
            encode([value])
        refusal([value])


def test_very_deep_and_endless_values_are_refused_by_name() -> None:
    endless: list[Any] = []
    endless.append({"self": endless})
    assert refusal(endless).path == "args[0][0].self"
    assert "must not contain itself" in str(refusal(endless))
    assert len(str(refusal(nested(50_000)))) < 300


def test_size_is_counted_in_bytes_and_both_numbers_are_said() -> None:
    assert encode("é" * 10, max_bytes=22) == '"éééééééééé"'
    with pytest.raises(PayloadError) as caught:
        payload.encode("é" * 10, max_bytes=21, root="result", what="result")
    assert "the result must be at most 21 bytes of JSON, got 22 bytes." in str(caught.value)
    assert caught.value.path == "result"


# Reading


@pytest.mark.parametrize(
    "text",
    [
        *("", "nul", "{", "[1,]", "NaN", "[Infinity]", "1e999", "9" * 5000, "\ufeff1"),
        *("[" * 200_000, None, b"[]", 1, object()),
    ],
    ids=lambda text: repr(text)[:12],
)
def test_rubbish_in_a_row_is_a_payload_error(text: Any) -> None:
    with pytest.raises(PayloadError):
        payload.decode(text)
    with pytest.raises(PayloadError):
        payload.decode_call(text)


@pytest.mark.parametrize("text", ["[1]", " [1]", "\n\t[1]\r\n ", "[1] "])
def test_space_around_a_value_that_was_edited_means_nothing(text: str) -> None:
    assert payload.decode(text) == [1]


@unhurried
@given(st.text())
def test_no_text_makes_reading_fail_otherwise(text: str) -> None:
    with contextlib.suppress(PayloadError):
        payload.decode(text)


@pytest.mark.parametrize(
    "call",
    [
        [],
        None,
        {"args": []},
        {"args": {}, "kwargs": {}},
        {"args": [], "kwargs": []},
        {"args": [], "kwargs": {}, "more": 1},
    ],
)
def test_a_call_of_another_shape_is_refused(call: Any) -> None:
    with pytest.raises(PayloadError, match="a stored call must be"):
        payload.decode_call(json.dumps(call))


def test_a_refused_row_does_not_put_its_content_into_the_message() -> None:
    for text in ('{"args": ["secret"], ', '{"args": ["secret"]}', '["secret"]'):
        with pytest.raises(PayloadError) as caught:
            payload.decode_call(text)
        assert "secret" not in str(caught.value)


# Texts


@unhurried
@given(st.text(), st.integers(0, 100))
def test_any_text_becomes_storable_within_the_limit(text: str, max_bytes: int) -> None:
    stored = payload.storable_text(text, max_bytes=max_bytes)
    assert len(stored.encode()) <= max_bytes
    assert "\x00" not in stored
    assert payload.storable_text(stored, max_bytes=max_bytes) == stored


@unhurried
@given(storable_strings)
def test_a_good_text_within_the_limit_is_kept(text: str) -> None:
    assert payload.storable_text(text, max_bytes=len(text.encode())) == text


def test_nul_and_surrogates_stay_visible() -> None:
    assert payload.storable_text("a\x00b\udc80", max_bytes=99) == r"a\x00b\udc80"


@pytest.mark.parametrize("unit", ["x", "é", "😀", "\x00", "\udc80"])
def test_a_huge_text_keeps_head_and_tail_around_a_mark(unit: str) -> None:
    stored = payload.storable_text(f"head{unit * 5_000_000}tail", max_bytes=1000)
    assert stored.startswith("head")
    assert stored.endswith("tail")
    assert "… [truncated: " in stored
    assert 990 <= len(stored.encode()) <= 1000


def test_the_mark_says_how_many_bytes_there_were() -> None:
    stored = payload.storable_text("x" * 20_000_000, max_bytes=65_536)
    assert "… [truncated: 20000000 bytes] …" in stored


# Errors


def raised(exc: BaseException) -> BaseException:
    try:
        raise exc
    except BaseException as error:  # noqa: BLE001 - any exception is a case here
        return error


def described(exc: BaseException, max_bytes: int = 65_536) -> payload.ErrorText:
    error = payload.describe_error(exc, max_bytes=max_bytes)
    texts = (error.exception_class_path, error.message, error.traceback)
    assert sum(len(text.encode()) for text in texts) <= max_bytes
    assert not any("\x00" in text for text in texts)
    return error


def test_an_error_is_its_class_path_message_and_traceback() -> None:
    error = described(raised(ValueError("no such order")))
    assert error.exception_class_path == "builtins.ValueError"
    assert error.message == "no such order"
    assert error.traceback.startswith("Traceback (most recent call last):\n")
    assert "raise exc" in error.traceback
    assert error.traceback.endswith("ValueError: no such order\n")
    assert not error.cut


def test_system_exit_keeps_its_code() -> None:
    error = described(raised(SystemExit(3)))
    assert (error.exception_class_path, error.message) == ("builtins.SystemExit", "3")


@unhurried
@given(st.text(), st.integers(0, 3000))
def test_any_message_is_described_storably(message: str, max_bytes: int) -> None:
    described(raised(ValueError(message)), max_bytes)


def test_a_huge_message_hides_neither_the_frames_nor_the_class() -> None:
    error = described(raised(ValueError("x" * 20_000_000)))
    assert error.cut
    assert "truncated: 20000000 bytes" in error.message
    assert "raise exc" in error.traceback
    assert "ValueError: xxx" in error.traceback


@pytest.mark.parametrize("fault", [ValueError, SystemExit, KeyboardInterrupt, RecursionError])
def test_an_exception_whose_str_raises_is_described(fault: type[BaseException]) -> None:
    def fail(self: object) -> str:
        raise fault

    cls = type("Broken", (Exception,), {"__str__": fail, "__repr__": fail, "__module__": "shop"})
    error = described(raised(cls()))
    assert error.exception_class_path == "shop.Broken"
    assert error.message == f"<str() of the exception raised builtins.{fault.__name__}>"
    assert "raise exc" in error.traceback


def test_an_exception_whose_attributes_raise_keeps_its_frames() -> None:
    class Hostile(Exception):
        def __getattribute__(self, name: str) -> Any:
            raise SystemExit(name)

    error = described(raised(Hostile("x")))
    assert error.message == "x"
    assert 'test_payload.py"' in error.traceback


def test_an_odd_class_is_named_without_asking_it() -> None:
    class Meta(type):
        def __getattribute__(cls, name: str) -> Any:
            raise RuntimeError(name)

    odd = Meta("Odd", (Exception,), {"__module__": 7, "__qualname__": "a\x00" + "b" * 1000})
    error = described(raised(odd()))
    assert error.exception_class_path.startswith(r"a\x00b")
    assert len(error.exception_class_path.encode()) <= 255
    assert 'test_payload.py"' in error.traceback


def test_chains_groups_and_cycles_are_described() -> None:
    first, second = ValueError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    assert "direct cause" in described(raised(first)).traceback

    group: BaseException = ExceptionGroup("many", [ValueError("one"), TypeError("two")])
    error = described(raised(group))
    assert error.message == "many (2 sub-exceptions)"
    assert "ValueError: one" in error.traceback
    for _ in range(3000):
        group = BaseExceptionGroup("deep", [group])
    assert described(raised(group)).message == "deep (1 sub-exception)"


def test_a_long_chain_is_cut() -> None:
    error: BaseException = ValueError("0")
    for number in range(1, 2000):
        following = ValueError(str(number))
        following.__cause__ = error
        error = following
    assert described(raised(error)).traceback.endswith("ValueError: 1999\n")


def test_endless_recursion_is_described() -> None:
    def even(n: int) -> int:
        return odd(n + 1)

    def odd(n: int) -> int:
        return even(n + 1)

    with pytest.raises(RecursionError) as caught:
        even(0)
    error = described(caught.value)
    assert error.exception_class_path == "builtins.RecursionError"
    assert "RecursionError: maximum recursion" in error.traceback


def test_an_error_that_takes_two_arguments_is_not_rebuilt() -> None:
    class TwoArguments(Exception):
        def __init__(self, a: int, b: int) -> None:
            super().__init__(a, b)

    assert described(raised(TwoArguments(1, 2))).message == "(1, 2)"


@pytest.mark.parametrize("max_bytes", [0, 1, 20, 100])
def test_a_tiny_limit_is_kept(max_bytes: int) -> None:
    described(raised(ValueError("x" * 1000)), max_bytes)
