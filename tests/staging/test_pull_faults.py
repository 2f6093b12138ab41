"""Whatever the source does, the view is right or the failure says what is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
from moe_operator.api.manifest import StageExit, view_digest
from moe_operator.staging.pace import Gate
from moe_operator.staging.store import Store

from tests.staging.fault_server import Fault, FaultServer
from tests.staging.model import make_model, sha256
from tests.staging.runs import assert_published, failure, link, pull

MODEL = make_model()
SHARD = MODEL.shards[0]
SIZE = len(MODEL.files[SHARD])
HALF = SIZE // 2

SURVIVED = {
    "cut once": [Fault(cut_after=HALF)],
    "cut again and again but always further": [Fault(cut_after=9000) for _ in range(8)],
    "cut before the first byte": [Fault(cut_after=0)],
    "stalls": [Fault(hold_after=HALF)],
    "429 with Retry-After": [Fault(status=429, headers={"Retry-After": "0"})],
    "503": [Fault(status=503), Fault(status=503)],
    "500 and 408": [Fault(status=500), Fault(status=408)],
    "Range ignored after a cut": [Fault(cut_after=HALF), Fault(ignore_range=True)],
    "one flipped byte": [Fault(flip_at=HALF)],
    "chunked": [Fault(chunked=True)],
    "chunked and cut": [Fault(chunked=True, cut_after=HALF)],
    "etag changes between cut and resume": [Fault(cut_after=HALF, etag='"old"')],
    "416 on resume": [Fault(cut_after=HALF), Fault(status=416)],
    "slow": [Fault(piece=8000, pause=0.01)],
    "wrong Content-Range": [
        Fault(cut_after=HALF),
        Fault(status=206, headers={"Content-Range": "bytes 5-9/10"}),
    ],
}

PERMANENT = {
    "always 404": (Fault(status=404), StageExit.NOT_FOUND),
    "always 401": (Fault(status=401), StageExit.AUTH),
    "always 403": (Fault(status=403), StageExit.AUTH),
    "always 429": (Fault(status=429, headers={"Retry-After": "0"}), StageExit.THROTTLED),
    "always 503": (Fault(status=503), StageExit.THROTTLED),
    "always 502": (Fault(status=502), StageExit.NETWORK),
    "always cut at the same byte": (Fault(cut_after=0), StageExit.NETWORK),
    "redirects to itself": (Fault(status=302, headers={"Location": f"/{SHARD}"}), StageExit.NETWORK),
    "shorter than the manifest says": (Fault(stated_length=SIZE - 1), StageExit.SOURCE_CHANGED),
    "longer than the manifest says": (Fault(stated_length=SIZE + 1), StageExit.SOURCE_CHANGED),
    "one flipped byte, always the same": (Fault(flip_at=HALF), StageExit.CHECKSUM_MISMATCH),
}


@pytest.fixture(autouse=True)
def _model(server: FaultServer) -> None:
    server.files = dict(MODEL.files)


@pytest.mark.parametrize("faults", SURVIVED.values(), ids=SURVIVED)
def test_a_fault_that_passes_is_survived(faults: list[Fault], server: FaultServer, store: Store) -> None:
    server.faults[SHARD].extend(faults)

    view = pull(MODEL.manifest(server.url), store)

    assert_published(view, MODEL)
    assert not server.faults[SHARD], "every fault was met"
    assert list((store.root / "partial").iterdir()) == []


@pytest.mark.parametrize(("fault", "code"), PERMANENT.values(), ids=PERMANENT)
def test_a_fault_that_stays_is_named_and_nothing_is_published(
    fault: Fault, code: StageExit, server: FaultServer, store: Store
) -> None:
    server.faults[SHARD].extend([fault] * 50)

    fell = failure(lambda: pull(MODEL.manifest(server.url), store))

    assert (fell.exit, fell.file or SHARD) == (code, SHARD)
    assert SHARD in fell.message
    assert list((store.root / "views").iterdir()) == []


def test_a_cut_transfer_goes_on_where_it_stopped(server: FaultServer, store: Store) -> None:
    server.faults[SHARD].append(Fault(cut_after=HALF))

    pull(MODEL.manifest(server.url), store)

    first, second = server.requests_of(SHARD)
    assert (first.sent, second.start, second.sent) == (HALF, HALF, SIZE - HALF)


def test_a_mismatch_is_fetched_once_more_and_then_reported_with_both_digests(
    server: FaultServer, store: Store
) -> None:
    good = MODEL.files[SHARD]
    bad = good[:HALF] + bytes([good[HALF] ^ 1]) + good[HALF + 1 :]
    server.files[SHARD] = bad

    fell = failure(lambda: pull(MODEL.manifest(server.url), store))

    assert (fell.exit, fell.expected, fell.actual) == (
        StageExit.CHECKSUM_MISMATCH,
        sha256(good),
        sha256(bad),
    )
    assert "the same bytes" in fell.message
    assert len(server.requests_of(SHARD)) == 2
    quarantined = store.root / "trash" / f"{sha256(good)}.part.bad"
    assert quarantined.read_bytes() == bad
    assert not store.blob(sha256(good)).exists()


class WatchedGate(Gate):
    """Remembers how far it was closed."""

    least = 99

    def throttled(self) -> None:
        super().throttled()
        self.least = min(self.least, self.limit)


def test_throttling_closes_the_gate_and_success_opens_it_again(server: FaultServer, store: Store) -> None:
    for path in MODEL.files:
        server.faults[path].append(Fault(status=429, headers={"Retry-After": "0"}))
    gate = WatchedGate(4)
    shared = replace(link(), gate=gate)

    pull(MODEL.manifest(server.url), store, shared=shared)

    assert gate.least == 1
    assert gate.limit > gate.least
    assert shared.progress.counts.retries == {"429": len(MODEL.files)}


def test_retry_after_is_waited_for(server: FaultServer, store: Store) -> None:
    server.faults[SHARD].append(Fault(status=503, headers={"Retry-After": "1"}))
    shared = link()

    pull(MODEL.manifest(server.url), store, shared=shared)

    assert shared.progress.counts.throttled_seconds >= 1.0


def test_bandwidth_is_bounded(server: FaultServer, store: Store) -> None:
    shared = link(bandwidth=MODEL.total * 2)

    pull(MODEL.manifest(server.url), store, shared=shared)

    # All bytes but the last chunk of the last file have to be paid for in time.
    assert shared.progress.counts.seconds >= 0.5 * (MODEL.total - shared.chunk) / MODEL.total


def test_files_are_fetched_side_by_side_within_the_limit(server: FaultServer, store: Store) -> None:
    for path in MODEL.shards:
        server.faults[path].append(Fault(piece=8000, pause=0.02))

    pull(MODEL.manifest(server.url), store, threads=2, shared=link(threads=2))

    assert server.open_most == 2


def test_progress_counts_what_is_in_place(server: FaultServer, store: Store) -> None:
    server.faults[SHARD].extend([Fault(flip_at=HALF), Fault(cut_after=HALF)])
    shared = link()

    pull(MODEL.manifest(server.url), store, shared=shared)

    progress, counts = shared.progress.snapshot(), shared.progress.counts
    assert progress.phase == "Ready"
    assert progress.view_digest == view_digest(MODEL.manifest_files())
    assert (progress.bytes_done, progress.bytes_total, progress.bytes_reused) == (MODEL.total, MODEL.total, 0)
    assert (counts.received, counts.dropped) == (MODEL.total + SIZE, SIZE)
