"""What a process that does nothing but work sets for the whole of it, and puts back."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from .compat import SIGNALS_LOGGER
from .logs import unheard_left_out

SWITCH_SECONDS: Final = 0.001
"""How long a thread computes before another gets its turn; Python's default is five times that.

Beside tasks that never wait, the thread that claims and settles comes late at each answer of the
database by so much.
"""

COLLECTED_OBJECTS: Final = 50_000
"""How many new objects make Python look for garbage; its default is 2,000.

A thousand jobs in flight are ten times that, come and go together, and are no garbage.
"""


@contextmanager
def tuned() -> Iterator[None]:
    """Let threads take turns more often, look for garbage less often, and log no signal of Django's
    that nobody would see.
    """
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(min(interval, SWITCH_SECONDS))
    # 0: somebody has turned it off.
    if 0 < thresholds[0] < COLLECTED_OBJECTS:
        gc.set_threshold(COLLECTED_OBJECTS, *thresholds[1:])
    try:
        with unheard_left_out(SIGNALS_LOGGER):
            yield
    finally:
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(interval)
