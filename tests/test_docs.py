"""The documentation says what the code has, whole: nothing is missing, nothing made up."""

import ast
import inspect
import re
from argparse import ArgumentParser
from dataclasses import asdict, fields
from typing import Any

import pytest
from django.apps import apps
from django.core.management import BaseCommand, get_commands, load_command_class
from django.db.models import Model

from django_workqueue import (
    backoff,
    checks,
    conf,
    exceptions,
    locks,
    queues,
    states,
    tasks,
    testing,
)
from django_workqueue.conf import KEYS
from django_workqueue.contrib.celery import (
    AsyncResult,
    SharedTask,
    celery_destination,
    declaring,
)
from django_workqueue.contrib.webhook import webhook_destination
from django_workqueue.store import Swept
from tests.docpages import DOCS, ROOT, names, page, rows

COMMANDS = sorted(name for name, app in get_commands().items() if app == "django_workqueue")
MODELS = sorted(apps.get_app_config("workqueue").get_models(), key=lambda model: model.__name__)
ERRORS = sorted(
    name
    for name, value in vars(exceptions).items()
    if inspect.isclass(value) and value.__module__ == exceptions.__name__
)
INTERNAL_CONTEXT_FIELDS = {"charged_attempt", "ends", "write_progress"}


# The reference is complete


def setting_rows() -> dict[str, list[str]]:
    found = {}
    for row in rows(page("reference/settings.md").text):
        linked = re.match(r"\[`([A-Z_]+)`\]", row[0])
        if linked:
            found[linked[1]] = row
    return found


def test_every_setting_has_a_row_and_a_section() -> None:
    settings = page("reference/settings.md")
    assert set(setting_rows()) == set(KEYS)
    for key in KEYS:
        assert settings.section(f"`{key}`").strip()


@pytest.mark.parametrize("key", KEYS)
def test_default_of_a_setting_is_the_one_in_force(key: str) -> None:
    told = ast.literal_eval(setting_rows()[key][2].strip("`"))
    assert conf.problem(key, told) is None
    default = getattr(conf.Settings(), key.lower())
    assert (backoff.from_setting(told) if key == "BACKOFF" else told) == default


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_in_its_table(name: str) -> None:
    section = page("reference/commands.md").section(f"`{name}`")
    told = {option.split()[0] for option in names(section) if option.startswith("--")}
    assert told == own_options(name)


def own_options(name: str) -> set[str]:
    """Return the options of a command that are not Django's own."""
    everywhere = BaseCommand().create_parser("manage.py", name)
    known = {option for action in everywhere._actions for option in action.option_strings}
    parser = load_command_class("django_workqueue", name).create_parser("manage.py", name)
    parsers: list[ArgumentParser] = [parser]
    for action in parser._actions:
        # Of its subcommands too.
        parsers += dict(action.choices or {}).values() if action.dest == "subcommand" else ()
    return {
        max(action.option_strings, key=len)
        for each in parsers
        for action in each._actions
        if action.option_strings and not known & set(action.option_strings)
    }


def test_every_check_has_a_row_and_an_anchor() -> None:
    text = page("reference/checks.md")
    told = {
        match[1]: row[1]
        for row in rows(text.text)
        if (match := re.match(r"\[`(workqueue\.\w+)`\]\(#", row[0]))
    }
    assert told == checks.IDS
    for check_id in checks.IDS:
        assert check_id.lower().replace(".", "-") in text.labels
        assert text.section(check_id).strip()


def test_every_error_class_has_an_anchor_and_text() -> None:
    errors = page("reference/errors.md")
    assert {label.removeprefix("error-") for label in errors.labels} == set(ERRORS)
    for name in ERRORS:
        assert re.search(rf"^\(error-{name}\)=\n###? `{name}[(`]", errors.text, re.MULTILINE)


def test_bases_of_an_error_class_are_told() -> None:
    told = page("reference/errors.md")
    for name in ERRORS:
        builtins = {
            base.__name__
            for base in getattr(exceptions, name).__bases__
            if base.__module__ == "builtins" and base is not Exception
        }
        for base in builtins:
            assert f"`{base}`" in told.section(f"`{name}`"), f"{name} is a {base} too"


def test_every_task_option_has_a_row() -> None:
    text = page("reference/tasks.md").section("Options")
    assert names(text) >= tasks.OPTIONS
    unknown = names(text) - tasks.OPTIONS - {"takes_context"}
    assert not unknown, "a row names what is no option"


def test_every_default_of_a_task_option_is_the_code_s() -> None:
    bare = tasks.task(page)
    for row in rows(page("reference/tasks.md").section("Options")):
        name, told = row[0].strip("`"), row[1].strip("`")
        expected = getattr(bare, name)
        shown = "(Exception,)" if expected == (Exception,) else repr(expected).replace("'", '"')
        assert told == shown, name


