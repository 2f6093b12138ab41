"""Every fault of the source, kills at random offsets, one or two pulls at once: what is left is right.

Each history is drawn from its own seed: a few faults in random files, one or two stagers at a time, SIGKILL
once a random number of bytes went over the wire, again and again until nothing kills it any more.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path

import pytest
from moe_operator.api.manifest import StageExit, view_digest
from moe_operator.staging.store import Store, init_store

from tests.staging.fault_server import Fault, FaultServer, fault_server
from tests.staging.model import make_model, sha256
from tests.staging.runs import assert_published
from tests.staging.stager import MEMORY, Run, Stager, until

HISTORIES = 100  # at least two runs each
BATCHES = 10
INTERVAL = 16 << 10
MODEL = make_model(shards=3, tensor_bytes=30_000)
DIGEST = view_digest(MODEL.manifest_files())
SHARD_BYTES = len(MODEL.files[MODEL.shards[0]])

FAULTS: dict[str, Callable[[random.Random, str], list[Fault]]] = {
    "cut": lambda rng, _: [Fault(cut_after=rng.randrange(SHARD_BYTES))],
    "stall": lambda rng, _: [Fault(hold_after=rng.randrange(SHARD_BYTES))],
    "429": lambda rng, _: [Fault(status=429, headers={"Retry-After": "0"})],
    "503": lambda rng, _: [Fault(status=503, headers={"Retry-After": "0"})],
    "flip": lambda rng, _: [Fault(flip_at=rng.randrange(SHARD_BYTES))],
    "flip twice": lambda rng, _: [Fault(flip_at=rng.randrange(SHARD_BYTES))] * 2,
    "ignored range": lambda rng, _: [Fault(cut_after=9000), Fault(ignore_range=True)],
    "changed etag": lambda rng, _: [Fault(cut_after=20_000), Fault(etag='"another"')],
    "404": lambda rng, _: [Fault(status=404)],
    "slow": lambda rng, _: [Fault(piece=2000, pause=0.002)],
    "wrong length": lambda rng, _: [Fault(stated_length=SHARD_BYTES - 7)],
    "redirect loop": lambda rng, path: [Fault(status=302, headers={"Location": path})] * 7,
    "416": lambda rng, _: [Fault(cut_after=20_000), Fault(status=416)],
}
# What one run may end with while a fault is on its way; the next one finds it gone.
PASSING = {
    0, -signal.SIGKILL, StageExit.NOT_FOUND, StageExit.CHECKSUM_MISMATCH, StageExit.SOURCE_CHANGED,
    StageExit.NETWORK, StageExit.THROTTLED,
}  # fmt: skip


@pytest.fixture(scope="module")
def origin() -> Iterator[FaultServer]:
    with fault_server("127.74.1.1") as running:
        running.usual = Fault(piece=4000, pause=0.0005)
        yield running


@pytest.fixture
def scratch() -> Iterator[Path]:
    """In memory: a process that dies needs no disk to be slow; a machine that dies is not played here."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        yield Path(directory)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_whatever_happens_a_view_is_right_or_absent(
    batch: int, origin: FaultServer, stager: Stager, scratch: Path
) -> None:
    kills = runs = 0
    for number in range(HISTORIES // BATCHES):
        history = History(batch * 1000 + number, origin, stager, scratch / str(number))
        history.play()
        kills, runs = kills + history.kills, runs + history.runs
        shutil.rmtree(scratch / str(number))
    assert runs >= 2 * HISTORIES // BATCHES
    print(f"{runs} runs, {kills} of them killed")
    assert kills >= HISTORIES // BATCHES


class History:
    """One store's life under one seed."""

    def __init__(self, seed: int, origin: FaultServer, stager: Stager, root: Path) -> None:
        self.rng = random.Random(seed)
        self.seed, self.origin, self.stager, self.root = seed, origin, stager, root
        self.kills = self.runs = self.round_number = 0
        self.faults: dict[str, deque[Fault]] = {path: deque() for path in MODEL.shards}
        root.mkdir()
        (root / "victim").write_text("precious")
        init_store(root / "store")
        self.store = Store(root / "store")
        (root / "manifest.json").write_text(MODEL.manifest(origin.url).model_dump_json(by_alias=True))
        self.outside = tree(root)

    def play(self) -> None:
        rng = self.rng
        for name in rng.sample(sorted(FAULTS), 3):
            path = rng.choice(MODEL.shards)
            self.faults[path].extend(FAULTS[name](rng, path))
        for _kill in range(rng.randrange(2, 4)):
            self.round(rng.choice((1, 2)), kill=True)
        for _calm in range(8):
            if all(code == 0 for code in self.round(1, kill=False)):
                break
        else:
            raise AssertionError(f"seed {self.seed}: it never succeeds")
        assert_published(self.store.view(DIGEST), MODEL)
        assert list((self.store.root / "partial").iterdir()) == []

    def round(self, processes: int, *, kill: bool) -> list[int]:
        """Some pulls at once, killed in random order or let run; returns their exit codes."""
        self.round_number += 1
        self.reopen()
        here = {path for path, data in MODEL.files.items() if self.store.blob(sha256(data)).exists()}
        durable = {path: journaled(self.store, sha256(data)) for path, data in MODEL.files.items()}
        missing = sum(len(data) - durable[path] for path, data in MODEL.files.items() if path not in here)
        mark = self.rng.randrange(max(missing, 1))
        with ExitStack() as stack:
            running = [stack.enter_context(self.start()) for _ in range(processes)]
            self.runs += processes
            if kill:
                until(lambda: self.sent() >= mark or all(r.is_over for r in running), "bytes flow")
                self.kill(running)
            codes = [run.ended().code for run in running]
        assert set(codes) <= PASSING, f"seed {self.seed}: {codes}"
        self.kills += codes.count(-signal.SIGKILL)
        self.check(here, durable)
        return codes

    @property
    def prefix(self) -> str:
        return f"{self.seed}-{self.round_number}/"

    def sent(self) -> int:
        return sum(r.sent for path in MODEL.files for r in self.origin.requests_of(self.prefix + path))

    def reopen(self) -> None:
        """Serve under a new name: what a killed process had asked for may reach the server late."""
        with self.origin.lock:
            self.origin.requests.clear()
            self.origin.files = {self.prefix + path: data for path, data in MODEL.files.items()}
            self.origin.faults.clear()
            for path, faults in self.faults.items():
                self.origin.faults[self.prefix + path] = faults

    def start(self) -> AbstractContextManager[Run]:
        return self.stager.running(
            "pull", "--manifest", self.root / "manifest.json", "--store", self.store.root,
            "--source", f"{self.origin.url}/{self.prefix}", "--allow-http-host", self.origin.address,
            "--reserve-bytes", 0, "--journal-bytes", INTERVAL, "--retry-delay", 0.01,
            "--stall-timeout", 0.3, "--retries", 4,
        )  # fmt: skip

    def kill(self, running: list[Run]) -> None:
        for run in self.rng.sample(running, self.rng.randrange(1, len(running) + 1)):
            with suppress(ProcessLookupError):
                os.kill(run.pid, signal.SIGKILL)

    def check(self, here: set[str], durable: dict[str, int]) -> None:
        """What is there is right, what was there was not asked for again, nothing else was touched."""
        assert {k: v for k, v in tree(self.root).items() if not k.startswith("store")} == self.outside
        for blob in (self.store.root / "blobs" / "sha256").glob("??/*"):
            assert sha256(blob.read_bytes()) == blob.name, f"seed {self.seed}"
        if self.store.view(DIGEST).exists():
            assert_published(self.store.view(DIGEST), MODEL)
        for path in MODEL.files:
            asked = self.origin.requests_of(self.prefix + path)
            assert not (asked and path in here), f"seed {self.seed}: {path} was here and was fetched again"
            if asked:
                assert asked[0].start == durable[path], f"seed {self.seed}: {path} was not resumed"


def journaled(store: Store, digest: str) -> int:
    """Bytes that survive a crash, by the last whole line of the journal."""
    try:
        lines = store.journal(digest).read_text().splitlines()
    except FileNotFoundError:
        return 0
    whole = [line for line in lines if line.endswith("}")]
    return int(json.loads(whole[-1])["durableUpTo"]) if whole else 0


def tree(root: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(root)): (path.lstat().st_ino, path.lstat().st_mtime_ns)
        for path in root.rglob("*")
        if "store" not in path.relative_to(root).parts
    }
