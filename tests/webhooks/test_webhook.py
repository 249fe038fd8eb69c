"""`contrib.webhook`: signed, to a checked address only, and an answer means what HTTP says."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import itertools
import json
import socket
import ssl
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.test import override_settings

from django_workqueue.backoff import Backoff
from django_workqueue.contrib.webhook import (
    WebhookFailed,
    addresses,
    destination,
    sending,
    signing,
    webhook_destination,
)
from django_workqueue.models import DeadJob, LiveJob, Result
from django_workqueue.outbox import Message, Retry, Terminal
from django_workqueue.testing import deliver_outbox
from tests.webhooks.receiver import CERTIFICATE, HOST, Receiver, dripping, receiving

KEYS = [b"k" * 24, b"n" * 64]
SECRETS = [f"whsec_{base64.b64encode(key).decode()}" for key in KEYS]
_numbers = itertools.count()
HERE = ("127.0.0.0/8", "::1/128")

pytestmark = pytest.mark.usefixtures("own_destinations")


@pytest.fixture(autouse=True)
def _secrets() -> Iterator[None]:
    with override_settings(WORKQUEUE_WEBHOOK_SECRETS={"old": SECRETS[0], "both": SECRETS}):
        yield


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as started:
        yield started


def message(payload: Any = None, *, attempt: int = 1, **headers: Any) -> Message:
    return Message(
        id=uuid.uuid4(),
        destination="hooks",
        payload=payload,
        key="",
        attempt=attempt,
        max_attempts=3,
        headers=headers,
        published_at=datetime.now(UTC),
    )


def to(receiver: Receiver, path: str = "/hooks?token=t", **options: Any) -> Any:
    """Return a destination that leads to *receiver*."""
    defaults: dict[str, Any] = {"secret": "old", "allow_http": True, "allow_networks": HERE}
    url = f"http://127.0.0.1:{receiver.port}{path}"
    name = f"hooks-{next(_numbers)}"
    return webhook_destination(name, **{"url": url, **defaults, **options})


def answers_of(host_addresses: list[str]) -> Any:
    """Return a getaddrinfo() that answers with the next of these addresses each time."""
    looked_up: list[str] = []

    def look_up(host: str, port: int, *args: Any, **options: Any) -> Any:
        text = host
        if not host[0].isdigit():  # A number is no name to be looked up.
            looked_up.append(host)
            text = host_addresses[min(len(looked_up), len(host_addresses)) - 1]
        family = socket.AF_INET6 if ":" in text else socket.AF_INET
        return [(family, socket.SOCK_STREAM, 6, "", (text, port))]

    return look_up, looked_up


# What is sent


@pytest.mark.parametrize(("secret", "keys"), [("old", KEYS[:1]), ("both", KEYS)])
def test_request_is_signed_by_the_convention(
    receiver: Receiver, secret: str, keys: list[bytes]
) -> None:
    published = message({"type": "order.paid", "text": "naïve ☃"})
    to(receiver, secret=secret)(published)
    (got,) = receiver.got
    assert got.path == "/hooks?token=t"
    assert json.loads(got.body) == published.payload
    assert got.headers["content-type"] == "application/json"
    assert got.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert got.headers["webhook-id"] == str(published.id)
    moment = got.headers["webhook-timestamp"]
    assert abs(int(moment) - time.time()) < 60
    content = f"{published.id}.{moment}.".encode() + got.body
    expected = [
        base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode() for key in keys
    ]
    assert got.headers["webhook-signature"] == " ".join(f"v1,{each}" for each in expected)


def test_signature_is_that_of_the_convention_s_own_example() -> None:
    """The vector of its reference libraries."""
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = signing.signed_headers(
        "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b'{"test": 2432232314}', [key]
    )
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_trace_and_own_headers_go_along(receiver: Receiver) -> None:
    """Case M9: what the convention of tracing names; the rest is the publisher's own."""
    deliver = to(receiver, headers={"Authorization": "Bearer x"})
    deliver(message(1, traceparent="00-abc-def-01", tenant="acme", tracestate="a=b\r\nx: y"))
    headers = receiver.got[0].headers
    assert headers["traceparent"] == "00-abc-def-01"
    assert headers["authorization"] == "Bearer x"
    assert not {"tenant", "tracestate", "x"} & set(headers)


