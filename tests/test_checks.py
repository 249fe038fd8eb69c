"""`checks`: exact messages, each id once, and no question to a database that was not named."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import django
import pytest
from django.core import checks as django_checks
from django.core.checks.registry import CheckRegistry
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import NotSupportedError, connection, connections
from django.test import modify_settings, override_settings

from django_workqueue import checks
from django_workqueue.schedules import schedule
from tests.app.tasks import add

OURS = {"default": {"BACKEND": checks.BACKEND, "QUEUES": []}}
BELOW_6 = django.VERSION < (6, 0)
DUMMY = f"{'django_tasks' if BELOW_6 else 'django.tasks'}.backends.dummy.DummyBackend"
ALL = (
    checks.check_settings,
    checks.check_tasks_api,
    checks.check_tasks,
    checks.check_options,
    checks.check_store,
    checks.check_transactions,
    checks.check_outbox,
    checks.check_data,
    checks.check_server,
    checks.check_schedules,
)

# Stands where the queue's own backend is, so that a project's subclass of it can be made here.
SubclassOfOurs = type(
    "SubclassOfOurs",
    (type("WorkQueueBackend", (), {"__module__": "django_workqueue.backend"}),),
    {},
)


def shown(messages: list[django_checks.CheckMessage]) -> list[tuple[str | None, str, str | None]]:
    return [(message.id, message.msg, message.hint) for message in messages]


def names(registered: Iterable[Any]) -> list[str]:
    return sorted(check.__name__ for check in registered)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> CheckRegistry:
    """An empty registry in the place of Django's."""
    registry = CheckRegistry()
    monkeypatch.setattr(django_checks, "register", registry.register)
    return registry


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The OPTIONS of the queue's database alone, to be changed for one test."""
    options = dict(connection.settings_dict["OPTIONS"])
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)
    return options


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put a server with the given product, version and features in the place of the queue's."""

    def put(vendor: str, version: tuple[int, ...], **facts: Any) -> None:
        features = {
            "has_select_for_update": True,
            "has_select_for_update_skip_locked": True,
            **facts.pop("features", {}),
        }
        wrapper = SimpleNamespace(
            alias="default",
            vendor=vendor,
            get_database_version=lambda: version,
            features=SimpleNamespace(**features),
            **facts,
        )
        monkeypatch.setattr(checks, "_queue_connection", lambda: wrapper)

    return put


@override_settings(TASKS=OURS)
@pytest.mark.django_db
def test_this_projects_settings_pass_every_check() -> None:
    assert [message for check in ALL for message in check(databases=["default"])] == []


def test_register_gives_django_each_check_once(registry: CheckRegistry) -> None:
    checks.register()
    checks.register()

    assert names(registry.registered_checks) == sorted(check.__name__ for check in ALL)


def test_a_server_is_asked_only_when_the_alias_of_the_queue_is_named(
    registry: CheckRegistry, server: Callable[..., None]
) -> None:
    checks.register()
    server("postgresql", (9,), display_name="PostgreSQL")

    def asked(databases: list[str] | None) -> bool:
        found = registry.run_checks(databases=databases)
        return "workqueue.E007" in {message.id for message in found}

    assert not asked(None)
    assert not asked([])
    assert not asked(["other"])
    assert asked(["other", "default"])


def test_asking_for_this_apps_checks_by_their_tag_asks_no_server(
    registry: CheckRegistry, server: Callable[..., None]
) -> None:
    checks.register()
    server("postgresql", (9,), display_name="PostgreSQL")

    found = registry.run_checks(tags=[checks.TAG])

    assert "workqueue.E007" not in {message.id for message in found}


def test_the_table_of_ids_has_exactly_the_ids_that_the_checks_give() -> None:
    _, _, code = inspect.getsource(checks).partition("PROBLEM_IDS: Final")

    assert sorted(set(re.findall(r'"(workqueue\.[EW]\d{3})"', code))) == sorted(checks.IDS)


@override_settings(WORKQUEUE={"LEASE_SECONDS": -5, "MAX_ATEMPTS": 3, "DATABASE": "othr"})
def test_each_problem_of_the_settings_is_an_error_with_its_fix_as_the_hint() -> None:
    messages = checks.check_settings()

    assert {message.level for message in messages} == {django_checks.ERROR}
    assert shown(messages) == [
        (
            "workqueue.E003",
            'WORKQUEUE["LEASE_SECONDS"] must be above 0, got -5.',
            "Set it above the longest pause a worker may have.",
        ),
        (
            "workqueue.E002",
            'WORKQUEUE["MAX_ATEMPTS"] is not a setting.',
            'Did you mean "MAX_ATTEMPTS"?',
        ),
        (
            "workqueue.E004",
            "WORKQUEUE[\"DATABASE\"] must be in DATABASES, got 'othr'.",
            "DATABASES has 'default', 'other'. Did you mean \"other\"?",
        ),
    ]


