"""Settings of the benchmarks and of the workers they start: the tests', and tasks of their own.

WORKQUEUE_BENCH_DEBUG   Django's DEBUG (default: off)
"""

from tests.child_settings import *  # noqa: F403
from tests.child_settings import INSTALLED_APPS, env

INSTALLED_APPS = [*INSTALLED_APPS, "tests.benchmarks"]
DEBUG = env.bool("WORKQUEUE_BENCH_DEBUG", False)
