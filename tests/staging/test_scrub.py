"""Disks that forget: found by scrubbing, said where it matters, mended by the next pull."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from moe_operator.api.manifest import Manifest, StageExit, view_digest
from moe_operator.staging.collect import Rules, collect_alone
from moe_operator.staging.failure import Stopped
from moe_operator.staging.pace import Bucket
from moe_operator.staging.progress import Progress
from moe_operator.staging.scrub import scrub
from moe_operator.staging.stop import Stop
from moe_operator.staging.store import Store
from moe_operator.staging.view import verify

from tests.staging.fault_server import FaultServer
from tests.staging.model import make_model, sha256
from tests.staging.runs import assert_published, failure, pull
from tests.staging.stager import Stager

MODEL = make_model()
SHARD = MODEL.shards[1]
DIGEST = sha256(MODEL.files[SHARD])
VIEW = view_digest(MODEL.manifest_files())


@pytest.fixture
def manifest(store: Store, tmp_path: Path) -> Manifest:
    manifest = MODEL.manifest(MODEL.write(tmp_path / "source").as_uri())
    pull(manifest, store)
    return manifest


def rot(store: Store) -> None:
    """Flip a bit as a disk does: neither length nor time tells."""
    blob = store.blob(DIGEST)
    facts = blob.stat()
    data = bytearray(blob.read_bytes())
    data[1234] ^= 4
    blob.chmod(0o644)
    blob.write_bytes(data)
    blob.chmod(0o444)
    os.utime(blob, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def test_a_clean_store_is_read_once_and_gets_fresh_proofs(manifest: Manifest, store: Store) -> None:
    for path in (store.root / "meta").iterdir():
        path.write_text(json.dumps(json.loads(path.read_text()) | {"verifiedAt": 1}))

    first = scrub(store, 60, Bucket(0), Progress(), Stop())
    second = scrub(store, 60, Bucket(0), Progress(), Stop())

    assert (first.blobs, first.bytes, first.corrupt) == (len(MODEL.files), MODEL.total, {})
    assert second.blobs == 0
    verify(store, VIEW, full=False, stop=Stop())


def test_the_oldest_proof_is_renewed_first(manifest: Manifest, store: Store) -> None:
    meta = store.meta(DIGEST)
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"verifiedAt": 7}))
    store.meta(sha256(MODEL.files["config.json"])).unlink()

    assert store.proved_before(0)[:2] == [sha256(MODEL.files["config.json"]), DIGEST]


def test_a_rotten_blob_is_set_aside_its_view_is_damaged_and_a_pull_mends_it(
    stager: Stager, manifest: Manifest, store: Store, server: FaultServer
) -> None:
    rot(store)
    verify(store, VIEW, full=False, stop=Stop())

    ended = stager.run("scrub", "--store", store.root)

    assert ended.exit is StageExit.CHECKSUM_MISMATCH
    assert json.loads(ended.out) == {
        "blobs": len(MODEL.files), "bytes": MODEL.total, "corrupt": [DIGEST], "damagedViews": [VIEW],
    }  # fmt: skip
    assert ended.word["expected"] == DIGEST
    assert (ended.word["corrupt"], ended.word["bytesCorrupt"]) == ([DIGEST], len(MODEL.files[SHARD]))
    assert failure(lambda: verify(store, VIEW, full=False, stop=Stop())).file == SHARD
    assert (store.root / "trash" / f"{DIGEST}.bad").exists()

    server.files = dict(MODEL.files)
    view = pull(manifest, store, url=server.url)

    assert_published(view, MODEL)
    assert [request.path for request in server.requests] == [SHARD]
    assert stager.run("scrub", "--store", store.root).code == 0


def test_what_a_run_found_that_was_ended_early_is_told_by_the_next_until_it_is_mended(
    manifest: Manifest, store: Store
) -> None:
    rot(store)
    meta = store.meta(DIGEST)
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"verifiedAt": 7}))  # so it comes first
    stop, size = Stop(), len(MODEL.files[SHARD])
    with pytest.raises(Stopped):
        scrub(store, 0, StopsAfter(size, stop), Progress(), stop)
    assert not store.blob(DIGEST).exists()

    assert scrub(store, 3600, Bucket(0), Progress(), Stop()).corrupt == {DIGEST: size}
    pull(manifest, store)
    assert scrub(store, 3600, Bucket(0), Progress(), Stop()).corrupt == {}


def test_what_lies_set_aside_and_no_view_needs_is_not_told_again(manifest: Manifest, store: Store) -> None:
    rot(store)
    assert scrub(store, 0, Bucket(0), Progress(), Stop()).corrupt
    collect_alone(store, (), Rules(grace=0), Stop())

    assert store.set_aside(DIGEST).exists()
    assert scrub(store, 0, Bucket(0), Progress(), Stop()).corrupt == {}


class StopsAfter(Bucket):
    """Lets so many bytes pass and then asks everything to end, as a SIGTERM does."""

    def __init__(self, count: int, stop: Stop) -> None:
        super().__init__(0)
        self._left, self._stop = count, stop

    def take(self, count: int, stop: Stop) -> float:
        self._left -= count
        if self._left < 0:
            self._stop.trip()
        return super().take(count, stop)


def test_a_blob_that_is_being_fetched_is_left_alone(manifest: Manifest, store: Store) -> None:
    from moe_operator.staging.lock import held

    with held(store.lock(DIGEST), store.blob(DIGEST), 1, Stop()):
        done = scrub(store, 0, Bucket(0), Progress(), Stop())

    assert done.blobs == len(MODEL.files) - 1


def test_scrubbing_keeps_its_pace(manifest: Manifest, store: Store) -> None:
    progress = Progress()

    scrub(store, 0, Bucket(MODEL.total * 2), progress, Stop())

    largest = max(map(len, MODEL.files.values()))
    assert progress.counts.seconds >= 0.5 * (MODEL.total - largest) / MODEL.total
    assert progress.counts.throttled_seconds > 0
