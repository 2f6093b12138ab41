"""A server that ends takes its connections with it, whatever their peers do."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from moe_operator.gateway.connections import accepting

PATIENCE = 30.0


class Peers:
    """Clients that never hang up, and what the server does with each of them."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path, self._stack = str(path), stack
        self.handled = self.left = 0
        self.came = asyncio.Event()
        self.start = partial(asyncio.start_unix_server, path=self._path)

    async def handle(self, reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        self.handled += 1
        self.came.set()
        try:
            await reader.read(1)
        finally:
            self.left += 1

    def connect(self) -> socket.socket:
        client = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        client.settimeout(PATIENCE)
        client.connect(self._path)
        return client


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Peers]:
    with ExitStack() as stack:
        yield Peers(tmp_path / "s", stack)


async def said(client: socket.socket) -> bytes:
    """All until the server hangs up, politely or not."""
    try:
        return await asyncio.to_thread(client.recv, 100)
    except ConnectionResetError:
        return b""


async def test_a_peer_that_stays_is_hung_up_on(peers: Peers) -> None:
    async with asyncio.timeout(PATIENCE):
        async with accepting(peers.start, peers.handle):
            client = peers.connect()
            await peers.came.wait()
        assert await said(client) == b""
    assert (peers.handled, peers.left) == (1, 1)


async def test_a_peer_that_connects_as_the_server_ends_is_hung_up_on(peers: Peers) -> None:
    async with asyncio.timeout(PATIENCE):
        async with accepting(peers.start, peers.handle):
            peers.connect()
            await peers.came.wait()
            late = peers.connect()  # nobody has looked at it when the door is closed
        assert await said(late) == b""
    assert peers.handled == peers.left


async def test_an_answer_that_is_done_reaches_its_reader(peers: Peers) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"done")

    async with asyncio.timeout(PATIENCE), accepting(peers.start, answer):
        assert await said(peers.connect()) == b"done"
