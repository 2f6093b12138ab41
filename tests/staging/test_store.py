"""The node's store: what is reused, what is refused, and what an engine can see at any time."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from moe_operator.api.manifest import Manifest, ManifestFile, StageExit, view_digest
from moe_operator.staging.failure import StageError, Stopped
from moe_operator.staging.lock import held
from moe_operator.staging.manifest_file import read_manifest
from moe_operator.staging.stop import Stop
from moe_operator.staging.store import STORE_ID, VIEW_FILE, Store, init_store, open_store
from moe_operator.staging.view import verify

from tests.staging.fault_server import Fault, FaultServer
from tests.staging.model import Model, make_model, sha256
from tests.staging.runs import assert_published, contents, failure, link, pull
from tests.staging.stager import command, until

MODEL = make_model()
DIGEST = view_digest(MODEL.manifest_files())
SHARD = MODEL.shards[0]


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    return MODEL.manifest(MODEL.write(tmp_path / "source").as_uri())


def tree(root: Path) -> dict[str, tuple[int, int]]:
    return {str(p.relative_to(root)): (p.lstat().st_ino, p.lstat().st_mtime_ns) for p in root.rglob("*")}


def test_a_directory_is_pulled_and_published_as_hard_links(manifest: Manifest, store: Store) -> None:
    view = pull(manifest, store)

    assert view == store.root / "views" / DIGEST
    assert_published(view, MODEL)
    for file in manifest.files:
        assert (view / file.path).samefile(store.blob(file.sha256))
        assert (view / file.path).stat().st_mode & 0o777 == 0o444
    assert len(verify(store, DIGEST, full=True, stop=Stop()).links) == len(MODEL.files)


def test_a_published_view_is_answered_without_writing_or_asking(manifest: Manifest, store: Store) -> None:
    pull(manifest, store)
    before = tree(store.root)
    shared = link()

    view = pull(manifest, store, shared=shared, url="file:///nowhere")

    assert view == store.view(DIGEST)
    assert tree(store.root) == before
    assert shared.progress.snapshot().bytes_reused == MODEL.total


def test_only_what_changed_is_fetched_for_the_next_revision(server: FaultServer, store: Store) -> None:
    server.files = dict(MODEL.files)
    pull(MODEL.manifest(server.url), store)
    changed = make_model(seed=2).files[SHARD]
    green = Model(MODEL.files | {SHARD: changed})
    server.files = dict(green.files)
    before = server.sent

    view = pull(green.manifest(server.url), store)

    assert_published(view, green)
    assert_published(store.view(DIGEST), MODEL)
    assert server.sent - before == len(changed)


def test_a_wrong_length_for_bytes_that_are_here_is_the_manifests_fault(
    manifest: Manifest, store: Store, tmp_path: Path
) -> None:
    pull(manifest, store)
    (tmp_path / "source" / "other.json").write_text("{}")
    wrong = [f if f.path != SHARD else f.model_copy(update={"size": 3}) for f in manifest.files]
    other = ManifestFile(path="other.json", size=2, sha256=sha256(b"{}"))

    fell = failure(lambda: pull(manifest.model_copy(update={"files": [*wrong, other]}), store))

    assert (fell.exit, fell.file) == (StageExit.BAD_MANIFEST, SHARD)


def test_files_with_the_same_bytes_are_fetched_once(server: FaultServer, store: Store) -> None:
    twins = Model(MODEL.files | {"copy/config.json": MODEL.files["config.json"]})
    server.files = dict(twins.files)

    view = pull(twins.manifest(server.url), store)

    assert_published(view, twins)
    assert server.sent == MODEL.total


@pytest.mark.parametrize("repair", ["altered", "truncated", "gone", "extra", "description"])
def test_a_damaged_view_is_found_and_mended_in_place(repair: str, manifest: Manifest, store: Store) -> None:
    view = pull(manifest, store)
    shard = view / SHARD
    match repair:
        case "altered":
            data = bytearray(shard.read_bytes())
            data[-1] ^= 1
            shard.chmod(0o644)
            shard.write_bytes(data)
        case "truncated":
            shard.chmod(0o644)
            os.truncate(shard, 10)
        case "gone":
            shard.unlink()
        case "extra":
            (view / "stray.safetensors").write_bytes(b"?")
        case "description":
            (view / VIEW_FILE).unlink()
    directory = view.stat().st_ino

    found = failure(lambda: verify(store, DIGEST, full=True, stop=Stop()))
    mended = pull(manifest, store)

    assert found.exit in (StageExit.CHECKSUM_MISMATCH, StageExit.NOT_FOUND)
    assert_published(mended, MODEL)
    assert mended.stat().st_ino == directory, "the view was never replaced as a whole"
    verify(store, DIGEST, full=True, stop=Stop())


def test_a_bit_that_flipped_behind_the_stores_back_is_found_by_a_full_check(
    manifest: Manifest, store: Store
) -> None:
    view = pull(manifest, store)
    blob = store.blob(sha256(MODEL.files[SHARD]))
    facts = blob.stat()
    data = bytearray(blob.read_bytes())
    data[100] ^= 1
    blob.chmod(0o644)
    blob.write_bytes(data)
    os.utime(blob, ns=(facts.st_atime_ns, facts.st_mtime_ns))

    verify(store, DIGEST, full=False, stop=Stop())
    fell = failure(lambda: verify(store, DIGEST, full=True, stop=Stop()))
    pull(manifest, store, verify="full")

    assert (fell.file, fell.expected, fell.actual) == (SHARD, sha256(MODEL.files[SHARD]), sha256(bytes(data)))
    assert_published(view, MODEL)


def test_a_blob_without_its_note_is_hashed_and_kept(
    manifest: Manifest, store: Store, server: FaultServer
) -> None:
    pull(manifest, store)
    for path in [*(store.root / "meta").iterdir()]:
        path.unlink()

    view = pull(manifest, store, url=server.url)

    assert_published(view, MODEL)
    assert server.requests == []


def test_verify_names_a_view_that_is_not_there(store: Store) -> None:
    assert failure(lambda: verify(store, "0" * 64, full=False, stop=Stop())).exit is StageExit.NOT_FOUND


def test_a_disk_that_is_not_mounted_is_not_written_to(manifest: Manifest, tmp_path: Path) -> None:
    empty = tmp_path / "mountpoint"
    empty.mkdir()

    fell = failure(lambda: pull(manifest, open_store(empty)))

    assert fell.exit is StageExit.STORE_UNUSABLE
    assert f"moestage init-store --store {empty}" in fell.hint
    assert list(empty.iterdir()) == []


def test_of_an_emptied_disk_the_marker_is_enough(manifest: Manifest, tmp_path: Path) -> None:
    emptied = Store(tmp_path / "emptied")
    emptied.root.mkdir()
    (emptied.root / STORE_ID).write_text("3d0a3c2e-7a6c-4f7f-9d3f-0d5b5f3f6f10\n")

    assert_published(pull(manifest, emptied), MODEL)


def test_a_store_keeps_its_id(tmp_path: Path) -> None:
    first = init_store(tmp_path / "new" / "store")

    assert init_store(tmp_path / "new" / "store") == first
    assert open_store(tmp_path / "new" / "store").root == tmp_path / "new" / "store"


@pytest.mark.parametrize("name", ["partial", "blobs", "locks", "views"])
def test_a_store_that_cannot_be_written_is_named(name: str, manifest: Manifest, store: Store) -> None:
    """A file in a directory's place stops root, too, whom permissions do not."""
    spoiled = store.root / name
    for path in sorted(spoiled.rglob("*"), reverse=True):
        path.rmdir()
    spoiled.rmdir()
    spoiled.write_text("not a directory")

    fell = failure(lambda: pull(manifest, store))

    assert fell.exit is StageExit.STORE_UNUSABLE
    assert str(store.root) in fell.message


