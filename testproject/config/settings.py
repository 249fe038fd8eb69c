"""Settings of the demonstration. For a machine of your own: DEBUG is on, the secret key is known.

SHOP_VAR       the folder of all that is written; var/ beside manage.py unless set
DATABASE_URL   where orders and jobs live; a SQLite file in that folder unless set, for example
               postgres://user:password@127.0.0.1:5432/shop
"""

from pathlib import Path
from typing import Any

import django
import environ

BASE = Path(__file__).resolve().parent.parent

env = environ.Env()

VAR = Path(env.str("SHOP_VAR", str(BASE / "var"))).resolve()

DATABASES: dict[str, dict[str, Any]] = {
    "default": env.db_url("DATABASE_URL", default=f"sqlite:///{VAR / 'shop.sqlite3'}")
}
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    DATABASES["default"]["OPTIONS"] = {
        # Transactions wait for their turn at the start, instead of failing in the middle.
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
    }
    Path(DATABASES["default"]["NAME"]).parent.mkdir(parents=True, exist_ok=True)

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_workqueue",
    "shop",
]
if django.VERSION < (6, 0):
    INSTALLED_APPS += ["django_tasks"]

TASKS = {"default": {"BACKEND": "django_workqueue.backend.WorkQueueBackend", "QUEUES": []}}

# A month, so that a later run of the demonstration can still tell what an earlier one did.
WORKQUEUE = {"RESULT_TTL_SECONDS": 30 * 86_400}

RECEIPTS = VAR / "receipts"
DEFAULT_FROM_EMAIL = "Kontor & Söhne <receipts@shop.example>"

# A worker prints a line an outcome by itself; with DEBUG, Django adds two for each run.
LOGGING = {"version": 1, "loggers": {"django.tasks": {"level": "WARNING"}}}

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

DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
SECRET_KEY = "known to everybody"  # noqa: S105 - and so no secret
ROOT_URLCONF = "config.urls"
STATIC_URL = "static/"
TIME_ZONE = "UTC"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