@override_settings(WORKQUEUE=["DATABASE"])
def test_a_setting_that_is_no_dict_is_an_error() -> None:
    assert shown(checks.check_settings()) == [
        (
            "workqueue.E001",
            "WORKQUEUE must be a dict, got ['DATABASE'].",
            "Remove it to take every default.",
        )
    ]


@override_settings(WORKQUEUE={"DATABASE": "othr"})
def test_while_the_settings_are_wrong_no_other_check_guesses_at_the_database() -> None:
    guesses = (checks.check_store, checks.check_transactions, checks.check_server)

    assert [check(databases=["default", "other"]) for check in guesses] == [[], [], []]


@override_settings(TASKS={"default": {"BACKEND": DUMMY}})
def test_tasks_without_the_queues_backend_are_warned_of() -> None:
    (message,) = checks.check_tasks()

    assert message.level == django_checks.WARNING
    assert shown([message]) == [
        (
            "workqueue.W001",
            "TASKS must have an alias whose BACKEND is "
            f"'django_workqueue.backend.WorkQueueBackend', got {{'default': '{DUMMY}'}}.",
            'Set TASKS = {"default": {"BACKEND": "django_workqueue.backend.WorkQueueBackend", '
            '"QUEUES": []}}. A project that only uses queues or locks can silence '
            "this.",
        )
    ]


@pytest.mark.parametrize("path", [checks.BACKEND, f"{__name__}.SubclassOfOurs"])
def test_one_alias_with_the_queues_backend_or_a_subclass_is_enough(path: str) -> None:
    with override_settings(TASKS={"default": {"BACKEND": DUMMY}, "slow": {"BACKEND": path}}):
        assert checks.check_tasks() == []


def test_options_of_the_queues_backend_are_an_error_that_names_the_setting_meant() -> None:
    ours = {"BACKEND": checks.BACKEND}
    aliases = {
        "default": {**ours, "OPTIONS": {"max_atempts": 5}},
        "plain": {**ours, "OPTIONS": {}},
        "other": {"BACKEND": DUMMY, "OPTIONS": {"any": 1}},
        # It may read them.
        "subclass": {"BACKEND": f"{__name__}.SubclassOfOurs", "OPTIONS": {"any": 1}},
    }
    with override_settings(TASKS=aliases):
        assert shown(checks.check_options()) == [
            (
                "workqueue.E011",
                'TASKS["default"]["OPTIONS"] must be empty, got {\'max_atempts\': 5}.',
                "The queue's settings are those of WORKQUEUE, one for all its tasks. "
                "Did you mean MAX_ATTEMPTS there?",
            )
        ]


def test_options_that_are_no_dict_are_the_same_error() -> None:
    with override_settings(TASKS={"default": {"BACKEND": checks.BACKEND, "OPTIONS": 5}}):
        assert [message.id for message in checks.check_options()] == ["workqueue.E011"]


@pytest.mark.parametrize("path", ["no.such.Backend", f"{__name__}.DUMMY", ""])
def test_a_backend_that_is_no_class_is_not_the_queues(path: str) -> None:
    with override_settings(TASKS={"default": {"BACKEND": path}}):
        assert [message.id for message in checks.check_tasks()] == ["workqueue.W001"]


@pytest.mark.skipif(not BELOW_6, reason="Django 6.0 has its own Tasks API")
@modify_settings(INSTALLED_APPS={"remove": "django_tasks"})
def test_a_backport_that_is_not_an_installed_app_is_warned_of() -> None:
    assert shown(checks.check_tasks_api()) == [
        (
            "workqueue.W003",
            'INSTALLED_APPS must have "django_tasks" on Django below 6.0: without it that package '
            "checks no task and logs no result.",
            'Add "django_tasks"; it comes with pip install "django-workqueue[django52]".',
        )
    ]


@pytest.mark.skipif(not BELOW_6, reason="Django 6.0 has its own Tasks API")
def test_a_backport_that_is_not_installed_is_an_error_that_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "django_tasks", None)
    monkeypatch.delitem(sys.modules, "django_workqueue.compat", raising=False)
    monkeypatch.delattr("django_workqueue.compat", raising=False)

    assert shown(checks.check_tasks_api()) == [
        (
            "workqueue.E005",
            "Django below 6.0 has no Tasks API of its own and the package django-tasks is not "
            "installed.",
            'Install it with: pip install "django-workqueue[django52]"',
        )
    ]
    assert checks.check_tasks() == []


