"""Which addresses a webhook may be sent to: public ones, unless others are allowed.

What is looked up is what is connected to: a name that leads to a public address when it is checked,
and to a private one a moment later, gains nothing.
"""

from __future__ import annotations

import ipaddress
import queue
import socket
import threading
from collections.abc import Sequence
from typing import Any, Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# An address of one of these leads to the IPv4 address in its last 32 bits.
NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")

# Beyond what Python itself calls not global, which differs between its versions.
NOT_PUBLIC: Final = tuple(
    map(
        ipaddress.ip_network,
        (
            "0.0.0.0/8",
            "100.64.0.0/10",  # Behind a carrier's NAT, and some clouds' metadata.
            "192.0.0.0/24",
            "192.88.99.0/24",
            "198.18.0.0/15",
            "240.0.0.0/4",
            "::/96",  # IPv4 in its oldest disguise, and in another.
            "::ffff:0:0:0/96",
            "64:ff9b:1::/48",  # NAT64 of somebody's own network.
            "100::/64",
            "2001::/23",  # Teredo among others.
            "2001:db8::/32",
            "3fff::/20",
            "5f00::/16",
            "fec0::/10",
        ),
    )
)


def resolve(host: str, port: int, *, timeout: float) -> list[Address]:
    """Return the addresses of *host*, in the resolver's order. Raises OSError if it has none.

    Numbers in every notation that the C library takes are resolved by it, too. It has no time-out
    of its own: it is asked in a thread, which is left to itself after *timeout* seconds, and ends
    when the resolver gives up. Raises TimeoutError then.
    """
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            answers.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except Exception as error:  # noqa: BLE001  # whatever it is, it is raised in the other thread
            answers.put(error)

    threading.Thread(target=look_up, name="workqueue-look-up", daemon=True).start()
    try:
        found = answers.get(timeout=timeout)
    except queue.Empty:
        raise TimeoutError(f"no address of {host} within {timeout:g} s") from None
    if isinstance(found, Exception):
        raise found
    return [plain(ipaddress.ip_address(str(each[4][0]))) for each in found]


def plain(address: Address) -> Address:
    """Return the address that *address* stands for: IPv4 that is written as IPv6."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.sixtofour or address


def is_allowed(address: Address, networks: Sequence[Network]) -> bool:
    """Tell whether a webhook may be sent to *address*: a public one, or one of *networks*."""
    return is_public(address) or any(
        address.version == each.version and address in each for each in networks
    )


def is_public(address: Address) -> bool:
    """Tell whether *address* is one of the public Internet, and of a single host."""
    listed = any(address.version == each.version and address in each for each in NOT_PUBLIC)
    return address.is_global and not address.is_multicast and not listed