def test_too_small_a_disk_is_said_before_the_first_byte(server: FaultServer, store: Store) -> None:
    server.files = dict(MODEL.files)

    fell = failure(lambda: pull(MODEL.manifest(server.url), store, reserve_bytes=1 << 60))

    assert fell.exit is StageExit.INSUFFICIENT_DISK
    assert f"{MODEL.total} bytes to fetch" in fell.expected
    assert server.requests == []


def test_a_full_disk_does_not_matter_once_the_bytes_are_here(manifest: Manifest, store: Store) -> None:
    pull(manifest, store)
    (store.view(DIGEST) / SHARD).unlink()

    assert_published(pull(manifest, store, reserve_bytes=1 << 60), MODEL)


BAD_PATHS = [
    ["../escape.json"], ["/etc/escape.json"], ["a/../../escape.json"], ["a//b.json"], ["./a.json"],
    [".hidden.json"], ["a/.moe-view.json"], ["weights.bin"], ["model.pt"], ["a.json", "a.json/b.json"],
    ["x" * 300 + ".json"], ["a\\b.json"], [""],
]  # fmt: skip


@pytest.mark.parametrize("paths", BAD_PATHS, ids=lambda paths: paths[-1][:20])
def test_a_manifest_that_leaves_the_view_is_refused(paths: list[str], store: Store) -> None:
    # The wire model refuses most of these; here it is bypassed, as a hand-made ConfigMap cannot be trusted.
    files = [ManifestFile.model_construct(path=path, size=1, sha256=sha256(b"x")) for path in paths]
    manifest = Manifest.model_construct(source="file:///nowhere", resolved="", files=files)
    before = tree(store.root)

    fell = failure(lambda: pull(manifest, store))

    assert fell.exit is StageExit.BAD_MANIFEST
    assert tree(store.root) == before


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("cut.json", b'{"files": ['),
        ("empty.json", b""),
        ("list.json", b"[]"),
        ("twice.json", None),
        ("upper.json", b'{"source": "s", "files": [{"path": "a.json", "size": 1, "sha256": "AB"}]}'),
        ("negative.json", b'{"source": "s", "files": [{"path": "a.json", "size": -1, "sha256": "00"}]}'),
        ("plain.json.gz", b"{}"),
        ("cut.json.gz", gzip.compress(b"{}" * 1000, mtime=0)[:30]),
        ("absent.json", None),
    ],
)
def test_a_manifest_that_cannot_be_read_is_named(name: str, raw: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / name
    if name == "twice.json":
        one = f'{{"path": "a.json", "size": 1, "sha256": "{"0" * 64}"}}'
        raw = f'{{"source": "s", "files": [{one}, {one}]}}'.encode()
    if raw is not None:
        path.write_bytes(raw)

    fell = failure(lambda: read_manifest(path))

    assert (fell.exit, fell.file) == (StageExit.BAD_MANIFEST, str(path))


@pytest.mark.parametrize("packed", [False, True])
def test_a_manifest_is_read_as_the_operator_mounts_it(
    packed: bool, manifest: Manifest, tmp_path: Path
) -> None:
    raw = manifest.model_dump_json(by_alias=True).encode()
    path = tmp_path / ("manifest.json.gz" if packed else "manifest.json")
    path.write_bytes(gzip.compress(raw) if packed else raw)

    assert read_manifest(path) == manifest


def test_a_view_is_never_seen_incomplete(server: FaultServer, store: Store) -> None:
    server.files = dict(MODEL.files)
    for path in MODEL.files:
        server.faults[path].append(Fault(piece=4000, pause=0.005))
    view = store.view(DIGEST)
    seen: list[dict[str, bytes]] = []
    looks, over = [0], threading.Event()

    def look() -> None:
        while not over.is_set():
            looks[0] += 1
            if view.exists():
                seen.append(contents(view))
                return
            over.wait(0.001)

    watcher = threading.Thread(target=look)
    watcher.start()
    pull(MODEL.manifest(server.url), store)
    watcher.join(10)
    over.set()

    assert looks[0] > 1, "it looked while the view was not there"
    assert seen == [MODEL.files]


def test_two_pulls_at_once_fetch_every_byte_once(server: FaultServer, store: Store) -> None:
    server.files = dict(MODEL.files)
    for path in MODEL.files:
        server.faults[path].append(Fault(piece=8000, pause=0.01))
    views: list[Path] = []
    pulls = [
        threading.Thread(target=lambda: views.append(pull(MODEL.manifest(server.url), store)))
        for _ in range(2)
    ]
    for thread in pulls:
        thread.start()
    for thread in pulls:
        thread.join(20)

    assert views == [store.view(DIGEST)] * 2
    assert server.sent == MODEL.total
    assert_published(views[0], MODEL)


def test_a_holder_that_brings_nothing_new_is_not_waited_for_forever(manifest: Manifest, store: Store) -> None:
    store.lay_out()
    digest = sha256(MODEL.files[SHARD])
    with held(store.lock(digest), store.part(digest), 1, Stop()):
        fell = failure(lambda: pull(manifest, store, lock_seconds=0.3))

    assert fell.exit is StageExit.LOCK_TIMEOUT
    assert str(os.getpid()) in fell.message
    assert_published(pull(manifest, store), MODEL)


def test_a_holder_that_moves_is_waited_for(store: Store) -> None:
    store.lay_out()
    digest, ended = "0" * 64, threading.Event()
    entered = threading.Event()

    def wait() -> None:
        with held(store.lock(digest), store.part(digest), 0.5, Stop()):
            entered.set()

    with held(store.lock(digest), store.part(digest), 1, Stop()):
        waiter = threading.Thread(target=wait)
        waiter.start()
        for beat in range(12):
            store.part(digest).write_bytes(b"x" * beat)
            ended.wait(0.1)
        assert not entered.is_set()
    assert entered.wait(10)
    waiter.join()


def test_a_source_file_that_shrank_since_it_was_resolved_has_changed(
    manifest: Manifest, store: Store, tmp_path: Path
) -> None:
    os.truncate(tmp_path / "source" / SHARD, 100)

    fell = failure(lambda: pull(manifest, store))

    assert (fell.exit, fell.file, fell.actual) == (StageExit.SOURCE_CHANGED, SHARD, "100 bytes")


def test_a_symbolic_link_in_the_source_is_not_followed(
    manifest: Manifest, store: Store, tmp_path: Path
) -> None:
    shard = tmp_path / "source" / SHARD
    shard.rename(tmp_path / "outside")
    shard.symlink_to(tmp_path / "outside")

    fell = failure(lambda: pull(manifest, store))

    assert (fell.exit, fell.file) == (StageExit.BAD_MANIFEST, SHARD)


def test_a_link_planted_in_partial_is_not_written_through(
    manifest: Manifest, store: Store, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    store.lay_out()
    store.part(sha256(MODEL.files[SHARD])).symlink_to(victim)

    with pytest.raises(StageError):
        pull(manifest, store)

    assert victim.read_text() == "precious"


LIMITED = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, 64 << 10))
sys.argv[0:1] = []
runpy.run_module("moe_operator.staging", run_name="__main__", alter_sys=True)
"""


def test_a_disk_that_runs_full_is_insufficient_disk(manifest: Manifest, store: Store, tmp_path: Path) -> None:
    """A file-size limit stops writes in the same place as a full disk, for every user."""
    (tmp_path / "manifest.json").write_text(manifest.model_dump_json(by_alias=True))
    arguments = command("pull", "--manifest", tmp_path / "manifest.json", "--source", manifest.source,
                        "--store", store.root, "--reserve-bytes", 0)[2:]  # fmt: skip

    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *arguments], capture_output=True, text=True, timeout=30, check=False
    )

    assert done.returncode == StageExit.INSUFFICIENT_DISK, done.stderr
    assert "INSUFFICIENT_DISK" in done.stderr
    assert list((store.root / "views").iterdir()) == []


IN_A_NAMESPACE = """
set -e
mount -t tmpfs -o size=96k none "$1"
"$2" -m moe_operator.staging init-store --store "$1"
shift 2
exec "$@"
"""


def _unshared(*arguments: object) -> list[str]:
    """Own mounts for one process: as root directly, else inside a user namespace."""
    own = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    return [*own, "sh", "-c", IN_A_NAMESPACE, "sh", *map(str, arguments)]


def can_mount(tmp_path: Path) -> bool:
    probe = subprocess.run(
        _unshared(tmp_path, "true", sys.executable, "-c", "pass"),
        capture_output=True,
        check=False,
        timeout=30,
    )
    return probe.returncode == 0


def test_a_real_small_disk_is_insufficient_disk(manifest: Manifest, tmp_path: Path) -> None:
    """On a tmpfs of 96 KiB. Where mounts are forbidden, the reserve stands in for the missing bytes."""
    (tmp_path / "manifest.json").write_text(manifest.model_dump_json(by_alias=True))
    (tmp_path / "disk").mkdir()
    pulling = command("pull", "--manifest", tmp_path / "manifest.json", "--source", manifest.source,
                      "--store", tmp_path / "disk", "--reserve-bytes")  # fmt: skip
    if can_mount(tmp_path / "disk"):
        arguments = _unshared(tmp_path / "disk", sys.executable, *pulling, 0)
    else:
        init_store(tmp_path / "disk")
        arguments = [*pulling, str(1 << 60)]

    done = subprocess.run(arguments, capture_output=True, text=True, timeout=30, check=False)

    assert done.returncode == StageExit.INSUFFICIENT_DISK, done.stderr
    assert "too few" in done.stderr


def test_nothing_is_written_outside_the_store(manifest: Manifest, store: Store, tmp_path: Path) -> None:
    before = tree(tmp_path)

    pull(manifest, store)

    outside = {path: facts for path, facts in tree(tmp_path).items() if not path.startswith("store")}
    assert outside == {path: facts for path, facts in before.items() if not path.startswith("store")}


def test_waiting_ends_when_the_process_is_asked_to_stop(store: Store) -> None:
    store.lay_out()
    stop, lock, part = Stop(), store.lock("0" * 64), store.part("0" * 64)
    ended = threading.Event()

    def wait() -> None:
        with pytest.raises(Stopped), held(lock, part, 60, stop):
            raise AssertionError("the lock was free")
        ended.set()

    with held(lock, part, 1, Stop()):
        waiter = threading.Thread(target=wait)
        waiter.start()
        until(waiter.is_alive, "the waiter runs")
        stop.trip()
        assert ended.wait(10)
        waiter.join()
