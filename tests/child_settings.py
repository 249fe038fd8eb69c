"""Settings of the processes that tests start: those of the tests, with a WORKQUEUE of their own.

WORKQUEUE_TEST_SETTINGS  the dict WORKQUEUE, as JSON
WORKQUEUE_TEST_QUEUES    the queues of TASKS, with commas (default: any)
"""

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES, TASKS, env

# The other database is made only for tests that use it, and MySQL's checks would look for it.
DATABASES = {"default": DATABASES["default"]}

# The backport logs what failed to a logger of its own, which Django's LOGGING does not know.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "loggers": {"django_tasks": {"level": "CRITICAL", "propagate": False}},
}

WORKQUEUE = env.json("WORKQUEUE_TEST_SETTINGS", {})
TASKS["default"]["QUEUES"] = env.list("WORKQUEUE_TEST_QUEUES", default=[])
