"""What gc frees, and what it never touches."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from moe_operator.api.manifest import StageExit, view_digest
from moe_operator.staging.collect import Rules, collect
from moe_operator.staging.lock import held
from moe_operator.staging.stop import Stop
from moe_operator.staging.store import Store
from moe_operator.staging.view import verify
from moe_operator.staging.wanted import in_use, want

from tests.staging.fault_server import Fault, FaultServer
from tests.staging.model import Model, make_model, sha256
from tests.staging.runs import failure, pull
from tests.staging.stager import Stager, until

BLUE = make_model(tensor_bytes=2000)
GREEN = Model(BLUE.files | {BLUE.shards[0]: make_model(tensor_bytes=2000, seed=2).files[BLUE.shards[0]]})
BLUE_VIEW, GREEN_VIEW = (view_digest(model.manifest_files()) for model in (BLUE, GREEN))
ONLY_BLUE = sha256(BLUE.files[BLUE.shards[0]])
ONLY_GREEN = sha256(GREEN.files[BLUE.shards[0]])
NOW = Rules(grace=0)


@pytest.fixture(autouse=True)
def _both(store: Store, tmp_path: Path) -> None:
    for name, model in (("blue", BLUE), ("green", GREEN)):
        pull(model.manifest(model.write(tmp_path / name).as_uri()), store)


def blobs(store: Store) -> set[str]:
    return {path.name for path in (store.root / "blobs" / "sha256").glob("??/*")}


def digests(model: Model) -> set[str]:
    return {sha256(data) for data in model.files.values()}


def test_exactly_what_no_kept_view_needs_is_freed(store: Store) -> None:
    freed = collect(store, {GREEN_VIEW}, NOW, Stop())

    assert freed.views == [BLUE_VIEW]
    assert (freed.blobs, freed.bytes_freed) == (1, len(BLUE.files[BLUE.shards[0]]))
    assert blobs(store) == digests(GREEN)
    assert not store.meta(ONLY_BLUE).exists()
    assert list((store.root / "trash").iterdir()) == []
    verify(store, GREEN_VIEW, full=True, stop=Stop())


def test_nothing_kept_frees_everything(store: Store) -> None:
    freed = collect(store, (), NOW, Stop())

    assert freed.bytes_freed == sum(map(len, (BLUE.files | {"x": GREEN.files[BLUE.shards[0]]}).values()))
    assert blobs(store) == set()
    assert list((store.root / "views").iterdir()) == []


def test_a_second_run_does_nothing(store: Store) -> None:
    collect(store, {GREEN_VIEW}, NOW, Stop())

    freed = collect(store, {GREEN_VIEW}, NOW, Stop())

    assert (freed.views, freed.blobs, freed.partials, freed.bytes_freed) == ([], 0, 0, 0)


def test_a_dry_run_says_the_same_and_frees_nothing(store: Store) -> None:
    said = collect(store, {GREEN_VIEW}, Rules(grace=0, dry_run=True), Stop())

    assert blobs(store) == digests(BLUE) | digests(GREEN)
    assert collect(store, {GREEN_VIEW}, NOW, Stop()) == said


def test_what_is_young_is_left_alone(store: Store) -> None:
    freed = collect(store, (), Rules(grace=3600), Stop())

    assert (freed.views, freed.blobs) == ([], 0)


def test_a_view_in_use_is_kept_with_all_its_blobs(store: Store) -> None:
    with in_use(store, BLUE_VIEW):
        freed = collect(store, (), NOW, Stop())

    assert freed.views == [GREEN_VIEW]
    assert blobs(store) == digests(BLUE)
    verify(store, BLUE_VIEW, full=True, stop=Stop())


def test_blobs_a_running_pull_wants_are_kept_before_any_view_links_to_them(store: Store) -> None:
    other = "7" * 64
    with in_use(store, other):
        want(store, other, [ONLY_BLUE])
        collect(store, (), NOW, Stop())
        assert blobs(store) == {ONLY_BLUE}

    collect(store, (), NOW, Stop())

    assert blobs(store) == set()


def test_blobs_of_an_interrupted_pull_are_kept_for_its_kept_view(store: Store) -> None:
    coming = "7" * 64
    with in_use(store, coming):
        want(store, coming, [ONLY_BLUE])
    part = store.part("8" * 64)
    with in_use(store, "9" * 64):
        want(store, "9" * 64, ["8" * 64])
    part.write_bytes(b"x" * 8192)

    collect(store, {coming, "9" * 64}, NOW, Stop())
    assert (blobs(store), part.exists()) == ({ONLY_BLUE}, True)

    freed = collect(store, {coming}, NOW, Stop())
    assert (freed.partials, part.exists()) == (1, False)


def test_a_locked_digest_is_never_touched(store: Store) -> None:
    with held(store.lock(ONLY_BLUE), store.part(ONLY_BLUE), 1, Stop()):
        collect(store, {GREEN_VIEW}, NOW, Stop())
        assert ONLY_BLUE in blobs(store)


def test_leftovers_of_crashes_and_old_corrupt_files_are_cleared(store: Store) -> None:
    corrupt, unborn = store.root / "trash" / "a.bad", store.root / "views" / f".tmp-{BLUE_VIEW}-00"
    orphan = store.journal("5" * 64)
    corrupt.write_bytes(b"bad")
    orphan.write_text("{}\n")
    unborn.mkdir()
    collect(store, {BLUE_VIEW, GREEN_VIEW}, NOW, Stop())
    assert (corrupt.exists(), unborn.exists(), orphan.exists()) == (True, True, False)
    for path in (corrupt, unborn):
        os.utime(path, (0, 0))

    freed = collect(store, {BLUE_VIEW, GREEN_VIEW}, NOW, Stop())

    assert (corrupt.exists(), unborn.exists(), freed.bytes_freed) == (False, False, 3)


def test_collecting_while_pulling_never_takes_what_the_pull_found(store: Store, server: FaultServer) -> None:
    """A slow pull of blue while a collector that keeps nothing runs over and over."""
    collect(store, {GREEN_VIEW}, NOW, Stop())
    server.files = dict(BLUE.files)
    server.usual = Fault(piece=500, pause=0.02)
    over = threading.Event()
    rounds = [0]

    def collector() -> None:
        while not over.is_set():
            collect(store, (), NOW, Stop())
            rounds[0] += 1
            over.wait(0.001)

    thread = threading.Thread(target=collector)
    thread.start()
    try:
        view = pull(BLUE.manifest(server.url), store, threads=1)
        assert view.name == BLUE_VIEW
    finally:
        over.set()
        thread.join()
    assert rounds[0] > 3


def test_a_pull_makes_room_with_blobs_that_nobody_links_to(store: Store, server: FaultServer) -> None:
    collect(store, {GREEN_VIEW}, NOW, Stop())
    stray = Model({"stray.json": b"s" * 50_000})
    digest = sha256(stray.files["stray.json"])
    with held(store.lock(digest), store.blob(digest), 1, Stop()):
        store.put(stray.files["stray.json"], "test")
    server.files = dict(BLUE.files)
    held_now = sum(len(data) for data in GREEN.files.values())
    budget = held_now + len(BLUE.files[BLUE.shards[0]])

    pull(BLUE.manifest(server.url), store, budget=budget)

    assert blobs(store) == digests(BLUE) | digests(GREEN)


def test_a_budget_too_small_is_insufficient_disk_with_the_numbers(store: Store, server: FaultServer) -> None:
    collect(store, {GREEN_VIEW}, NOW, Stop())
    server.files = dict(BLUE.files)
    missing = len(BLUE.files[BLUE.shards[0]])
    held_now = sum(len(data) for data in GREEN.files.values())

    fell = failure(lambda: pull(BLUE.manifest(server.url), store, budget=held_now + missing - 10))

    assert fell.exit is StageExit.INSUFFICIENT_DISK
    assert "10 too few" in fell.message
    assert f"{missing} bytes to fetch" in fell.expected
    assert f"{missing - 10} bytes left of the store's budget" in fell.actual
    assert server.requests == []


def test_the_command_takes_the_keep_set_as_options_and_as_a_file(
    stager: Stager, store: Store, tmp_path: Path
) -> None:
    (tmp_path / "keep").write_text(f"# active\n{GREEN_VIEW}\n\n")
    collecting = ("gc", "--store", store.root, "--grace", 0)

    neither = stager.run(*collecting, "--keep", BLUE_VIEW, "--keep-file", tmp_path / "keep")
    blue = stager.run(*collecting, "--keep-file", tmp_path / "keep")

    assert json.loads(neither.out)["views"] == []
    said = json.loads(blue.out)
    assert (said["views"], said["blobs"]) == ([BLUE_VIEW], 1)
    assert said["bytesKept"] == sum(map(len, GREEN.files.values()))


@pytest.mark.parametrize("limit", [("--disk-budget", 10), ("--reserve-bytes", 1 << 60)])
def test_a_kept_view_outlives_every_limit_and_the_exit_says_so(
    limit: tuple[object, ...], stager: Stager, store: Store
) -> None:
    ended = stager.run("gc", "--store", store.root, "--grace", 0, "--keep", GREEN_VIEW, *limit)

    assert ended.exit is StageExit.INSUFFICIENT_DISK
    assert json.loads(ended.out)["views"] == [BLUE_VIEW]
    verify(store, GREEN_VIEW, full=True, stop=Stop())


def test_a_misspelt_digest_frees_nothing(stager: Stager, store: Store) -> None:
    ended = stager.run("gc", "--store", store.root, "--grace", 0, "--keep", GREEN_VIEW[:-1])

    assert ended.exit is StageExit.BAD_MANIFEST
    assert blobs(store) == digests(BLUE) | digests(GREEN)


def test_a_disk_that_is_not_mounted_is_not_collected(stager: Stager, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    assert stager.run("gc", "--store", tmp_path / "empty").exit is StageExit.STORE_UNUSABLE


def test_a_collector_killed_at_any_time_leaves_kept_views_whole(
    stager: Stager, store: Store, tmp_path: Path
) -> None:
    for number in range(8):
        model = Model(BLUE.files | {"extra.json": b"%d" % number})
        pull(model.manifest(model.write(tmp_path / f"m{number}").as_uri()), store)
    for wait_for in range(6):
        views = len(list((store.root / "views").iterdir()))
        with stager.running("gc", "--store", store.root, "--grace", 0, "--keep", GREEN_VIEW) as run:
            until(
                lambda: run.is_over or len(list((store.root / "views").iterdir())) < views - wait_for % 3,  # noqa: B023
                "it frees something",
            )
    verify(store, GREEN_VIEW, full=True, stop=Stop())

    collect(store, {GREEN_VIEW}, NOW, Stop())

    assert blobs(store) == digests(GREEN)
    assert list((store.root / "trash").iterdir()) == []
