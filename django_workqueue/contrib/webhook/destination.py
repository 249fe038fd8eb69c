"""``webhook_destination``: what is sent, and what an answer means."""

from __future__ import annotations

import email.utils
import functools
import hashlib
import ipaddress
import json
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any, Final

from ... import __version__, arguments, clock, outbox
from ...backoff import Backoff, Policy
from ...exceptions import WebhookFailed
from ...outbox import Destination, Message
from . import addresses, sending, signing

TRY_AGAIN: Final = frozenset({408, 409, 425, 429})
"""Answers of the 4xx that say "not now"; the rest say "never"."""

PATIENT: Final = Backoff(base=5, factor=4, maximum=6 * 3600)
ATTEMPTS: Final = 12
"""With these delays, 16 to 32 hours for a receiver to come back."""

OURS: Final = frozenset({"host", "content-length", "content-type", "transfer-encoding"})
TRACE: Final = ("traceparent", "tracestate")
MAX_TIMEOUT: Final = 300.0
LEAST_SECONDS: Final = 0.01
SHOWN_CHARACTERS: Final = 200

Url = str | Callable[[Message], str]
Name = str | Callable[[Message], str]


@dataclass(frozen=True, slots=True, repr=False)
class _Posting:
    """The handler: POSTs a message, and raises what its answer means."""

    url: Url
    secret: Name
    timeout: float
    networks: tuple[addresses.Network, ...]
    allow_http: bool
    backoff: Policy
    headers: Mapping[str, str] = field(hash=False)
    context: Callable[[], ssl.SSLContext]

    def __repr__(self) -> str:
        # Tells two handlers of one name apart, and shows neither a URL's token nor a header's.
        facts = repr((self.url, self.secret)) if isinstance(self.url, str) else ""
        return f"webhook {hashlib.sha256(facts.encode()).hexdigest()[:12]}"

    def __call__(self, message: Message) -> None:
        ends = clock.monotonic() + self.timeout
        target = self._target(message)
        allowed = self._checked_addresses(target)
        body = json.dumps(message.payload, ensure_ascii=False, separators=(",", ":")).encode()
        secret = self.secret(message) if callable(self.secret) else self.secret
        # Of each attempt, since a receiver refuses old ones; the world's time, as receivers have.
        moment = int(time.time())
        headers = {
            "content-type": "application/json",
            "user-agent": f"django-workqueue/{__version__}",
            **{name: message.headers[name] for name in TRACE if _is_text(message.headers, name)},
            **self.headers,
            **signing.signed_headers(str(message.id), moment, body, signing.secrets_named(secret)),
        }
        # What the look-up left of the time, and a moment at least.
        left = max(ends - clock.monotonic(), LEAST_SECONDS)
        answer = sending.post(target, allowed, body, headers, timeout=left, context=self.context())
        self._judge(message, target, answer)

    def _target(self, message: Message) -> sending.Target:
        url = self.url(message) if callable(self.url) else self.url
        try:
            return sending.target_of(url, allow_http=self.allow_http)
        except ValueError as error:
            raise outbox.Terminal(f"the webhook cannot be sent: {error}") from error

    def _checked_addresses(self, target: sending.Target) -> list[addresses.Address]:
        """Return the addresses that may be connected to, looked up once."""
        found = addresses.resolve(target.host, target.port, timeout=self.timeout)
        allowed = [each for each in found if addresses.is_allowed(each, self.networks)]
        if not allowed:
            raise outbox.Terminal(
                f"{target.origin} must lead to a public address, and leads to {found[0]}. "
                "If that is meant, name its network in allow_networks."
            )
        return allowed

    def _judge(self, message: Message, target: sending.Target, answer: sending.Answer) -> None:
        """Return for a message that was taken. Raises Terminal, Retry or WebhookFailed."""
        status = answer.status
        if 200 <= status < 300:
            return
        told = f"{target.origin} answered {status}{_excerpt(answer)}"
        if 300 <= status < 400:
            raise WebhookFailed(f"{told}; redirects are not followed", status=status)
        if 400 <= status < 500 and status not in TRY_AGAIN:
            raise outbox.Terminal(told)
        asked = retry_after_seconds(answer.headers, now=time.time())
        if asked is None:
            raise WebhookFailed(told, status=status)
        # Never before it was asked for, and not sooner than without having been asked either.
        backoff = self.backoff
        own = backoff.delay_seconds(message.attempt) if isinstance(backoff, Backoff) else 0.0
        raise outbox.Retry(after=max(asked, own), message=f"{told}, and to wait {asked:g} s")