def test_a_database_without_a_store_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(connections["default"]), "vendor", "oracle")
    monkeypatch.setitem(connections.settings["default"], "ENGINE", "of.oracle")

    (message,) = checks.check_store()

    assert message.id == "workqueue.E006"
    assert message.level == django_checks.ERROR
    assert message.msg.endswith("got 'oracle' for the alias 'default'.")
    assert message.hint == "Name another alias in WORKQUEUE['DATABASE']."


@pytest.mark.vendor("sqlite")
@pytest.mark.parametrize("mode", [None, "DEFERRED", "deferred"])
def test_deferred_transactions_on_sqlite_are_warned_of(
    options: dict[str, Any], mode: str | None
) -> None:
    options["transaction_mode"] = mode
    name = 'DATABASES["default"]["OPTIONS"]["transaction_mode"]'

    assert shown(checks.check_transactions()) == [
        (
            "workqueue.W002",
            f'{name} must be "IMMEDIATE", got {mode!r}: a deferred transaction that has read and '
            'then writes fails at once with "database is locked" if a worker wrote in between, '
            "whatever its timeout.",
            f'Set {name} = "IMMEDIATE".',
        )
    ]


@pytest.mark.vendor("sqlite")
def test_sqlite_without_any_options_is_warned_of(options: dict[str, Any]) -> None:
    options.clear()

    assert [message.id for message in checks.check_transactions()] == ["workqueue.W002"]


@pytest.mark.vendor("sqlite")
@pytest.mark.parametrize("mode", ["IMMEDIATE", "immediate", "EXCLUSIVE"])
def test_transactions_that_begin_with_the_write_lock_are_right(
    options: dict[str, Any], mode: str
) -> None:
    options["transaction_mode"] = mode

    assert checks.check_transactions() == []


