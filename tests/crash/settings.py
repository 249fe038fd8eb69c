"""Settings of the worker processes that crash tests start: those of other children, and harm.

WORKQUEUE_TEST_SKEW_SECONDS   move this process's wall clock by so much
WORKQUEUE_TEST_BUSY_SECONDS   how long a statement waits for SQLite's lock
WORKQUEUE_TEST_WITHOUT        safeguards to run without, with commas: controls (see without.py)
"""

from datetime import UTC, datetime, timedelta

from tests.child_settings import *  # noqa: F403
from tests.child_settings import DATABASES, INSTALLED_APPS, env

if _skew_seconds := env.float("WORKQUEUE_TEST_SKEW_SECONDS", 0):
    # Before all that reads the clock; monotonic time and waits stay right.
    import time_machine

    _wrong = datetime.now(UTC) + timedelta(seconds=_skew_seconds)
    time_machine.travel(_wrong, tick=True).start()

_busy_seconds = env.float("WORKQUEUE_TEST_BUSY_SECONDS", 0)
if _busy_seconds and DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    DATABASES["default"]["OPTIONS"]["timeout"] = _busy_seconds

INSTALLED_APPS = [*INSTALLED_APPS, "tests.crash"]

CRASH_WITHOUT = env.list("WORKQUEUE_TEST_WITHOUT", default=[])

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(levelname)s %(threadName)s %(name)s: %(message)s"}},
    "handlers": {"log": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {"django_workqueue": {"handlers": ["log"], "level": "INFO"}},
}
