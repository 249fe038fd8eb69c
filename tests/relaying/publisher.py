"""A process that publishes: `python -m tests.relaying.publisher PATH COUNT KEYS ROLLBACKS SEED`.

Writes to PATH, under the key's lock and so in the order of the commits, which messages it
published, and after each commit, which are committed.

`python -m tests.relaying.publisher die-before|die-after KEY [ALIAS]` ends itself around COMMIT.
"""

from __future__ import annotations

import os
import random
import sys
import uuid
from functools import partial

import django
from django.db import OperationalError, transaction

MOST_IN_ONE = 3


class RolledBack(Exception):
    """Ends a transaction."""


def publish(path: str, count: int, keys: int, rollbacks: float, seed: int) -> None:
    from tests.app.files import append
    from tests.relaying.tasks import storm

    chance = random.Random(seed)
    done = 0
    while done < count:
        # Sorted: two transactions that take keys in two orders wait for each other.
        several = min(chance.randint(1, MOST_IN_ONE), count - done)
        chosen = sorted(f"k{chance.randrange(keys):02}" for _ in range(several))
        ids: list[uuid.UUID] = []
        try:
            with transaction.atomic():
                for key in chosen:
                    ids.append(storm.publish({"seed": seed, "n": done + len(ids)}, key=key))
                    append(path, f"published {ids[-1]} {key}")
                if chance.random() < rollbacks:
                    raise RolledBack
        except RolledBack:
            done += several
            continue
        except OperationalError:
            append(path, "conflict - -")
            continue
        done += several
        for message_id in ids:
            append(path, f"committed {message_id} -")


def die(when: str, key: str, alias: str) -> None:
    """Publish, and end this process inside the transaction, or between COMMIT and every hook."""
    from django_workqueue import outbox
    from tests.relaying.tasks import arrived, storm

    with transaction.atomic(using=alias):
        if when == "die-after":
            transaction.on_commit(partial(os._exit, 9), using=alias)
        if alias == "default":
            storm.publish(when, key=key)
        else:
            outbox.enqueue(arrived, when, using=alias)
        if when == "die-before":
            os._exit(9)


if __name__ == "__main__":
    django.setup()
    if sys.argv[1].startswith("die"):
        die(sys.argv[1], sys.argv[2], sys.argv[3])
    else:
        publish(
            sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])
        )
