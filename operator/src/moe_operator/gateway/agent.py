"""Bring the newest intent into Envoy and say truthfully what Envoy runs.

An intent is *offered* by anyone, *written* as files, and *settled* when Envoy has either accepted every
file or refused one. Accepted: it becomes the intent to fall back to. Refused: Envoy goes on with what it
had, the files go back to the accepted intent so that a restart of Envoy finds good ones, and the reason
is kept for ``/ack``.

Invariants: an intent older than one already seen, on disk or in memory, is ignored; nothing is cached
about Envoy between two readings; losing Envoy or this process at any moment loses nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path

from pydantic import ValidationError

from moe_operator.api.intent import Ack, Intent, Queue
from moe_operator.gateway import readback, validate
from moe_operator.gateway.address import Address
from moe_operator.gateway.admin import Admin, EnvoyAway
from moe_operator.gateway.discovered import FILTERS, OF_AN_INTENT
from moe_operator.gateway.files import version_of
from moe_operator.gateway.keys import InForce
from moe_operator.gateway.readback import Reading, Subscriptions
from moe_operator.gateway.render import render_intent
from moe_operator.gateway.store import Store
from moe_operator.gateway.watch import FROM_MOUNT

FIRST_LOOK_SECONDS = 0.01  # after a write; then ever slower while Envoy has not answered for it
SLOWEST_LOOK_SECONDS = 1.0
LOOK_GROWTH = 1.5
REFUSAL_LOOKS = 3  # a refusal must outlive this many looks: a late one may belong to the file before

DEFAULT_INTENT = Intent(generation=0, model="", queue=Queue(max_waiting=0))

Prepare = Callable[[Intent], Awaitable[tuple[str, ...]]]  # files replaced; OSError when it cannot be done now
KeysInForce = Callable[[Reading | None], InForce]

_log = logging.getLogger(__name__)


class Cause(Enum):
    """Who has something against an intent."""

    TEXT = "text"  # it cannot be read
    DISK = "disk"  # its files cannot be written
    ENVOY = "envoy"  # Envoy refused a file


class Agent:
    """One gateway pod's link between the operator's intent and Envoy."""

    def __init__(
        self,
        store: Store,
        admin: Admin,
        envoy: str | None,
        room: Address,
        before_routes: Prepare,
        keys_in_force: KeysInForce,
    ) -> None:
        self._store = store
        self._admin = admin
        self._envoy = envoy  # command that can validate; None = say only which file was refused
        self._room = room  # where requests wait while no engine can take them
        self._before_routes = before_routes  # what must be in force before an intent's routes are
        self._keys_in_force = keys_in_force
        self._accepted = store.accepted()
        self._wanted: Intent | None = None
        self._received = max(store.generation(), self._accepted.generation if self._accepted else -1)
        self._handled = -1  # newest generation taken in this life of the agent
        self._reasons: dict[Cause, str] = {}  # why the newest intent does not run; empty = no reason known
        self._changed = asyncio.Event()  # replaced at every change; hold it before looking
        self.rejections = 0

    @property
    def received_generation(self) -> int:
        """Newest generation seen, also by an earlier life of the agent; -1 = none."""
        return self._received

    @property
    def intent(self) -> Intent:
        """The newest one that can be read; one under which nobody waits while none is known."""
        return self._wanted or self._accepted or DEFAULT_INTENT

    @property
    def drain_seconds(self) -> int:
        """How long the intent lets streams run once the pod is told to go."""
        return self.intent.drain_seconds

    async def engines_ready(self) -> bool:
        """Whether Envoy would send a request to an engine now."""
        try:
            return any(host.takes_requests for host in await self._admin.hosts())
        except EnvoyAway:
            return False

    def offer(self, text: str, origin: str) -> None:
        """Take an intent as text unless it is old; one that cannot be read counts as refused."""
        try:
            intent = Intent.model_validate_json(text)
        except ValidationError as error:
            self._take_unreadable(text, origin, error)
            return
        fields = {"generation": intent.generation, "origin": origin}
        if intent.generation >= self._received:
            self._reasons.pop(Cause.TEXT, None)
        if not self._is_news(intent.generation):
            if intent.generation < self._received:
                _log.info("older intent ignored", extra={"fields": fields})
            return
        _log.info("intent received", extra={"fields": fields})
        self._received = self._handled = intent.generation
        self._wanted = intent
        self._reasons.pop(Cause.ENVOY, None)
        self._announce()

    def _is_news(self, generation: int) -> bool:
        # What an earlier life saw is taken once more: nobody knows whether Envoy had answered for it.
        return generation >= self._received and generation != self._handled

    def _take_unreadable(self, text: str, origin: str, error: ValidationError) -> None:
        generation = _generation_in(text)
        if generation is None and origin == FROM_MOUNT and self._received >= 0:
            return  # a stale mount says nothing about the intent that the API server holds
        if generation is not None:
            if not self._is_news(generation):
                return
            self._received = self._handled = generation
        self._blame(Cause.TEXT, f"not an intent ({origin}): {error}")

    async def keep_settled(self) -> None:
        """Settle every intent that is offered; runs until cancelled."""
        settled: Intent | None = None
        while True:
            changed, wanted = self._changed, self._wanted
            if wanted is None or wanted is settled:
                await changed.wait()
                continue
            await self._settle(wanted)
            settled = wanted

    async def _settle(self, intent: Intent) -> None:
        """Return when Envoy has accepted or refused ``intent``, or a newer one is wanted."""
        files = self._rendered(intent)
        before = await self._put(intent, files)
        pauses, looks_refused = _pauses(), 0
        while self._wanted is intent:
            changed = self._changed
            seen, wanted = await self._subscriptions(), self._versions(files)
            if seen is None:
                before = {}  # a new Envoy counts from zero
            elif not seen.behind(wanted):
                await self._accept(intent)
                return
            elif refused := seen.refused(wanted, before):
                looks_refused += 1
                if looks_refused >= REFUSAL_LOOKS:
                    await self._roll_back(intent, refused)
                    return
            await _wait(changed, next(pauses))

    def _versions(self, files: Mapping[str, str]) -> dict[str, str]:
        """What must be in force before the intent of ``files`` is: they, and the filters beside them."""
        filters = {name: self._store.version(name) for name in OF_AN_INTENT}
        return filters | {name: version_of(text) for name, text in files.items()}

    def _rendered(self, intent: Intent | None) -> dict[str, str]:
        return render_intent(intent, self._store.xds, self._room)

    async def _put(self, intent: Intent, files: Mapping[str, str]) -> Mapping[str, int]:
        """Write ``files``, however long that takes; the refusals that were there before.

        A file that already lay there may have been refused before we came, so it starts from zero.
        """
        before = await self._refusals()
        while (written := await self._write(intent, files)) is None and self._wanted is intent:
            await _wait(self._changed, SLOWEST_LOOK_SECONDS)
        return {name: before.get(name, 0) for name in written or ()}

    async def _write(self, intent: Intent | None, files: Mapping[str, str]) -> tuple[str, ...] | None:
        """The names of the files that were replaced; None when they cannot be written now."""
        try:
            filters = await self._before_routes(intent) if intent else ()
            written = (*filters, *await asyncio.to_thread(self._store.put, files))
        except OSError as error:  # a full disk may empty again
            self._blame(Cause.DISK, f"cannot write: {error}")
            return None
        self._reasons.pop(Cause.DISK, None)
        _log.info("files written", extra={"fields": {"files": written}})
        return written

    async def _accept(self, intent: Intent) -> None:
        self._accepted = intent
        _log.info("intent accepted", extra={"fields": {"generation": intent.generation}})
        self._announce()
        try:
            await asyncio.to_thread(self._store.remember, intent)
        except OSError as error:  # only a restart of this agent would miss it, and the API has it
            _log.error("accepted intent not kept", extra={"fields": {"error": str(error)}})

    async def _roll_back(self, intent: Intent, refused: tuple[str, ...]) -> None:
        reason = await self._reason(intent, refused)
        if self._wanted is intent:
            good = None if self._accepted == intent else self._accepted  # a pod may be born with a bad one
            await self._write(good, self._rendered(good))
            self._blame(Cause.ENVOY, reason)

    async def _reason(self, intent: Intent, refused: tuple[str, ...]) -> str:
        fallback = _without_words(refused)
        if self._envoy is None:
            return fallback
        try:
            files = self._store.site_files() | self._rendered(intent)
            return await validate.refusal(files, self._envoy, Path(self._store.xds)) or fallback
        except (OSError, TimeoutError) as error:
            return f"{fallback} (validating failed: {error!r})"

    def _blame(self, cause: Cause, reason: str) -> None:
        if reason == self._reasons.get(cause):
            return
        self._reasons[cause] = reason
        self.rejections += 1
        fields = {"generation": self._received, "cause": cause.value, "reason": reason}
        _log.error("intent rejected", extra={"fields": fields})
        self._announce()

    async def read(self) -> Reading | None:
        """Look at Envoy now; None when it does not answer."""
        try:
            return await self._admin.read()
        except EnvoyAway:
            return None

    async def ack(self) -> Ack:
        """What Envoy runs at this moment and what became of the newest intent."""
        reading = await self.read()
        against = "; ".join((*self._reasons.values(), *self._refused_filters(reading)))
        keys = self._keys_in_force(reading)
        return readback.ack(reading, self.applied(reading), self._received, against, keys)

    def applied(self, reading: Reading | None) -> int:
        """The newest intent that is in force, filters and all; -1 = none."""
        if reading is None or self._accepted is None:
            return -1
        return min(reading.subscriptions.generation, self._accepted.generation)

    def _refused_filters(self, reading: Reading | None) -> Iterator[str]:
        """Filters change beside intents, too: with the Secret, and with what keys have used up."""
        wanted = {name: self._store.version(name) for name in FILTERS}
        if reading and (refused := reading.subscriptions.refused(wanted, {})):
            yield _without_words(refused)

    async def ack_of(self, generation: int, timeout: float) -> Ack:
        """:meth:`ack` once ``generation`` or a newer one is settled, or after ``timeout`` seconds.

        Envoy is read when the answer may be yes, and now and then: while it takes an intent up, every reading
        makes that slower.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        while True:
            changed, answer = self._changed, await self.ack()
            refused = answer.rejected and answer.received_generation >= generation
            left = deadline - clock()
            if answer.generation >= generation or refused or left <= 0:
                return answer
            again = clock() + min(left, SLOWEST_LOOK_SECONDS)
            while await _wait(changed, again - clock()) and not self._may_be_settled(generation):
                changed = self._changed

    def _may_be_settled(self, generation: int) -> bool:
        """Whether ``generation`` was accepted or something is wrong with it, as far as is known here."""
        return bool(self._reasons) or (self._accepted is not None and self._accepted.generation >= generation)

    def _announce(self) -> None:
        """Wake everybody who waits for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _subscriptions(self) -> Subscriptions | None:
        try:
            return await self._admin.subscriptions()
        except EnvoyAway:
            return None

    async def _refusals(self) -> Mapping[str, int]:
        seen = await self._subscriptions()
        return seen.refusals if seen else {}


async def _wait(changed: asyncio.Event, seconds: float) -> bool:
    """Whether it changed within ``seconds``."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):  # wait_for of Python 3.11 may swallow a cancellation
            await changed.wait()
    return changed.is_set()


def _pauses() -> Iterator[float]:
    pause = FIRST_LOOK_SECONDS
    while True:
        yield pause
        pause = min(SLOWEST_LOOK_SECONDS, pause * LOOK_GROWTH)


def _without_words(refused: tuple[str, ...]) -> str:
    return f"Envoy refused {', '.join(refused)}; its log says why"


def _generation_in(text: str) -> int | None:
    """The generation of an intent that is otherwise unreadable, where it can be told."""
    try:
        value = json.loads(text)["generation"]
    except (ValueError, KeyError, TypeError):
        return None
    return value if isinstance(value, int) and value >= 0 else None
