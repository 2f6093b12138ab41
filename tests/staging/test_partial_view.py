"""Views of some shards: what is in them, what they are called, and that they hold without the source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from moe_operator.api.manifest import (
    Manifest,
    ManifestFile,
    StageExit,
    expert_patterns,
    select_files,
    view_digest,
)
from moe_operator.staging.stop import Stop
from moe_operator.staging.store import Store
from moe_operator.staging.view import read_description, verify

from e2e.engine_stub.checkpoint import read_shards
from tests.staging.model import Model, make_model, sha256
from tests.staging.runs import assert_published, contents, failure, link, pull

MODEL = make_model(shards=4, tensor_bytes=1000)
INDEX = "model.safetensors.index.json"
FIRST, SECOND, *_REST = MODEL.shards


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    return MODEL.manifest(MODEL.write(tmp_path / "source").as_uri())


def test_a_partial_view_holds_its_shards_every_other_file_and_an_index_of_what_is_there(
    manifest: Manifest, store: Store
) -> None:
    view = pull(manifest, store, patterns=[FIRST, SECOND])

    held = contents(view)
    index = json.loads(held.pop(INDEX))
    assert held == {path: MODEL.files[path] for path in (FIRST, SECOND, "config.json", "tokenizer.json")}
    whole = json.loads(MODEL.files[INDEX])["weight_map"]
    assert index["weight_map"] == {t: shard for t, shard in whole.items() if shard in (FIRST, SECOND)}
    assert index["metadata"]["total_size"] == 4 * 1000


def test_the_operator_can_name_a_partial_view_without_seeing_the_index(
    manifest: Manifest, store: Store
) -> None:
    view = pull(manifest, store, patterns=["model-0000[12]-*"])

    assert view.name == view_digest(select_files(manifest.files, [FIRST, SECOND]))
    assert view.name != view_digest(manifest.files)


def test_an_engine_reads_a_partial_view_and_refuses_the_publishers_index(
    manifest: Manifest, store: Store
) -> None:
    view = pull(manifest, store, patterns=[FIRST])

    *_progress, weights = read_shards(view)

    assert getattr(weights, "shards", None) == 1


def test_only_the_selected_shards_are_fetched_and_the_rest_is_shared_by_content(
    manifest: Manifest, store: Store
) -> None:
    pull(manifest, store, patterns=[FIRST])
    assert not store.blob(sha256(MODEL.files[SECOND])).exists()
    shared = link()

    pull(manifest, store, patterns=[FIRST, SECOND], shared=shared)

    assert shared.progress.counts.received == len(MODEL.files[SECOND])


def test_a_partial_view_is_answered_and_mended_without_the_source(manifest: Manifest, store: Store) -> None:
    view = pull(manifest, store, patterns=[FIRST])
    before = contents(view)
    again = pull(manifest, store, patterns=[FIRST], url="file:///nowhere")
    (view / INDEX).unlink()
    (view / INDEX).write_text("{}")

    mended = pull(manifest, store, patterns=[FIRST], url="file:///nowhere")

    assert view == again == mended
    assert contents(view) == before
    assert len(verify(store, view.name, full=True, stop=Stop()).links) == len(before) + 1


def test_every_pattern_that_fits_everything_is_the_whole_view(manifest: Manifest, store: Store) -> None:
    view = pull(manifest, store, patterns=["*"])

    assert_published(view, MODEL)
    assert read_description(store, view.name).index is None


def test_a_pattern_that_fits_nothing_is_refused(manifest: Manifest, store: Store) -> None:
    fell = failure(lambda: pull(manifest, store, patterns=[FIRST, "modle-*"]))

    assert fell.exit is StageExit.BAD_MANIFEST
    assert "'modle-*'" in fell.message


def test_a_model_without_an_index_needs_none(tmp_path: Path, store: Store) -> None:
    model = Model({path: data for path, data in MODEL.files.items() if path != INDEX})
    manifest = model.manifest(model.write(tmp_path / "plain").as_uri())

    view = pull(manifest, store, patterns=[FIRST])

    assert set(contents(view)) == {FIRST, "config.json", "tokenizer.json"}


def sliced(*names: str) -> list[ManifestFile]:
    return [ManifestFile(path=name, size=1, sha256=sha256(name.encode())) for name in names]


SLICED = sliced(
    "common-00001.safetensors", "config.json", "experts-0000-0027-00001.safetensors",
    "experts-0000-0027-00002.safetensors", "experts-0028-0055-00001.safetensors",
    "experts-0056-0083-00001.safetensors",
)  # fmt: skip


@pytest.mark.parametrize(
    ("first", "end", "groups"),
    [
        (0, 28, ["0000-0027"]),
        (27, 29, ["0000-0027", "0028-0055"]),
        (28, 84, ["0028-0055", "0056-0083"]),
        (80, 90, None),
        (84, 112, None),
    ],
)
def test_a_nodes_experts_name_its_files(first: int, end: int, groups: list[str] | None) -> None:
    patterns = expert_patterns(SLICED, first, end)

    if groups is None:
        assert patterns is None
        return
    assert patterns == ["common-*.safetensors", *(f"experts-{group}-*.safetensors" for group in groups)]
    chosen = {file.path for file in select_files(SLICED, patterns)}
    assert {"common-00001.safetensors", "config.json"} <= chosen
    assert {path[8:17] for path in chosen if path.startswith("experts-")} == set(groups)


def test_a_model_that_is_not_sliced_has_no_patterns() -> None:
    assert expert_patterns(MODEL.manifest_files(), 0, 8) is None
