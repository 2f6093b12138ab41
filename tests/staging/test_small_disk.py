"""A real disk that runs full, turns read-only, or is not there."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from moe_operator.api.manifest import StageExit, view_digest
from moe_operator.staging.store import Store, init_store

from tests.staging.fault_server import Fault, FaultServer
from tests.staging.model import Model, make_model, sha256
from tests.staging.small_disk import SmallDisk, ended, small_disk
from tests.staging.stager import command

MODEL = make_model(shards=3, tensor_bytes=500_000)
VIEW = view_digest(MODEL.manifest_files())


@pytest.fixture
def disk(tmp_path: Path, record_property: pytest.RecordProperty) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as made:
        record_property("filesystem", made.kind)
        init_store(made.outside)
        yield made


@pytest.fixture
def pulling(disk: SmallDisk, server: FaultServer, tmp_path: Path) -> list[object]:
    server.files = dict(MODEL.files)
    manifest = tmp_path / "manifest.json"
    manifest.write_text(MODEL.manifest(server.url).model_dump_json(by_alias=True))
    return [
        "pull", "--manifest", manifest, "--source", server.url, "--store", disk.path, "--reserve-bytes", 0,
        "--allow-http-host", server.address, "--concurrency", 1,
    ]  # fmt: skip


def fill(directory: Path) -> Path:
    """Take every byte that is left."""
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError as fault:
            assert fault.errno == errno.ENOSPC
    return filler


def test_a_disk_too_small_is_said_before_the_first_byte_and_goes_on_when_there_is_room(
    disk: SmallDisk, pulling: list[object], server: FaultServer
) -> None:
    filler = fill(disk.outside)

    full = ended(disk.stager(*pulling))

    assert full.exit is StageExit.INSUFFICIENT_DISK
    assert f"{MODEL.total} bytes to fetch" in full.word["expected"]
    assert server.requests == []
    filler.unlink()
    assert ended(disk.stager(*pulling)).code == 0


def test_a_disk_that_fills_up_half_way_ends_with_20_and_loses_nothing_that_arrived(
    disk: SmallDisk, pulling: list[object], server: FaultServer
) -> None:
    store = Store(disk.outside)
    for path in MODEL.shards:
        server.faults[path].append(Fault(hold_after=100_000))
    running = disk.stager(*pulling)
    assert server.held.acquire(timeout=30)
    first = server.requests[-1].path
    filler = fill(disk.outside)
    server.faults.clear()
    server.usual = Fault()
    server.hang_up()

    full = ended(running)

    assert full.exit is StageExit.INSUFFICIENT_DISK, full.err
    assert "full" in full.word["message"]
    assert not store.view(VIEW).exists()
    assert store.blob(sha256(MODEL.files[first])).exists(), "its room was taken in advance"
    filler.unlink()
    server.requests.clear()
    assert ended(disk.stager(*pulling)).code == 0
    assert first not in {request.path for request in server.requests}
    assert {str(p.relative_to(store.view(VIEW))) for p in store.view(VIEW).rglob("[!.]*")} == set(MODEL.files)


def test_a_read_only_disk_ends_with_21_but_still_answers_for_what_it_holds(
    disk: SmallDisk, pulling: list[object], server: FaultServer, tmp_path: Path
) -> None:
    assert ended(disk.stager(*pulling)).code == 0
    other = Model(MODEL.files | {"extra.json": b"{}"})
    server.files = dict(other.files)
    (tmp_path / "other.json").write_text(other.manifest(server.url).model_dump_json(by_alias=True))
    disk.remount("ro")

    held = ended(disk.stager(*pulling))
    wanted = ended(disk.stager(*[tmp_path / "other.json" if a == pulling[2] else a for a in pulling]))

    assert held.code == 0, held.err
    assert wanted.exit is StageExit.STORE_UNUSABLE
    assert "Read-only file system" in wanted.word["message"]


def test_a_disk_that_is_not_mounted_is_not_filled_in_its_place(
    pulling: list[object], disk: SmallDisk, tmp_path: Path
) -> None:
    """Outside the namespace the mount point is an empty directory, as after a lost mount."""
    done = subprocess.run(command(*pulling), capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == StageExit.STORE_UNUSABLE
    assert list(disk.path.iterdir()) == []


def test_gc_on_a_full_disk_frees_real_bytes(disk: SmallDisk, pulling: list[object]) -> None:
    assert ended(disk.stager(*pulling)).code == 0
    fill(disk.outside)

    freed = ended(disk.stager("gc", "--store", disk.path, "--grace", 0))

    assert freed.code == 0, freed.err
    room = os.statvfs(disk.outside)
    assert room.f_bavail * room.f_frsize >= MODEL.total * 0.95