def test_options_that_no_call_may_change_are_told() -> None:
    text = page("reference/tasks.md").section("Options")
    told = re.search(r"^(.*) belong to the task:", text, re.MULTILINE)
    assert told is not None
    assert set(re.findall(r"`(\w+)`", told[1])) == tasks.OF_THE_TASK


def test_keys_of_a_swept_job_are_told() -> None:
    text = page("reference/commands.md").section("`sweep`")
    told = re.search(r"for each job that was moved (.*)\.$", text, re.MULTILINE)
    assert told is not None
    assert re.findall(r"`(\w+)`", told[1]) == [each.name for each in fields(Swept)]


def test_context_is_told_whole() -> None:
    told = {name.split("(")[0] for name in names(page("reference/tasks.md").section("The context"))}
    public = {name for name in dir(tasks.Context) if not name.startswith("_")}
    assert told == public - INTERNAL_CONTEXT_FIELDS


@pytest.mark.parametrize(
    ("title", "members"),
    [
        ("States of a live job", states.State),
        ("Held reasons", states.HeldReason),
        ("Death reasons", states.DeathReason),
        ("Outcomes of a finished job", states.ResultOutcome),
        ("Lanes", states.Lane),
    ],
)
def test_every_state_and_reason_has_a_row(title: str, members: Any) -> None:
    assert names(page("reference/states.md").section(title)) == {each.value for each in members}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_column_of_a_model_has_a_row(model: type[Model]) -> None:
    tables = page("reference/tables.md")
    section = tables.section(f"`{model.__name__}`")
    assert f"`{model._meta.db_table}`" in section
    told = names(section)
    if "[both](#job-columns)" in section:
        told |= names(tables.section("Columns of live and dead jobs"))
    # An automatic key says nothing.
    columns = {each.name for each in model._meta.concrete_fields}
    assert told == columns - ({"id"} if model.__name__ in {"OutboxKey", "Seen"} else set())


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_permission_of_a_model_has_a_row(model: type[Model]) -> None:
    told = names(page("reference/admin.md").section("Permissions"))
    own = {f"workqueue.{codename}" for codename, _ in model._meta.permissions}
    general = {
        f"workqueue.{verb}_{model._meta.model_name}" for verb in model._meta.default_permissions
    }
    assert own | general <= told


def test_no_permission_is_told_that_is_not_there() -> None:
    there = {
        f"workqueue.{codename}"
        for model in MODELS
        for codename in [
            *(name for name, _ in model._meta.permissions),
            *(f"{verb}_{model._meta.model_name}" for verb in model._meta.default_permissions),
        ]
    }
    assert names(page("reference/admin.md").section("Permissions")) == there


def public(cls: Any) -> set[str]:
    """Return the attributes and methods of *cls* that are its users'."""
    assigned = set(re.findall(r"self\.([a-z]\w*)(?::| =)", inspect.getsource(cls)))
    return {name for name in (*dir(cls), *assigned) if not name.startswith("_")}


def shown(function: Any) -> str:
    """Return a signature as the reference writes it."""
    bare = [
        each.replace(annotation=inspect.Parameter.empty)
        for name, each in inspect.signature(function).parameters.items()
        if name != "self"
    ]
    return str(inspect.Signature(bare)).replace("'", '"')


@pytest.mark.parametrize(
    ("title", "cls", "given"),
    [
        ("Queue(name, using=None)", queues.Queue, {"name", "using"}),
        ("Claim", queues.Claim, set()),
        ("JobView", queues.JobView, set()),
        ("QueueStats", queues.QueueStats, set()),
    ],
)
def test_class_of_the_pull_api_is_told_whole(title: str, cls: Any, given: set[str]) -> None:
    section = page("reference/queues.md").section(f"`{title}`").partition("\n### ")[0]
    told = {name.partition("(")[0]: name for name in names(section)}
    assert set(told) == public(cls) - given
    for name, call in told.items():
        if "(" in call and "…" not in call:
            assert call == name + shown(getattr(cls, name))


def test_arguments_of_enqueue_are_told() -> None:
    told = page("reference/queues.md").section("Arguments of both ways to enqueue")
    for function in (queues.Queue.enqueue, queues.Queue.enqueue_many):
        given = inspect.signature(function).parameters
        defaults = {row[0].strip("`"): row[1].strip("`") for row in rows(told)}
        assert defaults == {
            name: repr(each.default).replace("'", '"')
            for name, each in given.items()
            if each.kind is each.KEYWORD_ONLY
        }