def test_address_and_secret_may_depend_on_the_message(receiver: Receiver) -> None:
    deliver = to(
        receiver,
        url=lambda each: f"http://127.0.0.1:{receiver.port}/{each.payload['customer']}",
        secret=lambda each: each.payload["secret"],
    )
    deliver(message({"customer": 7, "secret": "both"}))
    assert receiver.got[0].path == "/7"
    assert receiver.got[0].headers["webhook-signature"].count("v1,") == 2


def secret_of(name: str) -> str | None:
    return {"by function": SECRETS[1]}.get(name)


def test_secrets_may_come_from_a_function(receiver: Receiver) -> None:
    with override_settings(WORKQUEUE_WEBHOOK_SECRETS=f"{__name__}.secret_of"):
        to(receiver, secret="by function")(message(1))
        with pytest.raises(ImproperlyConfigured, match="must have the secret 'gone'"):
            to(receiver, secret="gone")(message(1))
    assert len(receiver.got) == 1


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "whsec_c2hvcnQ=", "whsec_%%%", SECRETS[0][6:], [SECRETS[0], "x"], [7]]
)
def test_secret_that_is_none_is_told_without_showing_it(receiver: Receiver, secret: Any) -> None:
    there = override_settings(WORKQUEUE_WEBHOOK_SECRETS={"old": secret})
    with there, pytest.raises(ImproperlyConfigured) as refused:
        to(receiver)(message(1))
    shown = secret if isinstance(secret, str) and len(secret) > 6 else SECRETS[0]
    assert shown not in str(refused.value)
    assert receiver.got == []


# What an answer means


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_success_is_a_delivery(receiver: Receiver, status: int) -> None:
    receiver.answer(status)
    assert to(receiver)(message(1)) is None


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 410, 413, 422, 451, 499])
def test_answer_that_says_never_is_the_end(receiver: Receiver, status: int) -> None:
    receiver.answer(status, b"no such customer", Retry_After="5")
    with pytest.raises(Terminal, match=rf"answered {status}: no such customer"):
        to(receiver)(message(1))


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 599])
def test_answer_that_says_not_now_is_tried_again(receiver: Receiver, status: int) -> None:
    receiver.answer(status)
    with pytest.raises(WebhookFailed, match=rf"answered {status}$") as failed:
        to(receiver)(message(1))
    assert failed.value.status == status


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirect_is_not_followed(receiver: Receiver, status: int) -> None:
    receiver.answer(status, Location=f"http://127.0.0.1:{receiver.port}/elsewhere")
    with pytest.raises(WebhookFailed, match="redirects are not followed"):
        to(receiver)(message(1))
    assert [got.path for got in receiver.got] == ["/hooks?token=t"]


@pytest.mark.parametrize(
    ("header", "attempt", "seconds"),
    [
        ("120", 1, 120),
        ("0", 1, 5),
        ("1", 3, 20),
        ("100", 3, 100),
        ("999999999999999", 1, 10 * 365 * 86_400),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 1, 5),
    ],
)
def test_retry_after_is_honoured(
    receiver: Receiver, header: str, attempt: int, seconds: float
) -> None:
    assert seconds_asked(receiver, header, attempt) == seconds


def test_retry_after_may_be_a_date(receiver: Receiver) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(hours=2), usegmt=True)
    assert 7_200 - 60 < seconds_asked(receiver, date, 1) <= 7_200


def seconds_asked(receiver: Receiver, header: str, attempt: int) -> float:
    """Return how long a delivery waits after an answer with that Retry-After."""
    receiver.answer(429, Retry_After=header)
    with pytest.raises(Retry) as asked:
        to(receiver, backoff=Backoff(base=5, factor=2, jitter=False))(message(1, attempt=attempt))
    assert asked.value.after is not None
    return float(asked.value.after)


