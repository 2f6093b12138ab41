"""What arrived is held, whatever comes after it."""

from __future__ import annotations

import socket
import threading
from contextlib import closing

from moe_operator.staging.hosts import HostPolicy
from moe_operator.staging.stop import Stop
from moe_operator.staging.transport import Transport

ADDRESS = "127.74.3.1"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"


def test_bytes_that_came_with_the_headers_are_not_lost_to_a_stall() -> None:
    over = threading.Event()

    def say_a_little(door: socket.socket) -> None:
        connection, _ = door.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(HEAD + b"x" * 5000)
            over.wait()

    with socket.create_server((ADDRESS, 0)) as door:
        server = threading.Thread(target=say_a_little, args=(door,))
        server.start()
        try:
            transport = Transport(HostPolicy.of((ADDRESS,)), Stop(), stall_seconds=2.0)
            with closing(transport.open(f"http://{ADDRESS}:{door.getsockname()[1]}/file")) as stream:
                assert stream.readinto(memoryview(bytearray(1 << 20))) == 5000
        finally:
            over.set()
            server.join()
