"""What is to go wrong, where and when: the fault menu and its selectors.

A fault is ``{"id": "F30", "params": {…}, "ranks": [0], "phase": "serve", "trigger": {…}}``; everything but
``id`` may be left out. ``ranks`` are nodes of the group (0 is the leader). Triggers, all of which must hold:
``after_s`` and ``duration_s`` (seconds since the process began, scaled), ``after_requests`` (completions
accepted), ``first_n_starts`` with ``counter_file`` (a file that outlives the process and counts starts).

Faults come from ``STUB_FAULTS``, from the watched ``STUB_FAULTS_FILE`` and from the admin port; whatever was
said last holds. Code that can misbehave asks :meth:`Faults.active` at the moment it matters.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from .settings import Misuse

MENU = {
    "F01": "slow_load{s, stall_at_pct}: loading takes s seconds, or stops at a percentage for s (for ever)",
    "F03": "load_exit{kind, at_pct}: start-up fails; kinds: see vllm_failures and sglang_failures",
    "F05": "bad_flag{flag}: the command line is refused, exit 2",
    "F10": "never_join: a rank sleeps and never connects to the leader",
    "F11": "join_late{s}: a rank connects after s seconds",
    "F14": "rdzv_timeout{s}: the leader gives up waiting after s seconds",
    "F20": "peer_lost_hang: a lost peer is never noticed beyond a log line",
    "F30": "hang{variant}: requests are accepted and never answered; variant health503",
    "F35": "early_listen: HTTP is up while weights load; generation is 503",
    "F36": "engine_dead{health, exit_after_s}: requests get 500; health 503 or 200",
    "F37": "slow_tokens{ttft_s, itl_ms}",
    "F41": "wrong_model{served_id, max_model_len}: another model answers",
    "F42": "garbage_output{kind}: nan, repeat, empty, wrong_lang",
    "F44": "exit_after{s | requests, code}",
    "F47": "stream_truncate{after_chunks}: the connection ends in mid-stream",
    "F48": "stream_error_chunk{after_chunks}: an error frame, then [DONE]",
    "F49": "stream_stall{after_chunks, s}: silence in mid-stream",
    "F50": "sigterm_ignore",
}
PHASES = ("load", "rendezvous", "warmup", "serve", "shutdown")
TRIGGERS = {"always", "after_s", "duration_s", "after_requests", "first_n_starts", "counter_file"}


class FaultError(Misuse):
    """A fault that cannot be understood; the stub refuses it instead of ignoring it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One entry of the list, parsed."""

    id: str
    params: dict[str, Any] = field(default_factory=dict)
    ranks: frozenset[int] | None = None
    phase: str | None = None
    after_s: float = 0.0
    duration_s: float | None = None
    after_requests: int = 0
    first_n_starts: int | None = None
    counter_file: Path | None = None

    @classmethod
    def parse(cls, entry: Any) -> Fault:
        """Read one JSON object; FaultError names what is wrong."""
        if not isinstance(entry, dict) or entry.get("id") not in MENU:
            raise FaultError(f"unknown fault in {entry!r}; known: {', '.join(MENU)}")
        if unknown := entry.keys() - {"id", "params", "ranks", "phase", "trigger"}:
            raise FaultError(f"unknown keys {sorted(unknown)} in {entry!r}")
        trigger = entry.get("trigger") or {}
        if unknown := trigger.keys() - TRIGGERS:
            raise FaultError(f"unknown triggers {sorted(unknown)} in {entry!r}")
        if entry.get("phase") not in {None, *PHASES}:
            raise FaultError(f"unknown phase in {entry!r}; known: {', '.join(PHASES)}")
        counter = trigger.get("counter_file")
        if "first_n_starts" in trigger and not counter:
            raise FaultError(f"first_n_starts needs a counter_file in {entry!r}")
        return cls(
            id=entry["id"],
            params=entry.get("params") or {},
            ranks=frozenset(entry["ranks"]) if "ranks" in entry else None,
            phase=entry.get("phase"),
            after_s=float(trigger.get("after_s", 0)),
            duration_s=trigger.get("duration_s"),
            after_requests=int(trigger.get("after_requests", 0)),
            first_n_starts=trigger.get("first_n_starts"),
            counter_file=Path(counter) if counter else None,
        )


def parse_faults(text: str | bytes) -> tuple[Fault, ...]:
    """A JSON list of faults."""
    try:
        entries = json.loads(text)
    except ValueError as error:
        raise FaultError(f"faults are not JSON: {error}") from None
    if not isinstance(entries, list):
        raise FaultError("faults must be a JSON list")
    return tuple(Fault.parse(entry) for entry in entries)


@dataclass(slots=True)
class Faults:
    """The faults of this process and what their triggers look at."""

    node: int
    scale: float
    listed: tuple[Fault, ...] = ()
    phase: str = "load"
    requests: int = 0
    clock: Callable[[], float] = time.monotonic
    began: float = field(init=False)
    _starts: dict[Path, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.began = self.clock()
        self.replace(self.listed)

    def replace(self, faults: Sequence[Fault]) -> None:
        """Forget the old list; count this start in counter files seen for the first time."""
        self.listed = tuple(faults)
        for path in {fault.counter_file for fault in faults if fault.counter_file} - self._starts.keys():
            self._starts[path] = _count_start(path)

    def active(self, fault_id: str) -> dict[str, Any] | None:
        """Parameters of the first fault ``fault_id`` that holds now, None when there is none."""
        return next((one.params for one in self.listed if one.id == fault_id and self._holds(one)), None)

    def _holds(self, fault: Fault) -> bool:
        age = self.clock() - self.began
        until = inf if fault.duration_s is None else fault.after_s + fault.duration_s
        return (
            (fault.ranks is None or self.node in fault.ranks)
            and fault.phase in {None, self.phase}
            and fault.after_s * self.scale <= age < (until * self.scale if self.scale else until)
            and self.requests >= fault.after_requests
            and self._start_selected(fault)
        )

    def _start_selected(self, fault: Fault) -> bool:
        if fault.first_n_starts is None or fault.counter_file is None:
            return True
        return self._starts[fault.counter_file] <= fault.first_n_starts


def _count_start(path: Path) -> int:
    before = int(path.read_text()) if path.exists() else 0
    path.write_text(str(before + 1))
    return before + 1
