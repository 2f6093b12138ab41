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
from moe_operator.gateway.keys import Keyring, keyring
from moe_operator.gateway.slots import assign, capacity
from moe_operator.gateway.store import Store

Json = dict[str, Any]
SLOTS = "slots.json"
LOOK_SECONDS = 1.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeysState:
    """What is known about the keys."""

    required: bool = True
    key_ids: int = 0
    values: int = 0
    problems: tuple[str, ...] = ()


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


class Admission:
    """Keeps the files of one gateway pod in step."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._intent: Intent | None = None
        self._seen: object = None
        self._lock = asyncio.Lock()
        self.state = KeysState()

    def prepare(self, intent: Intent | None) -> None:
        """Write every file, also those that others keep later on; OSError when that fails."""
        self._store.put({QUOTA: self._store.read(QUOTA) or delivered(QUOTA, PASS)})
        self._write(intent)

    async def adopt(self, intent: Intent) -> None:
        """Go by ``intent`` from now on; OSError when the files cannot be written."""
        async with self._lock:
            await asyncio.to_thread(self._write, intent)

    def keys(self) -> int | None:
        """Key values that open the gateway; None while none is asked for."""
        return self.state.values if self.state.required else None

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
                if (
                    self._intent
                    and self._intent.keys
                    and self._seen != mount.version(self._directory(self._intent.keys))
                ):
                    await self._renew(self._intent)

    async def _renew(self, intent: Intent) -> None:
        try:
            await asyncio.to_thread(self._write, intent)
        except OSError as error:  # a full disk may empty again
            _log.error("cannot write", extra={"fields": {"error": str(error)}})
            self._seen = None

    def _write(self, intent: Intent | None) -> None:
        self._intent = intent
        keys = self._keys(intent)
        slots = assign(_known_slots(self._store), keys.key_ids)
        self._store.put({SLOTS: json.dumps(slots), **admission_files(intent, keys, slots)})

    def _directory(self, keys: Keys) -> Path:
        return mount.beside(self._store.xds, keys.directory)

    def _keys(self, intent: Intent | None) -> Keyring:
        if intent is None or intent.keys is None:
            self.state = KeysState(required=intent is None)
            return Keyring()
        directory = self._directory(intent.keys)
        self._seen = mount.version(directory)  # before reading: a change while we read is a change
        keys = _read(directory)
        self.state = KeysState(True, len(keys.key_ids), len(keys.hashes), keys.problems)
        fields = {"ids": self.state.key_ids, "values": self.state.values, "problems": keys.problems}
        _log.log(logging.WARNING if keys.problems else logging.INFO, "keys read", extra={"fields": fields})
        return keys


def _read(directory: Path) -> Keyring:
    try:
        return keyring(mount.entries(directory))
    except OSError as error:
        return Keyring(problems=(f"the mounted Secret cannot be read: {error}",))


def _known_slots(store: Store) -> dict[str, int]:
    try:
        return {str(key_id): int(slot) for key_id, slot in json.loads(store.read(SLOTS)).items()}
    except (ValueError, AttributeError):  # absent
        return {}
