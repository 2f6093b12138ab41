"""The connections of one server: none outlives it, and it waits for none.

asyncio's own ways of ending a server either leave its connections be or, since Python 3.12, wait until their
peers hang up. Envoy never does, and connects again when it is hung up on; so the door is closed first, then
every connection is ended, those that were accepted a moment ago with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def accepting(
    start: Callable[[Handle], Awaitable[asyncio.Server]], handle: Handle
) -> AsyncIterator[None]:
    """Serve while entered; leaving cancels what is being handled. OSError when the address is taken.

    ``start`` opens the door for a handler: ``asyncio.start_server`` or its like, its address bound.
    """
    handled: set[asyncio.Task[None]] = set()
    closed = False

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if closed:
            writer.transport.abort()
            return
        handled.add(task)
        try:
            await handle(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()  # whoever does not read must not hold us up
        finally:
            handled.discard(task)
            writer.close()

    server = await start(connection)
    try:
        yield
    finally:
        closed = True
        server.close()
        for task in tuple(handled):
            task.cancel()
        await asyncio.gather(*handled, return_exceptions=True)
        await server.wait_closed()
