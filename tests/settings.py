"""Django settings of the tests; everything that may differ between two runs is in the environment.

WORKQUEUE_TEST_DATABASE       sqlite (default), postgresql or mariadb; see tests/services.py
WORKQUEUE_TEST_DATABASE_URL   a server of your own instead: the URL of a database to log in to
WORKQUEUE_TEST_DATABASE_NAME  the name of the database the tests make (default: one of this process)
WORKQUEUE_TEST_OTHER_DATABASE  what the alias "other" is on (default: the same server as "default")
WORKQUEUE_TEST_USE_TZ         Django's USE_TZ (default: on)

The tests never touch the database of the URL: they make their own beside it. The names are left in
the environment, so that a process which a test starts with these settings meets the same data.
"""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import django
import environ

from tests import services

env = environ.Env()


def _server() -> dict[str, Any]:
    """Return the settings of the server that the environment asks for."""
    if "WORKQUEUE_TEST_DATABASE_URL" in os.environ:
        server: dict[str, Any] = env.db_url("WORKQUEUE_TEST_DATABASE_URL")
        return {**server, "HOST": unquote(server["HOST"])}
    return _server_of("WORKQUEUE_TEST_DATABASE", env.str("WORKQUEUE_TEST_DATABASE", "sqlite"))


def _other_server(first: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the server of the alias "other", which may be another kind."""
    variable = "WORKQUEUE_TEST_OTHER_DATABASE"
    return _server_of(variable, env.str(variable)) if variable in os.environ else first


def _server_of(variable: str, wanted: str) -> dict[str, Any]:
    match wanted:
        case "sqlite":
            return services.sqlite_settings()
        case "postgresql":
            return services.postgresql_settings()
        case "mariadb":
            return services.mariadb_settings()
    raise ValueError(
        f"{variable} must be sqlite, postgresql or mariadb, got {wanted!r}. "
        "Unset it for its default."
    )


def _database(server: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the settings of the database *name* on *server*, the same in and out of a test."""
    if server["ENGINE"].endswith("sqlite3"):
        # A file: several processes and threads share it, as they do in production.
        name = str(Path(server["NAME"]) / f"{name}.sqlite3")
    return {**server, "NAME": name, "TEST": {"NAME": name}}


MISSING_SERVICE = ""
"""Why the server is not there; then nothing can run, and tests/conftest.py says so."""

try:
    _found = _server()
    _other = _other_server(_found)
except services.ServiceMissing as error:
    MISSING_SERVICE = str(error)
    DATABASES: dict[str, dict[str, Any]] = {}
else:
    _any_mysql = any(each["ENGINE"].endswith("mysql") for each in (_found, _other))
    # mysqlclient where it is installed; it needs a compiler, and a library of the system's.
    if _any_mysql and find_spec("MySQLdb") is None:
        import pymysql

        pymysql.install_as_MySQLdb()
    _name = os.environ.setdefault("WORKQUEUE_TEST_DATABASE_NAME", f"test_workqueue_{os.getpid()}")
    DATABASES = {
        "default": _database(_found, _name),
        "other": _database(_other, f"{_name}_other"),
    }

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_workqueue",
    "tests.app",
    "tests.beat",
]
if django.VERSION < (6, 0):
    INSTALLED_APPS += ["django_tasks"]

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

TASKS = {"default": {"BACKEND": "django_workqueue.backend.WorkQueueBackend", "QUEUES": []}}

WORKQUEUE: dict[str, Any] = {}

SECRET_KEY = "for tests only"
ROOT_URLCONF = "tests.urls"
STATIC_URL = "static/"
TIME_ZONE = "America/New_York"
USE_TZ = env.bool("WORKQUEUE_TEST_USE_TZ", True)
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
