"""What a process that does nothing but work sets for the whole of it, and puts back."""

from __future__ import annotations

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


@contextmanager
def tuned() -> Iterator[None]:
    """Let threads take turns more often, and log no signal of Django's that nobody would see."""
    former = sys.getswitchinterval()
    sys.setswitchinterval(min(former, SWITCH_SECONDS))
    try:
        with unheard_left_out(SIGNALS_LOGGER):
            yield
    finally:
        sys.setswitchinterval(former)
