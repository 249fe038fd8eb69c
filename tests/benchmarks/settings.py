"""Settings of the benchmarks and of the workers they start: the tests', and tasks of their own.

Not the tests' tasks: a project that has no coroutines needs no look at what kind its jobs are.

WORKQUEUE_BENCH_DEBUG   Django's DEBUG (default: off)
"""

from tests.child_settings import *  # noqa: F403
from tests.child_settings import INSTALLED_APPS, env

INSTALLED_APPS = [
    *(name for name in INSTALLED_APPS if not name.startswith("tests.")),
    "tests.benchmarks",
]
DEBUG = env.bool("WORKQUEUE_BENCH_DEBUG", False)
