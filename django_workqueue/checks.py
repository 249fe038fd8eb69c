"""System checks: what is wrong with the project's settings and databases, before a worker starts.

Only `check_server` asks a database anything, and only for the aliases that ``check --database``
(or ``migrate``) names.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import django
from django.apps import apps
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import NotSupportedError, connections, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.module_loading import import_string

from . import conf, cron
from .exceptions import UnsupportedDatabase, WorkQueueError
from .models import LiveJob
from .store import STORES, get_store, queue_alias

TAG: Final = "workqueue"
BACKEND: Final = "django_workqueue.backend.WorkQueueBackend"

IDS: Final = {
    "workqueue.E001": "`WORKQUEUE` is not a dict.",
    "workqueue.E002": "`WORKQUEUE` has a key that is not a setting.",
    "workqueue.E003": "A setting has a value that is not legal.",
    "workqueue.E004": "A setting names a database that is not in `DATABASES`.",
    "workqueue.E005": "Django is below 6.0 and the package django-tasks is not installed.",
    "workqueue.E006": "The queue's database is of a kind that has no store.",
    "workqueue.E007": "The queue's database server is older than what is supported.",
    "workqueue.E008": "The queue's database server lacks `SKIP LOCKED`.",
    "workqueue.E009": "A schedule that code declares is refused.",
    "workqueue.E010": "`OUTBOX_DATABASES` names a database that cannot have the tables.",
    "workqueue.E011": "`OPTIONS` of the queue's backend in `TASKS` has keys.",
    "workqueue.W001": "No alias in `TASKS` uses the queue's backend.",
    "workqueue.W002": "The queue's SQLite database is used with deferred transactions.",
    "workqueue.W003": "Django is below 6.0 and `django_tasks` is not in `INSTALLED_APPS`.",
    "workqueue.W004": "There is no time zone data.",
    "workqueue.W005": "The queue is in another database than data of the project.",
}
"""Every id that a check of this module can give, and what it means."""

PROBLEM_IDS: Final = {
    "not_a_dict": "workqueue.E001",
    "unknown_key": "workqueue.E002",
    "illegal_value": "workqueue.E003",
    "unknown_database": "workqueue.E004",
}

MINIMUM_VERSIONS: Final = {
    "PostgreSQL": (14,),
    "SQLite": (3, 37),
    "MariaDB": (10, 6),
    "MySQL": (8, 0, 11),
}
"""The oldest servers supported. Django's own minimum holds where it is higher."""

Messages = list[checks.CheckMessage]


def register() -> None:
    """Register every check of this module. A second call changes nothing."""
    for check in (
        check_settings,
        check_tasks_api,
        check_tasks,
        check_options,
        check_store,
        check_transactions,
        check_schedules,
        check_outbox,
        check_data,
    ):
        checks.register(check, TAG)
    # Not under TAG: a check that is asked for by a tag is given every alias since Django 6.1.
    checks.register(check_server, checks.Tags.database)


def check_settings(**kwargs: Any) -> Messages:
    """Report every problem of ``WORKQUEUE``: E001 to E004."""
    return [
        checks.Error(problem.message, hint=problem.hint, id=PROBLEM_IDS[problem.kind])
        for problem in conf.current_problems()
    ]


def check_tasks_api(**kwargs: Any) -> Messages:
    """Report a Django without its own Tasks API whose backport is missing or half installed."""
    if django.VERSION >= (6, 0):
        return []
    try:
        from . import compat  # noqa: F401 - importing it is the check
    except ImproperlyConfigured as error:
        message, _, hint = str(error).partition(". ")
        return [checks.Error(f"{message}.", hint=hint, id="workqueue.E005")]
    if apps.is_installed("django_tasks"):
        return []
    message = (
        'INSTALLED_APPS must have "django_tasks" on Django below 6.0: without it that package '
        "checks no task and logs no result."
    )
    hint = 'Add "django_tasks"; it comes with pip install "django-workqueue[django52]".'
    return [checks.Warning(message, hint=hint, id="workqueue.W003")]