def test_lock_is_told_whole() -> None:
    section = page("reference/locks.md").section(f"`lock{shown(locks.lock)}`")
    told = {name.split("(")[0] for name in names(section)}
    assert told == public(type(locks.lock("any")))


@pytest.mark.parametrize(
    "function",
    [testing.run_jobs, testing.deliver_outbox, testing.fire_schedules, testing.assert_enqueued],
)
def test_function_for_tests_is_told_whole(function: Any) -> None:
    titles = re.findall(r"^## `(\w+)(\(.*\))`$", page("reference/testing.md").text, re.MULTILINE)
    assert dict(titles)[function.__name__] == shown(function).replace("*, ", "")


@pytest.mark.parametrize(
    ("path", "function"),
    [
        ("reference/celery.md", celery_destination),
        ("reference/webhook.md", webhook_destination),
    ],
)
def test_destination_of_contrib_is_told_whole(path: str, function: Any) -> None:
    section = page(path).section(f"`{function.__name__}(name, …)`")
    told = {row[0].strip("`"): row[1].strip("`") for row in rows(section)}
    given = inspect.signature(function).parameters
    options = {name: each for name, each in given.items() if each.kind is each.KEYWORD_ONLY}
    assert set(told) == set(options)
    for name, each in options.items():
        if each.default is each.empty:
            assert not told[name]
        else:
            assert value_of(told[name]) == each.default, name


def test_shared_task_is_told_whole() -> None:
    section = page("reference/celery.md").section("`shared_task(…)`")
    options, members = section.split("### The task")
    told = {row[0].strip("`"): value_of(row[1].strip("`")) for row in rows(options)}
    assert told == asdict(declaring.Options())
    already_so = re.search(r"^Accepted, .*: (.*)\.$", options, re.MULTILINE)
    refused = re.search(r"^Refused by name: (.*);", options, re.MULTILINE)
    assert already_so is not None
    assert refused is not None
    assert set(re.findall(r"`(\w+)`", already_so[1])) == declaring.ALREADY_SO
    assert set(re.findall(r"`(\w+)`", refused[1])) == set(declaring.UNSUPPORTED)
    told_members = {name.partition("(")[0] for name in names(members)}
    assert told_members == public(SharedTask) | {"task"}


def test_celery_result_is_told_whole() -> None:
    section = page("reference/celery.md").section("`AsyncResult(id)`")
    told = {name.partition("(")[0]: name for name in names(section)}
    assert set(told) == public(AsyncResult)
    assert told["get"] == "get" + shown(AsyncResult.get)


def value_of(text: str) -> Any:
    """Return the value that the reference writes: a literal, or a Backoff."""
    return eval(text, {"Backoff": backoff.Backoff})


# What is explained is what the code does


def test_every_transition_is_explained_and_drawn() -> None:
    told = names(page("explanation/states.md").text)
    assert told == set(states.TRANSITIONS)
    drawing = (DOCS / "explanation" / "states.svg").read_text(encoding="utf-8")
    drawn = set(re.findall(r"(\w+): ", re.sub(r"<[^>]*>", "\n", drawing)))
    assert drawn >= set(states.TRANSITIONS)


def test_django_statuses_are_those_of_the_code() -> None:
    text = page("reference/tasks.md").section("The result")
    told = {name: row[1] for row in rows(text) for name in re.findall(r"`([^`]+)`", row[0])}
    for name, status in states.DJANGO_STATUS.items():
        assert name in told[status]


def test_table_of_delays_is_what_the_code_plans() -> None:
    table = rows(page("howto/retries.md").section("The default delays"))
    default = conf.Settings().backoff
    planned = backoff.planned(None, len(table) + 1, default)
    assert planned is not None
    total = 0.0
    for number, (attempt, delay, most, _) in enumerate(table, start=1):
        total += planned[number - 1]
        least = default.delay_seconds(number, random=lambda: 0.0)
        assert int(attempt) == number
        assert delay == f"{least:g} to {planned[number - 1]:g}"
        assert float(most) == total
    assert planned[-1] == default.maximum, "the table must reach the maximum"


def test_oldest_servers_are_those_of_the_check() -> None:
    told = dict(rows(page("reference/checks.md").section("workqueue.E007")))
    minimums = {name: ".".join(map(str, v)) for name, v in checks.MINIMUM_VERSIONS.items()}
    assert told == minimums


def test_every_log_event_that_is_told_is_one_of_the_code() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "django_workqueue").rglob("*.py"))
    section = page("reference/commands.md").section("`runworker`")
    told = names(section[section.index("| event |") :])
    assert told
    assert [event for event in told if f'"{event}"' not in source] == []
