"""One process of a group: what both engines and both roles share.

Holds the settings and faults, reads the weights at the pace that was asked for, computes the memory of the
ranks on this node, reacts to SIGTERM, and watches the faults that act by themselves (F44, the faults file).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

from .admin import Admin
from .checkpoint import Weights, read_shards
from .faults import FaultError, Faults, parse_faults
from .memory import Facts, KvNeed, RankMemory, kv_need, weight_bytes
from .outcome import leave
from .parallel import Parallel
from .settings import GIB, Settings

WATCH = 0.1


class Terminated(Exception):
    """SIGTERM arrived before the engine served."""


@dataclass(slots=True)
class Node:
    """One node; ``state`` is shown by the admin port as it is."""

    engine: str
    settings: Settings
    faults: Faults
    parallel: Parallel
    weights: Weights | None = None
    memory: tuple[RankMemory, ...] = ()
    state: dict[str, Any] = field(default_factory=dict)
    terminate: asyncio.Event = field(default_factory=asyncio.Event)
    _background: list[asyncio.Task[None]] = field(default_factory=list)

    def phase(self, name: str) -> None:
        """Enter a phase; faults select by it."""
        self.faults.phase = name

    async def open(self) -> None:
        """Install the SIGTERM handler, open the admin port, start watching faults."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._on_sigterm)
        if self.settings.admin_port is not None:
            await Admin(self.faults, self.describe).listen(self.settings.admin_host, self.settings.admin_port)
        self._background.append(asyncio.create_task(self._watch()))

    def describe(self) -> dict[str, Any]:
        """What ``GET /_stub/state`` answers."""
        return {
            "engine": self.engine,
            "node": self.parallel.node,
            "nodes": self.parallel.nodes,
            "world": self.parallel.world,
            "phase": self.faults.phase,
            "requests": self.faults.requests,
            "weights": self.weights.identity if self.weights else None,
            "memory": [one.shown() for one in self.memory],
            **{key: value() if callable(value) else value for key, value in self.state.items()},
        }

    async def unless_terminated(self, work: Any) -> Any:
        """Await ``work``; Terminated when SIGTERM comes first."""
        task, ended = asyncio.ensure_future(work), asyncio.create_task(self.terminate.wait())
        await asyncio.wait((task, ended), return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if task.done():
            return task.result()
        task.cancel()
        raise Terminated

    async def load(self, directory: Path, progress: Callable[[int, int, float], None]) -> float:
        """Read every shard; returns the (unscaled) seconds that the real engine would report."""
        slow = self.faults.active("F01")
        seconds = self.settings.load_seconds
        stall_at = None
        if slow is not None:
            stall_at = slow.get("stall_at_pct")
            seconds = seconds if stall_at is not None else float(slow.get("s", 0))
        began, last = time.monotonic(), -1
        for step in read_shards(directory):
            if isinstance(step, Weights):
                self.weights = step
                break
            done, total = step
            if last < 0:
                progress(0, total, 0.0)
                last = 0
            await asyncio.sleep(self.settings.scaled(seconds) / total)
            if done * 100 // total >= last + 10 or done == total:
                last = done * 100 // total
                progress(done, total, time.monotonic() - began)
            if stall_at is not None and done * 100 / total >= stall_at:
                stall_at = None
                await self._stall(slow)
        return max(seconds, time.monotonic() - began)

    async def _stall(self, slow: dict[str, Any] | None) -> None:
        limit = (slow or {}).get("s")
        if limit is None:
            while self.faults.active("F01") is not None:  # until the fault is cured
                await self.wait(WATCH)
        else:
            await asyncio.sleep(self.settings.scaled(float(limit)))

    async def wait(self, seconds: float) -> None:
        """Sleep real seconds."""
        await asyncio.sleep(seconds)

    def measure(
        self, facts: Facts, utilization: float, cache_bytes: int, max_len: int, *, draft: bool, overhead: int
    ) -> KvNeed:
        """Fill in the memory of this node's ranks; returns what one request needs on the tightest of them.

        ``max_len`` is what the pool's token count refers to: int(concurrency × max_len), as vLLM counts.
        ``overhead`` are bytes that come out of the same budget beside weights and cache.
        """
        assert self.weights is not None
        budget = ceil(self.settings.gpu_memory_gib * GIB * utilization)
        found, needs, of_stage = [], [], {}
        for rank in self.parallel.local_ranks:
            if rank.pipeline not in of_stage:  # all ranks of a stage hold the same
                of_stage[rank.pipeline] = weight_bytes(
                    self.weights.parameters, facts, self.parallel, rank, draft=draft
                )
            weights = of_stage[rank.pipeline]
            free = budget - weights - overhead
            need = kv_need(facts, self.parallel, rank, cache_bytes)
            tokens = int(free / max(1, need.of(max_len)) * max_len) if free > 0 else 0
            found.append(RankMemory(rank.number, weights, free, tokens))
            needs.append(need)
        self.memory = tuple(found)
        tightest = min(range(len(found)), key=lambda at: found[at].kv_tokens)
        return needs[tightest]

    @property
    def kv_available(self) -> int:
        """Bytes for the KV cache on the tightest rank of this node."""
        return min(one.kv_available for one in self.memory)

    @property
    def kv_tokens(self) -> int:
        """Tokens of KV cache on the tightest rank of this node."""
        return min(one.kv_tokens for one in self.memory)

    def _on_sigterm(self) -> None:
        if self.faults.active("F50") is None:
            self.terminate.set()

    async def _watch(self) -> None:
        seen = 0.0
        while True:
            seen = self._reread(seen)
            self._maybe_exit()
            await asyncio.sleep(WATCH)

    def _reread(self, seen: float) -> float:
        """Take the faults file when it has changed; a file that cannot be read as faults changes nothing."""
        path = self.settings.faults_file
        if path is None or not path.exists():
            return seen
        changed = path.stat().st_mtime
        if changed != seen:
            try:
                self.faults.replace(parse_faults(path.read_bytes()))
            except FaultError as error:
                print(f"stub: {path}: {error}", flush=True)  # half-written: the next look sees the rest
        return changed

    def _maybe_exit(self) -> None:
        fault = self.faults.active("F44")
        if fault is None:
            return
        age = self.faults.clock() - self.faults.began
        late = "s" not in fault or age >= self.settings.scaled(float(fault["s"]))
        if late and self.faults.requests >= int(fault.get("requests", 0)):
            leave(int(fault.get("code", 1)))


def digest(*parts: Any) -> str:
    """A short digest of JSON values, for what all nodes must agree on."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def first_faults(settings: Settings, node: int) -> Faults:
    """The faults that are known at the start: the file's when it exists, else the environment's."""
    file = settings.faults_file
    text: str | bytes = file.read_bytes() if file is not None and file.exists() else settings.faults
    return Faults(node, settings.time_scale, parse_faults(text))
