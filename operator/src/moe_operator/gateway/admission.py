"""The files that say who may ask and how much: from the intent and the mounted Secret to Envoy's filters.

They are written before the files that lead to engines, so no intent is served without its keys. Without any
intent, with an empty or unreadable Secret, nobody passes.

The Secret is looked at once a second (see :mod:`mount`); a change of it touches the filter of keys alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

from moe_operator.api.intent import Intent, Keys
from moe_operator.gateway import mount
from moe_operator.gateway.discovered import CONCURRENCY, KEYS, PASS, QUOTA, RATE, delivered
from moe_operator.gateway.key_filter import closed, key_filter
from moe_operator.gateway.key_limits import concurrency_filter, rate_filter
from moe_operator.gateway.keys import InForce, Keyring, keyring
from moe_operator.gateway.readback import Reading
from moe_operator.gateway.slots import assign, capacity
from moe_operator.gateway.store import Store

Json = dict[str, Any]
SLOTS = "slots.json"
LOOK_SECONDS = 1.0
NOTHING = object()  # seen of a mount so far

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeysState:
    """What is known about the keys."""

    required: bool = True
    key_ids: int = 0
    values: int = 0
    digest: str = ""
    problems: tuple[str, ...] = ()

    @classmethod
    def of(cls, keys: Keyring, *, required: bool) -> KeysState:
        """What a set of keys amounts to."""
        return cls(required, len(keys.key_ids), len(keys.hashes), keys.digest, keys.problems)


def admission_files(intent: Intent | None, keys: Keyring, slots: Mapping[str, int]) -> dict[str, str]:
    """File name → text, of every filter that depends on keys but the list of those that must wait."""
    wanted = intent or Intent(generation=0, model="")
    counted = slots if wanted.limits.concurrent_per_key else None
    return {
        KEYS: delivered(KEYS, _identity(intent, keys, counted)),
        RATE: delivered(RATE, rate_filter(wanted)),
        CONCURRENCY: delivered(CONCURRENCY, concurrency_filter(wanted, capacity(slots))),
    }


def _identity(intent: Intent | None, keys: Keyring, slots: Mapping[str, int] | None) -> Json:
    if intent is None:
        return closed()
    if intent.keys is None:
        return PASS
    return key_filter(keys, slots, forward=intent.keys.forward)


def _asks(intent: Intent) -> object:
    """What the files depend on."""
    return intent.keys, intent.limits, intent.key_limits


class Admission:
    """Keeps the files of one gateway pod in step."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._intent: Intent | None = None
        self._seen: object = NOTHING
        self._lock = asyncio.Lock()
        self.state = KeysState()

    def prepare(self, intent: Intent | None) -> None:
        """Write every file, also those that others keep later on; OSError when that fails."""
        self._store.put({QUOTA: self._store.read(QUOTA) or delivered(QUOTA, PASS)})
        self._write(intent)

    async def adopt(self, intent: Intent) -> tuple[str, ...]:
        """Go by ``intent`` from now on; the files that were replaced. OSError when they cannot be written."""
        async with self._lock:
            if self._intent is not None and _asks(intent) == _asks(self._intent) and self._is_fresh():
                self._intent = intent
                return ()
            return await asyncio.to_thread(self._write, intent)

    def in_force(self, reading: Reading | None) -> InForce:
        """The keys by which Envoy goes, in this reading of it."""
        state = self.state
        if not state.required:
            return InForce()
        applied = reading is not None and not reading.subscriptions.behind({KEYS: self._store.version(KEYS)})
        return InForce(state.values, state.digest if applied and self._is_fresh() else "")

    def metrics(self) -> Iterator[Metric]:
        """What is known about the keys."""
        state = self.state
        yield GaugeMetricFamily("moe_gateway_keys", "Key values that open the gateway.", value=state.values)
        yield GaugeMetricFamily("moe_gateway_key_ids", "Clients that have a key.", value=state.key_ids)
        yield GaugeMetricFamily("moe_gateway_keys_required", "Whether a key is needed.", value=state.required)
        yield GaugeMetricFamily(
            "moe_gateway_key_problems",
            "Entries of the Secret that are no key; the agent's log names them.",
            value=len(state.problems),
        )

    async def keep_fresh(self) -> None:
        """Take up changes of the Secret, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            async with self._lock:
                if self._intent and not self._is_fresh():
                    await self._renew(self._intent)

    def _is_fresh(self) -> bool:
        """Whether what was read last is what is mounted, as far as keys are asked for."""
        keys = self._intent.keys if self._intent else None
        return keys is None or self._seen == mount.version(self._directory(keys))

    async def _renew(self, intent: Intent) -> None:
        try:
            await asyncio.to_thread(self._write, intent)
        except OSError as error:  # a full disk may empty again
            _log.error("cannot write", extra={"fields": {"error": str(error)}})

    def _write(self, intent: Intent | None) -> tuple[str, ...]:
        asked_for = self._directory(intent.keys) if intent and intent.keys else None
        # looked at before it is read: what changes meanwhile has changed
        seen = mount.version(asked_for) if asked_for else None
        keys = _read(asked_for) if asked_for else Keyring()
        slots = assign(_known_slots(self._store), keys.key_ids)
        self._seen = NOTHING  # until all of it is written
        replaced = self._store.put({SLOTS: json.dumps(slots), **admission_files(intent, keys, slots)})
        self._intent, self._seen = intent, seen
        self.state = KeysState.of(keys, required=intent is None or intent.keys is not None)
        return replaced

    def _directory(self, keys: Keys) -> Path:
        return mount.beside(self._store.xds, keys.directory)


def _read(directory: Path) -> Keyring:
    try:
        keys = keyring(mount.entries(directory))
    except OSError as error:
        keys = Keyring(problems=(f"the mounted Secret cannot be read: {error}",))
    fields = {"ids": len(keys.key_ids), "values": len(keys.hashes), "problems": keys.problems}
    _log.log(logging.WARNING if keys.problems else logging.INFO, "keys read", extra={"fields": fields})
    return keys


def _known_slots(store: Store) -> dict[str, int]:
    try:
        return {str(key_id): int(slot) for key_id, slot in json.loads(store.read(SLOTS)).items()}
    except (ValueError, AttributeError):  # absent
        return {}
