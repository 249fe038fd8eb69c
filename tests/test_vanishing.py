"""`vanishing`: TCP's limits on a worker's connections, whose server may end without a word."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from django_workqueue import vanishing

LIMITS = {
    "TCP_KEEPIDLE": 15,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 30_000,
}


def limits_of(its: socket.socket) -> dict[str, int]:
    return {name: its.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in LIMITS}


def wrapper(driver: Any, **options: Any) -> Any:
    """Return as much of Django's connection as is looked at."""
    return SimpleNamespace(connection=driver, settings_dict={"OPTIONS": options})


@pytest.fixture
def client() -> Iterator[socket.socket]:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        yield client


@pytest.mark.parametrize("wrap", [lambda its: its, lambda its: SimpleNamespace(_sock=its)])
def test_a_socket_of_tcp_gets_them_and_stays_open(wrap: Any, client: socket.socket) -> None:
    vanishing.set_limits(wrapper(wrap(client)), 30)
    assert limits_of(client) == LIMITS
    assert client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    client.send(b"still open")


@pytest.mark.parametrize("blocking", [True, False])
def test_a_project_s_default_timeout_changes_nothing_of_the_driver_s_socket(
    client: socket.socket, *, blocking: bool
) -> None:
    """PyMySQL reads from a socket that blocks, libpq from one that does not."""
    client.setblocking(blocking)
    socket.setdefaulttimeout(10)
    try:
        vanishing.set_limits(wrapper(client), 30)
    finally:
        socket.setdefaulttimeout(None)
    assert os.get_blocking(client.fileno()) is blocking
    assert limits_of(client) == LIMITS


@pytest.mark.parametrize("option", sorted({*vanishing.OWN_OPTIONS, "keepalives_count"}))
def test_what_the_project_has_set_is_left_alone(option: str, client: socket.socket) -> None:
    before = limits_of(client)
    vanishing.set_limits(wrapper(client, **{option: 1}), 30)
    assert limits_of(client) == before


def test_other_sockets_and_those_that_are_closed_are_left_alone() -> None:
    one, other = socket.socketpair()
    with one, other:
        vanishing.set_limits(wrapper(one), 30)
    vanishing.set_limits(wrapper(one), 30)
    vanishing.set_limits(wrapper(object()), 30)
    vanishing.set_limits(wrapper(None), 30)


@pytest.mark.django_db(transaction=True)
@pytest.mark.vendor("mysql")
def test_of_this_process_the_open_connections_and_the_new_ones_get_them_for_a_while() -> None:
    def found() -> dict[str, int]:
        connection.ensure_connection()
        number = vanishing.descriptor(connection.connection)
        assert number is not None
        its = socket.socket(fileno=number)
        try:
            return limits_of(its)
        finally:
            its.detach()

    connection.close()
    before = found()
    assert before["TCP_USER_TIMEOUT"] == 0
    with vanishing.noticed(30):
        assert found() == LIMITS
        connection.close()
        assert found() == LIMITS
    connection.close()
    assert found() == before


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("seconds", "expected"), [(30.0, 30), (0.2, vanishing.LEAST_SECONDS), (7.6, 8)]
)
def test_a_worker_s_are_those_of_its_lease(
    seconds: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(vanishing, "set_limits", lambda connection, seconds: asked.append(seconds))
    call_command("runworker", drain=True, processes=0, lease=seconds, verbosity=0)
    assert set(asked) == {expected}