@pytest.mark.vendor("sqlite")
def test_a_database_in_memory_is_shared_with_no_worker(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    options["transaction_mode"] = None
    monkeypatch.setitem(connection.settings_dict, "NAME", ":memory:")

    assert checks.check_transactions() == []


@pytest.mark.vendor("sqlite")
def test_only_the_queues_own_database_is_judged(options: dict[str, Any]) -> None:
    options["transaction_mode"] = None

    with override_settings(WORKQUEUE={"DATABASE": "other"}):
        assert checks.check_transactions() == []


class QueueElsewhere:
    """Sends the app workqueue to "other", and keeps it from everywhere else."""

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "other" if model._meta.app_label == "workqueue" else None

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return db == "other" if app_label == "workqueue" else None


def test_data_in_another_database_than_the_queue_is_warned_of_until_its_outbox_is_named() -> None:
    with override_settings(WORKQUEUE={"DATABASE": "other"}):
        (message,) = shown(checks.check_data())
    assert message == (
        "workqueue.W005",
        "Jobs are part of the transaction of the queue's database, 'other', and data of admin, "
        "auth, contenttypes, django_celery_beat, sessions is written to 'default': a plain "
        "enqueue() inside atomic(using='default') commits by itself.",
        "Enqueue there with django_workqueue.outbox.enqueue(task, …, using='default'), and name "
        "'default' in WORKQUEUE[\"OUTBOX_DATABASES\"], which ends this warning.",
    )
    with override_settings(WORKQUEUE={"DATABASE": "other", "OUTBOX_DATABASES": ["default"]}):
        assert checks.check_data() == []
    with override_settings(DATABASE_ROUTERS=[QueueElsewhere()]):
        assert [each.id for each in checks.check_data()] == ["workqueue.W005"]
    assert checks.check_data() == []


def test_an_outbox_without_tables_is_an_error_where_it_was_asked_for() -> None:
    with override_settings(DATABASE_ROUTERS=[QueueElsewhere()]):
        assert checks.check_outbox() == []  # The default names "default" for everybody.
        with override_settings(WORKQUEUE={"OUTBOX_DATABASES": ["other", "default"]}):
            assert shown(checks.check_outbox()) == [
                (
                    "workqueue.E010",
                    'WORKQUEUE["OUTBOX_DATABASES"] must name databases that can have the '
                    "outbox's tables, got 'default', where a router lets the app's tables not be "
                    "made.",
                    "Remove the alias, or let allow_migrate() of the router return True for it.",
                )
            ]


@pytest.mark.django_db
def test_the_server_of_this_run_is_new_enough() -> None:
    assert checks.check_server(databases=["default", "other"]) == []


@pytest.mark.parametrize(
    ("vendor", "facts", "version", "message"),
    [
        ("sqlite", {"display_name": "SQLite"}, (3, 36, 9), "SQLite 3.37 or later, got 3.36.9."),
        (
            "postgresql",
            {"display_name": "PostgreSQL"},
            (13, 9),
            "PostgreSQL 14 or later, got 13.9.",
        ),
        ("mysql", {"mysql_is_mariadb": True}, (10, 5, 22), "MariaDB 10.6 or later, got 10.5.22."),
        ("mysql", {"mysql_is_mariadb": False}, (8, 0, 10), "MySQL 8.0.11 or later, got 8.0.10."),
    ],
)
def test_a_server_that_is_too_old_is_an_error(
    server: Callable[..., None],
    vendor: str,
    facts: dict[str, Any],
    version: tuple[int, ...],
    message: str,
) -> None:
    server(vendor, version, **facts)

    assert shown(checks.check_server(databases=["default"])) == [
        (
            "workqueue.E007",
            f"The queue's database server must be {message}",
            'Upgrade the server of DATABASES["default"], or name another alias in '
            'WORKQUEUE["DATABASE"].',
        )
    ]


@pytest.mark.parametrize(
    ("vendor", "facts", "version"),
    [
        (
            "sqlite",
            {"display_name": "SQLite", "features": {"has_select_for_update": False}},
            (3, 37),
        ),
        ("postgresql", {"display_name": "PostgreSQL"}, (14, 0)),
        ("mysql", {"mysql_is_mariadb": True}, (10, 6, 0)),
        ("mysql", {"mysql_is_mariadb": False}, (8, 0, 11)),
    ],
)
def test_the_oldest_supported_servers_pass(
    server: Callable[..., None], vendor: str, facts: dict[str, Any], version: tuple[int, ...]
) -> None:
    server(vendor, version, **facts)

    assert checks.check_server(databases=["default"]) == []


def test_a_server_below_djangos_own_minimum_is_an_error_and_no_traceback(
    server: Callable[..., None],
) -> None:
    server("postgresql", (), display_name="PostgreSQL")
    refused = NotSupportedError("PostgreSQL 15 or later is required (found 14.2).")

    def refuse() -> tuple[int, ...]:
        raise refused

    wrapper = checks._queue_connection()
    assert wrapper is not None
    wrapper.get_database_version = refuse  # type: ignore[method-assign]

    (message,) = checks.check_server(databases=["default"])
    assert (message.id, message.msg) == ("workqueue.E007", str(refused))


def test_a_server_without_skip_locked_is_an_error(server: Callable[..., None]) -> None:
    server(
        "postgresql",
        (16, 0),
        display_name="PostgreSQL",
        features={"has_select_for_update_skip_locked": False},
    )

    assert shown(checks.check_server(databases=["default"])) == [
        (
            "workqueue.E008",
            "The queue's database server must have SKIP LOCKED, got PostgreSQL without it.",
            'Upgrade the server of DATABASES["default"], or name another alias in '
            'WORKQUEUE["DATABASE"].',
        )
    ]


@override_settings(TASKS={"default": {"BACKEND": DUMMY}}, WORKQUEUE={"MAX_ATEMPTS": 3})
def test_manage_py_check_fails_for_an_unknown_setting() -> None:
    checks.register()

    with pytest.raises(SystemCheckError) as caught:
        call_command("check", tags=[checks.TAG])

    assert '(workqueue.E002) WORKQUEUE["MAX_ATEMPTS"] is not a setting.' in str(caught.value)
    assert 'HINT: Did you mean "MAX_ATTEMPTS"?' in str(caught.value)


def test_a_schedule_that_is_refused_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def discover() -> None:
        schedule("sums", add, cron="@daily", timezone="Bogota", args=(1,))

    monkeypatch.setattr("django_workqueue.schedules.discover", discover)
    ((check_id, message, hint),) = shown(checks.check_schedules())
    assert check_id == "workqueue.E009"
    assert message.startswith("The schedule 'sums': A time zone must be a name of the IANA")
    assert hint is not None
    assert "schedules module; until then no command that runs the checks starts" in hint


def test_a_host_without_time_zones_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_workqueue.cron.has_timezones", lambda: False)
    ((check_id, _, hint),) = shown(checks.check_schedules())
    assert check_id == "workqueue.W004"
    assert hint == "Install them: pip install tzdata, or the package tzdata of the system."
