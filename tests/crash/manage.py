"""manage.py of the worker processes that crash tests start.

WORKQUEUE_TEST_SKEW_SECONDS   move this process's wall clock by so much
WORKQUEUE_TEST_WITHOUT        names of safeguards to run without (tests/crash/without.py): controls
"""

import os
import sys
from datetime import UTC, datetime, timedelta


def main() -> None:
    if skew_seconds := float(os.environ.get("WORKQUEUE_TEST_SKEW_SECONDS", "0")):
        # First of all: whoever reads the clock after this reads the wrong one.
        import time_machine

        moment = datetime.now(UTC) + timedelta(seconds=skew_seconds)
        time_machine.travel(moment, tick=True).start()

    import django
    from django.core.management import execute_from_command_line

    django.setup()
    from tests.crash import without

    for name in os.environ.get("WORKQUEUE_TEST_WITHOUT", "").split():
        without.SAFEGUARDS[name]()
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
