"""`conf`: every setting's default and rule, the exact messages, and that a change is seen."""

from __future__ import annotations

import math
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_workqueue import conf
from django_workqueue.backoff import Backoff

DEFAULTS = {
    "DATABASE": "default",
    "LEASE_SECONDS": 30,
    "POLL_SECONDS": 1.0,
    "SWEEP_SECONDS": 10,
    "GRACE_SECONDS": 30,
    "MAX_ATTEMPTS": 3,
    "BACKOFF": {"base": 5, "factor": 2, "maximum": 3600, "jitter": True},
    "RESULT_TTL_SECONDS": 86400,
    "DEAD_TTL_SECONDS": 7776000,
    "UNKNOWN_TASK_SECONDS": 86400,
    "PAYLOAD_MAX_BYTES": 1048576,
    "RESULT_MAX_BYTES": 1048576,
    "ERROR_MAX_BYTES": 65536,
    "NOTIFY": True,
    "OUTBOX_DATABASES": ("default",),
    "TASK_MODULES": ("tasks",),
    "REDACT": (),
}

SECONDS = [key for key in DEFAULTS if key.endswith("_SECONDS")]
BYTES = [key for key in DEFAULTS if key.endswith("_BYTES")]
ABOVE_ZERO = ["LEASE_SECONDS", "POLL_SECONDS", "SWEEP_SECONDS", "DEAD_TTL_SECONDS"]
LISTS = ["OUTBOX_DATABASES", "TASK_MODULES", "REDACT"]


def messages(raw: object, **options: Any) -> list[str]:
    return [str(problem) for problem in conf.problems(raw, **options)]


def test_without_workqueue_every_default_is_in_force() -> None:
    with override_settings():
        if hasattr(django_settings, "WORKQUEUE"):
            delattr(django_settings, "WORKQUEUE")
        assert conf.current() == conf.Settings()


@override_settings(WORKQUEUE=DEFAULTS)
def test_the_defaults_written_out_are_legal_and_equal_no_setting_at_all() -> None:
    assert conf.current() == conf.Settings()


def test_every_field_has_a_rule_and_every_rule_a_field() -> None:
    assert conf.KEYS == tuple(DEFAULTS) == tuple(conf._RULES)


@override_settings(
    WORKQUEUE={"BACKOFF": {"base": 1, "jitter": False}, "REDACT": ["card"], "LEASE_SECONDS": 2.5}
)
def test_values_are_parsed_into_what_cannot_be_changed() -> None:
    current = conf.current()

    assert current.backoff == Backoff(base=1, jitter=False)
    assert current.redact == ("card",)
    assert current.lease_seconds == 2.5


def test_an_override_is_seen_and_undone() -> None:
    with override_settings(WORKQUEUE={"MAX_ATTEMPTS": 7}):
        assert conf.current().max_attempts == 7
        with override_settings(WORKQUEUE={"MAX_ATTEMPTS": 8}):
            assert conf.current().max_attempts == 8
        assert conf.current().max_attempts == 7


def test_a_dict_changed_in_place_is_seen() -> None:
    raw: dict[str, object] = {"MAX_ATTEMPTS": 7, "REDACT": []}
    with override_settings(WORKQUEUE=raw):
        assert conf.current().max_attempts == 7
        raw["MAX_ATTEMPTS"] = 8
        assert conf.current().max_attempts == 8
        raw["MAX_ATTEMPTS"] = True
        with pytest.raises(ImproperlyConfigured):
            conf.current()


@override_settings(WORKQUEUE={"MAX_ATTEMPTS": 7})
def test_unchanged_settings_are_parsed_once() -> None:
    assert conf.current() is conf.current()