@pytest.mark.parametrize("header", ["", "soon", "-5", "1.5", "٣", "Sun, 99 Nov 1994 08:49:37 GMT"])
def test_retry_after_that_is_nonsense_is_left_alone(header: str) -> None:
    assert destination.retry_after_seconds({"Retry-After": header}, now=0) is None


@pytest.mark.django_db
def test_delivery_and_its_retries_are_those_of_the_outbox(receiver: Receiver) -> None:
    deliver = to(receiver, max_attempts=2, backoff=Backoff(base=7, maximum=10, jitter=False))
    receiver.answer(503, Retry_After="3600")
    receiver.answer(404)
    with transaction.atomic():
        deliver.publish(1)
        deliver.publish(2)
        deliver.publish(3)
    deliver_outbox(raise_errors=False)
    row, dead = LiveJob.objects.get(), DeadJob.objects.get()
    # Held within the backoff's maximum.
    assert 0 < (row.run_after - row.enqueued_at).total_seconds() < 600
    assert "answered 503, and to wait 3600 s" in row.errors[0]["message"]
    assert (dead.reason, Result.objects.count()) == ("terminal", 1)
    stored = json.dumps([row.payload, row.headers, row.errors, dead.errors])
    assert SECRETS[0][6:] not in stored
    assert "token=t" not in stored, "a URL's path may hold a token"


def test_only_the_beginning_of_a_body_is_read(receiver: Receiver) -> None:
    receiver.answer(500, b"x" * 20_000_000)
    with pytest.raises(WebhookFailed) as failed:
        to(receiver)(message(1))
    assert len(str(failed.value)) < 300


@pytest.mark.parametrize(
    ("head", "drop"),
    [
        (b"", b"H"),
        (b"HTTP/1.1 200 OK\r\n", b"X-Drop: 1\r\n"),
        (b"HTTP/1.1 500 No\r\nContent-Length: 4000\r\n\r\n", b"x"),
    ],
)
def test_receiver_that_never_ends_is_left_in_time(head: bytes, drop: bytes) -> None:
    with dripping(head, drop, 0.02) as port:
        deliver = to(Receiver(port=port), timeout=0.3)
        with pytest.raises(TimeoutError, match="no answer within"):
            deliver(message(1))


def test_handshake_that_never_ends_is_left_in_time() -> None:
    # The head of a TLS record of 16,383 bytes, and then a byte at a time.
    with dripping(b"\x16\x03\x03\x3f\xff", b"\0", 0.02) as port:
        deliver = to(Receiver(), url=f"https://127.0.0.1:{port}/", timeout=0.3)
        with pytest.raises(TimeoutError, match="no answer within"):
            deliver(message(1))


