"""Addresses of one sandbox: a block of 127.0.0.0/8 that no other sandbox on this machine uses.

A block is 4,096 addresses (/20). It belongs to whoever holds the abstract Unix socket of its name: the
kernel gives that to one process per network namespace and takes it back when the last holder dies, so a
crashed sandbox never leaves a block behind. No address is configured: Linux answers for all of 127/8.

Within a block, ``.1`` is the sandbox itself (API server), pods, Services and nodes get one address each.
A name that was promised an address keeps it: the ranks of a group are told the leader's address before
its pod exists, as a cluster's DNS would let them find it later.
"""

from __future__ import annotations

import errno
import socket
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

BLOCK_PREFIX = 20
DEFAULT_RANGE = IPv4Network("127.64.0.0/10")


class NoAddressLeft(Exception):
    """No block or no address is free; the text says what to do."""


@dataclass(slots=True)
class Block:
    """A block and the socket that holds it."""

    network: IPv4Network
    lock: socket.socket

    @property
    def host(self) -> str:
        """The sandbox's own address."""
        return str(self.network[1])

    def close(self) -> None:
        """Give the block back."""
        self.lock.close()


def claim_block(within: IPv4Network = DEFAULT_RANGE) -> Block:
    """Take the first free block of a range; NoAddressLeft when sandboxes hold all of them."""
    for network in within.subnets(new_prefix=max(BLOCK_PREFIX, within.prefixlen)):
        lock = _lock(network)
        if lock is not None:
            return Block(network, lock)
    raise NoAddressLeft(
        f"every block of {within} is held by another sandbox; stop one (Ctrl-C in its terminal) or name "
        "another range with --loopback-range"
    )


def _lock(network: IPv4Network) -> socket.socket | None:
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        lock.bind(f"\0moe-operator-sandbox/{network.network_address}")
    except OSError as error:
        lock.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return lock


class Addresses:
    """Who has which address of a block.

    ``of`` is stable: the same owner is always told the same address. A released address goes to a new
    owner only when no fresh one is left, the longest released first, so that an address seen in a log
    means one thing.
    """

    def __init__(self, network: IPv4Network) -> None:
        self._fresh: Iterator[IPv4Address] = iter(network.hosts())
        next(self._fresh)  # the sandbox itself
        self._owned: dict[Hashable, str] = {}
        self._released: OrderedDict[Hashable, str] = OrderedDict()
        self._network = network

    def of(self, owner: Hashable) -> str:
        """The address of ``owner``, a new one when it has none."""
        if owner in self._released:
            self._owned[owner] = self._released.pop(owner)
        if owner not in self._owned:
            self._owned[owner] = self._take()
        return self._owned[owner]

    def release(self, owner: Hashable) -> None:
        """``owner`` is gone; asking for it again gives the same address while it is still free."""
        if owner in self._owned:
            self._released[owner] = self._owned.pop(owner)

    def _take(self) -> str:
        fresh = next(self._fresh, None)
        if fresh is not None:
            return str(fresh)
        if not self._released:
            raise NoAddressLeft(f"all addresses of {self._network} are in use by running pods and Services")
        _, address = self._released.popitem(last=False)
        return address
