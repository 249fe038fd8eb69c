"""Settings of the publishers and relays that tests start.

WORKQUEUE_TEST_DELIVERIES   the file to which the destination writes what it received
WORKQUEUE_TEST_FAILURES     how often it fails, from 0 to 1 (default: never)
WORKQUEUE_TEST_STUCK        the key whose messages always fail (default: none)
WORKQUEUE_TEST_TWO          keep the second database (default: off)
WORKQUEUE_TEST_ROUTER       the path of a router's class (default: none)
"""

from tests import settings
from tests.child_settings import *  # noqa: F403
from tests.child_settings import INSTALLED_APPS, env

INSTALLED_APPS = [*INSTALLED_APPS, "tests.relaying"]

if env.bool("WORKQUEUE_TEST_TWO", False):
    DATABASES = settings.DATABASES

DATABASE_ROUTERS = env.list("WORKQUEUE_TEST_ROUTER", default=[])

DELIVERIES = env.str("WORKQUEUE_TEST_DELIVERIES", "/dev/null")
FAILURES = env.float("WORKQUEUE_TEST_FAILURES", 0)
STUCK = env.str("WORKQUEUE_TEST_STUCK", "")
