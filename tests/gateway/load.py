"""Clients that keep asking: short requests and streams beside each other."""

from __future__ import annotations

import asyncio

from tests.gateway.client import Answer, Client
from tests.gateway.pod import Pod, until


class Load:
    """Clients that keep asking until told to stop; anything but a whole answer is a failure."""

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        self.sent = self.streamed = 0
        self.failures: list[object] = []
        self.stop = False

    async def requests(self) -> None:
        client = self.pod.client()
        while not self.stop:
            answer = await self._try(client, stream=False)
            if answer and answer.status != 200:
                self.failures.append(answer)

    async def streams(self) -> None:
        client = self.pod.client()
        while not self.stop:
            answer = await self._try(client, stream=True)
            self.streamed += 1
            if answer and not answer.complete:
                self.failures.append(answer)

    async def sent_at_least(self, number: int) -> None:
        async def so() -> bool:
            return self.sent >= number

        await until(so)

    async def _try(self, client: Client, *, stream: bool) -> Answer | None:
        try:
            return await client.chat(stream=stream)
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            self.failures.append(error)
            return None
        finally:
            self.sent += 1
