"""A process that claims until there is nothing, and prints the ids that it got.

Run as ``python -m tests.races.claimers NAME LIMIT``; once connected it says so, and it begins when
its input ends.
"""

import sys
from collections.abc import Iterator

import django


def claimed(name: str, limit: int) -> Iterator[str]:
    from django_workqueue.store import get_store
    from tests.factories import claim

    store = get_store()
    store.connection.ensure_connection()
    print("connected", flush=True)  # noqa: T201
    sys.stdin.read()
    while taken := claim(store, now=None, worker_id=name, limit=limit):
        yield from (str(each.id) for each in taken)


if __name__ == "__main__":
    django.setup()
    print(*claimed(sys.argv[1], int(sys.argv[2])), sep="\n")  # noqa: T201
