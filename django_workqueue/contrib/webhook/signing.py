"""Signatures by the Standard Webhooks convention: HMAC-SHA256 of id, time and body."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

NAME: Final = "WORKQUEUE_WEBHOOK_SECRETS"
"""A setting of its own, and not a key of WORKQUEUE: messages about settings show their values, and
must never show these.
"""

PREFIX: Final = "whsec_"
LEAST_BYTES: Final = 24
MOST_BYTES: Final = 64


def secrets_named(name: str) -> list[bytes]:
    """Return the keys under *name*, the one to come first. Raises ImproperlyConfigured.

    The setting is a dict of names, or the dotted path of a function of the name. Several keys
    stand in a list: while a key is replaced, each message carries a signature of both.
    """
    known: Any = getattr(settings, NAME, {})
    if isinstance(known, str):
        found = import_string(known)(name)
    elif isinstance(known, dict):
        found = known.get(name)
    else:
        raise ImproperlyConfigured(
            f"{NAME} must be a dict of names or the dotted path of a function, got an instance of "
            f'{type(known).__name__}. Write {{"{name}": "{PREFIX}…"}}.'
        )
    if not found:
        raise ImproperlyConfigured(
            f"{NAME} must have the secret {name!r} of a webhook, and has none. "
            f'Add "{name}": "{PREFIX}…".'
        )
    return [_key(name, each) for each in ([found] if isinstance(found, str) else list(found))]


def signed_headers(
    message_id: str, timestamp: int, body: bytes, keys: Sequence[bytes]
) -> dict[str, str]:
    """Return the three headers by which a receiver knows the sender, the message and its time."""
    content = f"{message_id}.{timestamp}.".encode() + body
    signatures = [base64.b64encode(hmac.digest(key, content, hashlib.sha256)) for key in keys]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{each.decode()}" for each in signatures),
    }


def _key(name: str, secret: Any) -> bytes:
    key = b""
    if isinstance(secret, str) and secret.startswith(PREFIX):
        try:
            key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
        except (binascii.Error, ValueError):
            key = b""
    if not LEAST_BYTES <= len(key) <= MOST_BYTES:
        # The secret itself is not told: this text is kept on a row.
        raise ImproperlyConfigured(
            f"The secret {name!r} in {NAME} must be {PREFIX} and base64 of {LEAST_BYTES} to "
            f"{MOST_BYTES} bytes, and is not. Take base64.b64encode(secrets.token_bytes(32))."
        )
    return key