def check_tasks(**kwargs: Any) -> Messages:
    """Warn if no alias in ``TASKS`` uses the queue's backend: ``enqueue`` never reaches it then."""
    try:
        from .compat import task_backends
    except ImproperlyConfigured:
        return []  # E005
    backends = {alias: params.get("BACKEND") for alias, params in task_backends.settings.items()}
    if any(map(_is_ours, backends.values())):
        return []
    message = f"TASKS must have an alias whose BACKEND is {BACKEND!r}, got {backends!r}."
    hint = (
        f'Set TASKS = {{"default": {{"BACKEND": "{BACKEND}", "QUEUES": []}}}}. A project that only '
        "uses queues or locks can silence this."
    )
    return [checks.Warning(message, hint=hint, id="workqueue.W001")]


def check_options(**kwargs: Any) -> Messages:
    """Refuse OPTIONS of the queue's backend: none has a meaning, so one that is there has none."""
    try:
        from .compat import task_backends
    except ImproperlyConfigured:
        return []  # E005
    return [
        _with_options(alias, params["OPTIONS"])
        for alias, params in task_backends.settings.items()
        # A project's subclass may read them.
        if params.get("OPTIONS") and params.get("BACKEND") == BACKEND
    ]


def _with_options(alias: str, options: Any) -> checks.CheckMessage:
    message = f'TASKS["{alias}"]["OPTIONS"] must be empty, got {options!r:.80}.'
    names = [str(name).upper() for name in options] if isinstance(options, Mapping) else []
    near = {near for name in names for near in difflib.get_close_matches(name, conf.KEYS, n=1)}
    meant = f" Did you mean {', '.join(sorted(near))} there?" if near else ""
    hint = f"The queue's settings are those of WORKQUEUE, one for all its tasks.{meant}"
    return checks.Error(message, hint=hint, id="workqueue.E011")


def check_store(**kwargs: Any) -> Messages:
    """Report a queue's database of a kind that the queue cannot live in."""
    if conf.current_problems():
        return []  # E001 to E004
    try:
        get_store()
    except UnsupportedDatabase as error:
        message, _, hint = str(error).partition(". ")
        return [checks.Error(f"{message}.", hint=hint, id="workqueue.E006")]
    return []


def check_transactions(**kwargs: Any) -> Messages:
    """Warn of a SQLite database whose transactions do not take the write lock at their start."""
    connection = _queue_connection()
    if connection is None or connection.vendor != "sqlite" or _in_memory(connection):
        return []
    mode = connection.settings_dict["OPTIONS"].get("transaction_mode")
    if str(mode).upper() in {"IMMEDIATE", "EXCLUSIVE"}:
        return []
    name = f'DATABASES["{connection.alias}"]["OPTIONS"]["transaction_mode"]'
    message = (
        f'{name} must be "IMMEDIATE", got {mode!r}: a deferred transaction that has read and then '
        'writes fails at once with "database is locked" if a worker wrote in between, whatever '
        "its timeout."
    )
    hint = f'Set {name} = "IMMEDIATE".'
    return [checks.Warning(message, hint=hint, id="workqueue.W002")]


def check_schedules(**kwargs: Any) -> Messages:
    """Report the first schedule of code that is refused, and a host without time zone data."""
    if conf.current_problems():
        return []  # E001 to E004
    try:
        from . import schedules
        from .compat import InvalidTask
    except ImproperlyConfigured:
        return []  # E005
    messages: Messages = []
    try:
        schedules.discover()
    except (WorkQueueError, InvalidTask, ImportError) as error:
        notes = " ".join(getattr(error, "__notes__", []))
        hint = (
            "Correct it in the app's schedules module; until then no command that runs the checks "
            "starts."
        )
        messages.append(checks.Error(f"{error} {notes}".strip(), hint=hint, id="workqueue.E009"))
    if not cron.has_timezones():
        message = "Schedules must find the time zones of the IANA database, and there are none."
        hint = "Install them: pip install tzdata, or the package tzdata of the system."
        messages.append(checks.Warning(message, hint=hint, id="workqueue.W004"))
    return messages