def retry_after_seconds(headers: Mapping[str, str], *, now: float) -> float | None:
    """Return the seconds that ``Retry-After`` asks for, as a number or as a date; None: it is
    not there, or nonsense.
    """
    text = {name.lower(): value for name, value in headers.items()}.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(min(int(text[:12]), arguments.MAX_SECONDS))
    try:
        moment = email.utils.parsedate_to_datetime(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return min(max(moment.timestamp() - now, 0.0), arguments.MAX_SECONDS)
    except (ValueError, OverflowError):
        return None


def webhook_destination(
    name: str,
    *,
    url: Url,
    secret: Name,
    timeout: float = 15.0,
    headers: Mapping[str, str] | None = None,
    allow_networks: Sequence[str] = (),
    allow_http: bool = False,
    ssl_context: ssl.SSLContext | None = None,
    ordered: bool = True,
    max_attempts: int = ATTEMPTS,
    backoff: Policy = PATIENT,
    result_ttl: float | None = None,
    skip_dead: bool = False,
) -> Destination:
    """Return the destination *name*, whose messages are POSTed to *url*, signed with *secret*.

    *url*, and the secret's name in the setting WORKQUEUE_WEBHOOK_SECRETS, may be functions of the
    message. Only public addresses are connected to, and those of *allow_networks*. *timeout* is for
    a whole delivery. Raises ValueError for an option that cannot be used.
    """
    if isinstance(url, str):
        sending.target_of(url, allow_http=allow_http)
    elif not callable(url):
        raise arguments.refusal("url", "a URL, or a function of the message", url, "Give one.")
    hint = "Half a minute is long: the messages of its key wait meanwhile."
    declare = outbox.destination(
        name,
        ordered=ordered,
        max_attempts=max_attempts,
        backoff=backoff,
        result_ttl=result_ttl,
        skip_dead=skip_dead,
    )
    made_once = functools.cache(ssl.create_default_context)
    posting = _Posting(
        url=url,
        secret=secret if callable(secret) else arguments.name("secret", secret),
        timeout=arguments.seconds(
            "timeout", timeout, may_be_zero=False, most=MAX_TIMEOUT, hint=hint
        ),
        networks=tuple(_network(each) for each in allow_networks),
        allow_http=allow_http,
        backoff=backoff,
        headers=_checked_headers(headers or {}),
        context=made_once if ssl_context is None else lambda: ssl_context,
    )
    return declare(posting)


def _network(text: Any) -> addresses.Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        hint = 'Write "10.1.0.0/16", or "10.1.2.3/32" for one address.'
        raise arguments.refusal("allow_networks", "networks", text, hint) from None


def _checked_headers(headers: Mapping[Any, Any]) -> dict[str, str]:
    for name, value in headers.items():
        if not isinstance(name, str) or name.lower() in OURS or name.lower().startswith("webhook-"):
            hint = "That one is set by the destination."
            raise arguments.refusal("headers", "names that are free", name, hint)
        if not isinstance(value, str) or any(character in "\r\n\0" for character in name + value):
            raise arguments.refusal("headers", "one line of text each", name, "Correct its value.")
    return {name.lower(): value for name, value in headers.items()}


def _is_text(headers: Mapping[str, Any], name: str) -> bool:
    value = headers.get(name)
    return isinstance(value, str) and value.isascii() and value.isprintable()


def _excerpt(answer: sending.Answer) -> str:
    text = answer.body.decode("utf-8", "replace").strip()[:SHOWN_CHARACTERS]
    return f": {text}" if text else ""
