"""What a destination's handler is given."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A published message, at one attempt to deliver it.

    *id* is the same at every attempt: give it to the receiver, so that it can tell a message that
    it has seen. *attempt* counts from 1; *key* is "" for a message without one.
    """

    id: uuid.UUID
    destination: str
    payload: Any
    key: str
    attempt: int
    max_attempts: int
    headers: Mapping[str, Any]
    published_at: datetime