def test_look_up_that_never_ends_is_left_in_time(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resolver has no time-out that a process could set."""
    never = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: never.wait(20))
    try:
        with pytest.raises(TimeoutError, match=r"no address of 127\.0\.0\.1 within 0\.3 s"):
            to(receiver, timeout=0.3)(message(1))
    finally:
        never.set()
    assert not receiver.got


def test_look_up_takes_its_time_from_that_of_the_delivery(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up, post, left = socket.getaddrinfo, sending.post, []

    def slow(*args: Any, **options: Any) -> Any:
        threading.Event().wait(0.2)
        return look_up(*args, **options)

    def noted(*args: Any, timeout: float, **options: Any) -> Any:
        left.append(timeout)
        return post(*args, timeout=timeout, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    monkeypatch.setattr(sending, "post", noted)
    to(receiver, timeout=10)(message(1))
    assert 0 < left[0] <= 9.8


def test_receiver_that_is_away_is_tried_again() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionRefusedError):
            to(Receiver(port=unused.getsockname()[1]))(message(1))


def test_address_that_is_not_reached_gives_way_to_the_next(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An IPv6 address, say, in a network that has only IPv4."""
    here = [ipaddress.ip_address(text) for text in ("127.0.0.9", "127.0.0.1")]
    monkeypatch.setattr(addresses, "resolve", lambda host, port, **options: here)
    to(receiver, url=f"http://{HOST}:{receiver.port}/")(message(1))
    assert [got.headers["host"] for got in receiver.got] == [f"{HOST}:{receiver.port}"]

    here.pop()
    with pytest.raises(OSError, match="refused"):
        to(receiver, url=f"http://{HOST}:{receiver.port}/")(message(1))


def test_answer_that_is_not_http_is_tried_again() -> None:
    speaking = dripping(b"220 mail.example.test ESMTP\r\n", b"", 0.02)
    with speaking as port, pytest.raises(OSError, match="did not answer in HTTP"):
        to(Receiver(port=port))(message(1))


# Where it is sent


@pytest.mark.parametrize(
    "text",
    [
        "0.0.0.0",
        "10.0.0.1",
        "100.64.0.1",
        "127.0.0.1",
        "169.254.169.254",
        "172.16.0.1",
        "192.0.0.8",
        "192.0.2.1",
        "192.168.1.1",
        "198.18.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::ffff:0:127.0.0.1",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::808:808",
        "2001::1",
        "2001:db8::1",
        "2002:7f00:1::",
        "2002:a9fe:a9fe::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "ff02::1",
    ],
)
def test_address_that_is_not_public_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    look_up, _ = answers_of([text])
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(socket, "create_connection", None)  # Nobody may call it.
    deliver = webhook_destination("hooks", url=f"https://{HOST}/", secret="old")
    with pytest.raises(Terminal, match="must lead to a public address"):
        deliver(message(1))


@pytest.mark.parametrize(
    "text",
    ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"],
)
def test_address_that_is_public_is_connected_to(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connected: list[Any] = []

    def connect(address: Any, timeout: float) -> Any:
        connected.append(address)
        raise ConnectionRefusedError

    look_up, _ = answers_of([text])
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(socket, "create_connection", connect)
    deliver = webhook_destination("hooks", url=f"https://{HOST}/", secret="old")
    with pytest.raises(ConnectionRefusedError):
        deliver(message(1))
    plain = str(addresses.plain(ipaddress.ip_address(text)))
    assert connected == [(plain, 443)]


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f000001", "0177.0.0.1", "localhost"])
def test_loopback_in_another_notation_is_refused(receiver: Receiver, host: str) -> None:
    url = f"http://{host}:{receiver.port}/"
    with pytest.raises(Terminal, match="leads to (127.0.0.1|::1)"):
        to(receiver, url=url, allow_networks=())(message(1))
    to(receiver, url=url)(message(1))
    assert len(receiver.got) == 1, "the control: allowed, it is reached"


def test_name_that_changes_its_mind_gains_nothing(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS rebinding: the second look-up, which there is not, would lead inside."""
    connected: list[Any] = []
    look_up, looked_up = answers_of(["8.8.8.8", "127.0.0.1"])

    def connect(address: Any, timeout: float) -> Any:
        connected.append(address)
        # Where a second look-up would have led.
        raise ConnectionRefusedError(look_up(HOST, 0)[0][4][0])

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(socket, "create_connection", connect)
    deliver = to(receiver, url=f"http://{HOST}:{receiver.port}/", allow_networks=())
    with pytest.raises(ConnectionRefusedError, match="127.0.0.1"):
        deliver(message(1))
    assert connected == [("8.8.8.8", receiver.port)]
    assert looked_up == [HOST, HOST], "the second look-up is the test's own"
    assert receiver.got == []


@pytest.mark.parametrize("trusted", [True, False])
def test_name_stays_in_certificate_sni_and_host(
    trusted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up, _ = answers_of(["127.0.0.1"])
    context = ssl.create_default_context(cafile=CERTIFICATE if trusted else None)
    with receiving(tls=True) as receiver:
        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        options: dict[str, Any] = {"ssl_context": context, "allow_http": False}
        deliver = to(receiver, url=f"https://{HOST}:{receiver.port}/", **options)
        if trusted:
            deliver(message(1))
            assert receiver.got[0].headers["host"] == f"{HOST}:{receiver.port}"
        else:
            with pytest.raises(ssl.SSLCertVerificationError):
                deliver(message(1))
        assert receiver.names == [HOST]
        wrong = to(receiver, url=f"https://other.example.test:{receiver.port}/", **options)
        with pytest.raises(ssl.SSLCertVerificationError):
            wrong(message(1))


def test_address_of_version_6_in_a_url_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    connected: list[Any] = []

    def connect(address: Any, timeout: float) -> Any:
        connected.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(Terminal, match="leads to ::1"):
        to(Receiver(), url="http://[::1]:8080/", allow_networks=())(message(1))
    with pytest.raises(ConnectionRefusedError):
        to(Receiver(), url="http://[::1]:8080/")(message(1))
    assert connected == [("::1", 8080)]


def test_proxy_of_the_environment_is_not_asked(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1/")
    to(receiver)(message(1))
    assert len(receiver.got) == 1


# Declaring


def test_one_name_is_one_webhook_and_no_message_shows_where_it_leads() -> None:
    options: dict[str, Any] = {"secret": "old", "headers": {"Authorization": "Bearer t0p"}}
    first = "https://example.com/?token=t0ken"
    webhook_destination("hooks", url=first, **options)
    webhook_destination("hooks", url=first, **options)
    with pytest.raises(ValueError, match="no other destination") as refused:
        webhook_destination("hooks", url="https://example.com/?token=another", **options)
    assert "t0" not in str(refused.value)
    assert "token" not in str(refused.value)


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("url", {"url": "http://example.com/"}),
        ("url", {"url": "ftp://example.com/"}),
        ("url", {"url": "file:///etc/passwd"}),
        ("url", {"url": "https://"}),
        ("url", {"url": "https://user:password@example.com/"}),
        ("url", {"url": "https://example.com/a b"}),
        ("url", {"url": "https://example.com/\r\nX: y"}),
        ("url", {"url": "https://example.com/☃"}),
        ("url", {"url": 7}),
        ("secret", {"secret": ""}),
        ("timeout", {"timeout": 0}),
        ("timeout", {"timeout": 301}),
        ("headers", {"headers": {"Host": "x"}}),
        ("headers", {"headers": {"webhook-id": "x"}}),
        ("headers", {"headers": {"X": "a\r\nB: c"}}),
        ("allow_networks", {"allow_networks": ["10.0.0.1/8"]}),
        ("allow_networks", {"allow_networks": ["intranet"]}),
        ("max_attempts", {"max_attempts": 0}),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(argument: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{argument} "):
        webhook_destination("hooks", **{"url": "https://example.com/", "secret": "old", **options})


@pytest.mark.parametrize("url", ["https://example.com:0x/", "https://example.com:99999/"])
def test_port_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="[Pp]ort"):
        webhook_destination("hooks", url=url, secret="old")


def test_url_of_a_message_that_cannot_be_used_is_the_end() -> None:
    deliver = webhook_destination("hooks", url=lambda each: each.payload, secret="old")
    with pytest.raises(Terminal, match="url must begin with https, got 'http'. Use https"):
        deliver(message("http://example.com/"))
    with pytest.raises(Terminal, match="url must be a string, got an instance of NoneType"):
        deliver(message(None))


def test_names_beyond_ascii_are_looked_up_as_name_servers_have_them() -> None:
    target = sending.target_of("https://bücher.example/a?b=c", allow_http=False)
    assert (target.host, target.port, target.path) == ("xn--bcher-kva.example", 443, "/a?b=c")
    assert target.origin == "https://xn--bcher-kva.example:443"