def check_outbox(**kwargs: Any) -> Messages:
    """Report a database named in OUTBOX_DATABASES that has no store, or may not have the tables."""
    if conf.current_problems() or not conf.is_given("OUTBOX_DATABASES"):
        return []
    found: Messages = []
    for alias in conf.current().outbox_databases:
        name = f'{conf.NAME}["OUTBOX_DATABASES"]'
        vendor = connections[alias].vendor
        if vendor not in STORES:
            got = f"{alias!r} of the kind {vendor!r}, which has none"
        elif not router.allow_migrate_model(alias, LiveJob):
            got = f"{alias!r}, where a router lets the app's tables not be made"
        else:
            continue
        message = f"{name} must name databases that can have the outbox's tables, got {got}."
        hint = "Remove the alias, or let allow_migrate() of the router return True for it."
        found.append(checks.Error(message, hint=hint, id="workqueue.E010"))
    return found


def check_data(**kwargs: Any) -> Messages:
    """Warn where models are written to another database than the queue's, once for each.

    Not for one that OUTBOX_DATABASES names: who wrote that knows of outbox.enqueue().
    """
    if conf.current_problems():
        return []
    home, known = queue_alias(), set()
    if conf.is_given("OUTBOX_DATABASES"):
        known = set(conf.current().outbox_databases)
    elsewhere: dict[str, set[str]] = {}
    for model in apps.get_models():
        label, alias = model._meta.app_label, router.db_for_write(model)
        if label != LiveJob._meta.app_label and alias not in {home, *known}:
            elsewhere.setdefault(alias, set()).add(label)
    return [_other_data(home, alias, sorted(labels)) for alias, labels in elsewhere.items()]


def _other_data(home: str, alias: str, labels: list[str]) -> checks.Warning:
    message = (
        f"Jobs are part of the transaction of the queue's database, {home!r}, and data of "
        f"{', '.join(labels)} is written to {alias!r}: a plain enqueue() inside "
        f"atomic(using={alias!r}) commits by itself."
    )
    hint = (
        f"Enqueue there with django_workqueue.outbox.enqueue(task, …, using={alias!r}), and name "
        f'{alias!r} in {conf.NAME}["OUTBOX_DATABASES"], which ends this warning.'
    )
    return checks.Warning(message, hint=hint, id="workqueue.W005")


def check_server(*, databases: Sequence[str] | None = None, **kwargs: Any) -> Messages:
    """Ask the queue's server for its version and features, if *databases* names its alias."""
    connection = _queue_connection()
    if connection is None or connection.alias not in (databases or ()):
        return []
    try:
        product, version = _product(connection), connection.get_database_version()
    except NotSupportedError as error:
        # Django's own minimum, which it enforces when it connects.
        return [_too_old(connection.alias, str(error))]
    minimum = MINIMUM_VERSIONS.get(product, ())
    if version < minimum:
        must = f"{product} {_dotted(minimum)} or later, got {_dotted(version)}."
        return [_too_old(connection.alias, f"The queue's database server must be {must}")]
    features = connection.features
    if features.has_select_for_update and not features.has_select_for_update_skip_locked:
        message = f"The queue's database server must have SKIP LOCKED, got {product} without it."
        return [checks.Error(message, hint=_other_database(connection.alias), id="workqueue.E008")]
    return []


def _is_ours(path: object) -> bool:
    if path == BACKEND:
        return True
    try:
        found = import_string(str(path))
    except ImportError:
        return False  # Django itself names a backend that cannot be imported.
    bases = getattr(found, "__mro__", ())
    return any(f"{base.__module__}.{base.__qualname__}" == BACKEND for base in bases)


def _queue_connection() -> BaseDatabaseWrapper | None:
    """Return the connection of the queue's database, None if the settings do not say which."""
    if conf.current_problems():
        return None
    return connections[queue_alias()]


def _in_memory(connection: Any) -> bool:
    # No second process can lock it.
    return bool(connection.is_in_memory_db())


def _product(connection: Any) -> str:
    if connection.vendor == "mysql":
        return "MariaDB" if connection.mysql_is_mariadb else "MySQL"
    return str(connection.display_name)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _too_old(alias: str, message: str) -> checks.Error:
    return checks.Error(message, hint=_other_database(alias), id="workqueue.E007")


def _other_database(alias: str) -> str:
    return (
        f'Upgrade the server of DATABASES["{alias}"], or name another alias in '
        f'{conf.NAME}["DATABASE"].'
    )
