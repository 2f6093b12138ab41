from __future__ import annotations

import os
import socket
from ipaddress import IPv4Network

import pytest
from moe_operator.sandbox.loopback import Addresses, NoAddressLeft, claim_block
from moe_operator.sandbox.taken_port import Holder, PortTaken, holder_of, is_taken

ONE_PAIR = IPv4Network("127.63.224.0/19")  # room for two blocks, of the range that these tests own


def test_blocks_are_held_by_one_sandbox_each_until_given_back() -> None:
    first, second = claim_block(ONE_PAIR), claim_block(ONE_PAIR)
    try:
        assert (first.host, second.host) == ("127.63.224.1", "127.63.240.1")
        with pytest.raises(NoAddressLeft, match="--loopback-range"):
            claim_block(ONE_PAIR)
        first.close()
        again = claim_block(ONE_PAIR)
        assert again.host == "127.63.224.1"
        again.close()
    finally:
        first.close()
        second.close()


def test_an_owner_keeps_its_address_and_others_have_others() -> None:
    addresses = Addresses(IPv4Network("127.60.0.0/29"))
    assert addresses.of("a") == "127.60.0.2"
    assert addresses.of("b") == "127.60.0.3"
    assert addresses.of("a") == "127.60.0.2"


def test_a_released_address_comes_back_to_its_owner_and_is_reused_only_at_the_end() -> None:
    addresses = Addresses(IPv4Network("127.60.0.0/29"))
    first = [addresses.of(n) for n in range(3)]
    addresses.release(0)
    addresses.release(1)
    assert addresses.of(3) not in first  # fresh ones first
    assert addresses.of(1) == first[1]  # its own again
    addresses.release(1)
    assert addresses.of(4) not in first
    assert addresses.of(5) == first[0]  # then the one released longest ago
    assert addresses.of(6) == first[1]
    with pytest.raises(NoAddressLeft):
        addresses.of(7)


def test_a_taken_port_has_a_holder() -> None:
    with socket.socket() as listener:
        listener.bind(("127.63.255.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert is_taken("127.63.255.1", port)
        assert not is_taken("127.63.255.2", port)
        holder = holder_of("127.63.255.1", port)
        assert holder is not None
        assert (holder.address, holder.port, holder.pid) == ("127.63.255.1", port, os.getpid())
        assert holder_of("127.63.255.2", port) is None
    assert not is_taken("127.63.255.1", port)


def test_the_error_names_the_holder_and_the_next_step() -> None:
    told = str(PortTaken("127.60.0.5", 8000, Holder("0.0.0.0", 8000, 42, "python3")))
    assert "127.60.0.5:8000 is taken by python3 (pid 42), listening on 0.0.0.0:8000" in told
    assert "Stop it" in told
    assert "another user" in str(PortTaken("127.60.0.5", 8000, Holder("0.0.0.0", 8000, None, "")))