@override_settings(WORKQUEUE={"LEASE_SECONDS": -5, "MAX_ATEMPTS": 3, "DATABASE": "queue"})
def test_current_raises_with_every_problem_at_every_call() -> None:
    for _ in range(2):
        with pytest.raises(ImproperlyConfigured) as caught:
            conf.current()
        lines = str(caught.value).splitlines()
        assert [line.split(" ")[0] for line in lines] == [
            'WORKQUEUE["LEASE_SECONDS"]',
            'WORKQUEUE["MAX_ATEMPTS"]',
            'WORKQUEUE["DATABASE"]',
        ]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (
            {"LEASE_SECONDS": -5},
            'WORKQUEUE["LEASE_SECONDS"] must be above 0, got -5. '
            "Set it above the longest pause a worker may have.",
        ),
        (
            {"LEASE_SECONDS": 315360000},
            'WORKQUEUE["LEASE_SECONDS"] must be at most 86400, got 315360000. '
            "Set it above the longest pause a worker may have.",
        ),
        (
            {"MAX_ATEMPTS": 3},
            'WORKQUEUE["MAX_ATEMPTS"] is not a setting. Did you mean "MAX_ATTEMPTS"?',
        ),
        (
            {"lease_seconds": 3},
            'WORKQUEUE["lease_seconds"] is not a setting. Did you mean "LEASE_SECONDS"?',
        ),
        (
            {5: 3},
            f"WORKQUEUE[5] is not a setting. The settings are {', '.join(DEFAULTS)}.",
        ),
        (
            {"OUTBOX_DATABASES": "default"},
            'WORKQUEUE["OUTBOX_DATABASES"] must be a list or tuple of database aliases, '
            "got 'default'. Write (\"default\",) with its comma, or [] for no outbox.",
        ),
        (
            {"TASK_MODULES": ["tasks", "jobs-now"]},
            'WORKQUEUE["TASK_MODULES"] must be a list or tuple of dotted module names and nothing '
            "else, got ['tasks', 'jobs-now']. Write (\"tasks\",) with its comma.",
        ),
        (
            {"REDACT": ["card", "card"]},
            "WORKQUEUE[\"REDACT\"] must be a list of different argument names, got ['card', "
            "'card']. Write (\"password\",) with its comma.",
        ),
        (
            {"RESULT_TTL_SECONDS": "86400"},
            "WORKQUEUE[\"RESULT_TTL_SECONDS\"] must be a number of seconds, or None, got '86400'. "
            "Use 0 to keep no results and None to keep them for ever.",
        ),
        (
            {"PAYLOAD_MAX_BYTES": 1023},
            'WORKQUEUE["PAYLOAD_MAX_BYTES"] must be 1024 or more, got 1023. '
            "Keep large data elsewhere and pass its key to the task.",
        ),
        (
            {"BACKOFF": 5},
            'WORKQUEUE["BACKOFF"] must be a backoff that can be used, got 5. There, a backoff '
            "setting must be a dict with keys of base, factor, maximum, jitter, got 5. "
            'Write {"base": 5, "maximum": 3600}.',
        ),
        (
            {"NOTIFY": 1},
            'WORKQUEUE["NOTIFY"] must be True or False, got 1. '
            "Use False behind a pooler in transaction mode: workers then poll.",
        ),
        (
            [("NOTIFY", True)],
            "WORKQUEUE must be a dict, got [('NOTIFY', True)]. Remove it to take every default.",
        ),
        (None, "WORKQUEUE must be a dict, got None. Remove it to take every default."),
    ],
)
def test_a_message_says_what_must_hold_what_came_and_what_to_do(raw: object, message: str) -> None:
    assert messages(raw) == [message]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (
            {"DATABASE": "defalt"},
            "WORKQUEUE[\"DATABASE\"] must be in DATABASES, got 'defalt'. "
            "DATABASES has 'default', 'replica'. Did you mean \"default\"?",
        ),
        (
            {"OUTBOX_DATABASES": ["default", "orders"]},
            "WORKQUEUE[\"OUTBOX_DATABASES\"] must name only aliases in DATABASES, got 'orders'. "
            "DATABASES has 'default', 'replica'.",
        ),
    ],
)
def test_a_database_that_is_not_configured_is_named_with_those_that_are(
    raw: object, message: str
) -> None:
    assert messages(raw, aliases=("default", "replica")) == [message]
    assert messages(raw) == []


@pytest.mark.parametrize("key", SECONDS)
@pytest.mark.parametrize(
    "value",
    [
        True,
        "5",
        [],
        math.nan,
        math.inf,
        -math.inf,
        -1,
        10**400,
        pytest.param(10**5000, id="5001 digits"),
    ],
)
def test_seconds_are_finite_numbers_in_range(key: str, value: object) -> None:
    (problem,) = conf.problems({key: value})

    assert problem.kind == "illegal_value"
    assert problem.message.startswith(f'WORKQUEUE["{key}"] must be ')
    assert len(problem.value) <= conf.SHOWN_CHARS


@pytest.mark.parametrize("key", SECONDS)
def test_zero_seconds_are_legal_only_where_zero_has_a_meaning(key: str) -> None:
    assert bool(conf.problems({key: 0})) == (key in ABOVE_ZERO)


@pytest.mark.parametrize("key", SECONDS)
def test_none_is_legal_only_for_a_retention(key: str) -> None:
    assert bool(conf.problems({key: None})) == (not key.endswith("_TTL_SECONDS"))


@pytest.mark.parametrize("key", [*BYTES, "MAX_ATTEMPTS"])
@pytest.mark.parametrize(
    "value", [True, 0, -1, 2048.0, math.nan, "2048", None, pytest.param(10**5000, id="5001 digits")]
)
def test_counts_are_whole_numbers_in_range(key: str, value: object) -> None:
    assert len(conf.problems({key: value})) == 1


@pytest.mark.parametrize("key", BYTES)
def test_byte_limits_include_their_bounds(key: str) -> None:
    assert conf.problems({key: conf.MIN_BYTES}) == []
    assert conf.problems({key: conf.MAX_BYTES}) == []
    assert len(conf.problems({key: conf.MAX_BYTES + 1})) == 1


def test_one_attempt_is_legal() -> None:
    assert conf.problems({"MAX_ATTEMPTS": 1}) == []


@pytest.mark.parametrize("key", LISTS)
@pytest.mark.parametrize(
    "value",
    ["tasks", pytest.param(b"tasks", id="bytes"), None, 5, {"tasks"}, [5], [""], [["tasks"]]],
)
def test_lists_of_names_hold_names_only(key: str, value: object) -> None:
    assert len(conf.problems({key: value})) == 1


@pytest.mark.parametrize("key", LISTS)
def test_lists_of_names_may_be_empty(key: str) -> None:
    assert conf.problems({key: []}) == []


@pytest.mark.parametrize("value", [{"base": -1}, {"base": "x"}, {"bass": 5}, {5: 5}])
def test_a_backoff_that_the_policy_refuses_is_refused_with_its_reason(value: object) -> None:
    (problem,) = conf.problems({"BACKOFF": value})

    assert problem.message.startswith('WORKQUEUE["BACKOFF"] must be a backoff that can be used, ')
    assert "of a backoff" in problem.hint


def test_a_long_value_is_cut() -> None:
    (problem,) = conf.problems({"NOTIFY": "x" * 500})

    assert problem.message.endswith(f"got '{'x' * 58}….")


def test_an_option_is_judged_by_the_rule_of_the_setting_it_overrides() -> None:
    assert conf.problem("LEASE_SECONDS", 600.0) is None
    assert conf.problem("LEASE_SECONDS", 0) == conf.problems({"LEASE_SECONDS": 0})[0]
