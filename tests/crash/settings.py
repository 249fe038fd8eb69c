"""Settings of the worker processes that crash tests start: short leases, and a log to read.

WORKQUEUE_TEST_OPTIONS   JSON of keys of WORKQUEUE that differ from those below
"""

import json
import os

from tests import timescale
from tests.settings import *  # noqa: F403  # the same databases, apps and services
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.crash"]

WORKQUEUE = {
    "LEASE_SECONDS": timescale.LEASE_SECONDS,
    "SWEEP_SECONDS": timescale.SWEEP_SECONDS,
    "POLL_SECONDS": timescale.POLL_SECONDS,
    "GRACE_SECONDS": timescale.GRACE_SECONDS,
    **json.loads(os.environ.get("WORKQUEUE_TEST_OPTIONS", "{}")),
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(threadName)s %(message)s"}},
    "handlers": {"log": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {"django_workqueue": {"handlers": ["log"], "level": "INFO"}},
}
