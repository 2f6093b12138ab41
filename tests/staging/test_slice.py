"""Cutting a checkpoint into groups of experts: every tensor arrives, once, where its node looks for it."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from moe_operator.api.manifest import StageExit, expert_patterns
from moe_operator.staging.progress import Progress
from moe_operator.staging.slice import SliceOptions, slice_model
from moe_operator.staging.stop import Stop
from moe_operator.staging.store import Store

from e2e.engine_stub.checkpoint import Weights, read_shards
from tests.staging.model import Model, sha256
from tests.staging.runs import failure, pull, resolve
from tests.staging.stager import Stager, until

LAYERS, EXPERTS = 3, 12
INDEX = "model.safetensors.index.json"
Tensors = dict[str, tuple[str, list[int], bytes]]


def kimi(seed: int = 1) -> dict[str, Tensors]:
    """Shard -> tensors, as Kimi-K3 is laid out: one layer a file, experts in lexicographic order."""
    rng = random.Random(seed)
    shards: dict[str, Tensors] = {}
    for layer in range(LAYERS):
        tensors: Tensors = {f"model.layers.{layer}.norm.weight": ("BF16", [7], rng.randbytes(14))}
        for expert in sorted(range(EXPERTS), key=str):
            for part in ("w1", "w2"):
                name = f"model.layers.{layer}.block_sparse_moe.experts.{expert}.{part}"
                tensors[f"{name}.weight_packed"] = ("U8", [301], rng.randbytes(301))
                tensors[f"{name}.weight_scale"] = ("F32", [3], rng.randbytes(12))
        tensors[f"model.layers.{layer}.shared_experts.up.weight"] = ("BF16", [5], rng.randbytes(10))
        shards[f"model-{layer + 1:05d}-of-{LAYERS:06d}.safetensors"] = tensors
    return shards


def packed(tensors: Tensors) -> bytes:
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    raw = json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + b"".join(data for _d, _s, data in tensors.values())


def model_of(shards: dict[str, Tensors]) -> Model:
    files = {name: packed(tensors) for name, tensors in shards.items()}
    weight_map = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    files[INDEX] = json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}).encode()
    files["config.json"] = b'{"n_routed_experts": 12}'
    files["tokenizer.json"] = b"{}"
    return Model(files)


SHARDS = kimi()
MODEL = model_of(SHARDS)
TENSORS = {name: tensor for tensors in SHARDS.values() for name, tensor in tensors.items()}


def unpacked(path: Path) -> Tensors:
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header: dict[str, Any] = json.loads(raw[8 : 8 + length])
    return {
        name: (entry["dtype"], entry["shape"], raw[8 + length :][slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }


def cut(model: Path, out: Path, groups: int = 4, **options: Any) -> Path:
    return slice_model(model, out, SliceOptions(groups, **options), Progress(), Stop())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return MODEL.write(tmp_path / "model")


@pytest.mark.parametrize("shard_bytes", [2000, 1 << 30])
def test_every_tensor_arrives_once_with_the_same_bytes(
    shard_bytes: int, source: Path, tmp_path: Path
) -> None:
    out = cut(source, tmp_path / "out", shard_bytes=shard_bytes)

    found: Tensors = {}
    for path in out.glob("*.safetensors"):
        held = unpacked(path)
        assert not found.keys() & held.keys()
        found |= held
    assert found == TENSORS
    index = json.loads((out / INDEX).read_text())
    assert index["weight_map"].keys() == TENSORS.keys()
    assert index["metadata"]["total_size"] == sum(len(data) for _d, _s, data in TENSORS.values())
    assert (out / "config.json").read_bytes() == MODEL.files["config.json"]


def test_a_group_holds_the_weights_of_its_experts_and_common_all_the_rest(
    source: Path, tmp_path: Path
) -> None:
    out = cut(source, tmp_path / "out")

    names = {path.name for path in out.glob("*.safetensors")}
    groups = {f"experts-{low:04d}-{low + 2:04d}-00001.safetensors": low for low in (0, 3, 6, 9)}
    assert names == {"common-00001.safetensors", *groups}
    for name, low in groups.items():
        held = set(unpacked(out / name))
        assert held == {
            tensor
            for tensor in TENSORS
            if tensor.endswith(".weight_packed")
            and int(tensor.split(".experts.")[1].split(".")[0]) // 3 * 3 == low
        }
    assert {t for t in TENSORS if not t.endswith(".weight_packed")} == set(
        unpacked(out / "common-00001.safetensors")
    )


def test_every_tensor_starts_at_a_multiple_of_its_element(source: Path, tmp_path: Path) -> None:
    out = cut(source, tmp_path / "out")

    for path in out.glob("*.safetensors"):
        raw = path.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        assert length % 8 == 0
        for entry in json.loads(raw[8 : 8 + length]).values():
            assert entry["data_offsets"][0] % {"F32": 4, "BF16": 2, "U8": 1}[entry["dtype"]] == 0


def test_a_node_pulls_its_experts_only_and_an_engine_reads_them(
    source: Path, tmp_path: Path, store: Store
) -> None:
    out = cut(source, tmp_path / "out")
    manifest = resolve(out.as_uri())
    patterns = expert_patterns(manifest.files, 3, 6)
    assert patterns is not None

    view = pull(manifest, store, patterns=patterns)

    assert manifest.checksum_provenance == "publisher"
    assert {path.name for path in view.glob("*.safetensors")} == {
        "common-00001.safetensors", "experts-0003-0005-00001.safetensors"
    }  # fmt: skip
    assert isinstance(list(read_shards(view))[-1], Weights)
    mine = json.loads((view / INDEX).read_text())["weight_map"]
    experts = {int(t.split(".experts.")[1].split(".")[0]) for t in mine if t.endswith(".weight_packed")}
    assert experts == {3, 4, 5}
    scales = {int(t.split(".experts.")[1].split(".")[0]) for t in mine if t.endswith(".weight_scale")}
    assert scales == set(range(EXPERTS))


def test_the_result_does_not_depend_on_threads_or_on_being_interrupted(source: Path, tmp_path: Path) -> None:
    one = cut(source, tmp_path / "one", threads=1)
    four = cut(source, tmp_path / "four", threads=4)

    assert {p.name: p.read_bytes() for p in one.iterdir()} == {p.name: p.read_bytes() for p in four.iterdir()}


def test_a_finished_result_is_left_alone(source: Path, tmp_path: Path) -> None:
    out = cut(source, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}

    cut(source, tmp_path / "out")

    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


def test_a_kill_at_any_time_leaves_nothing_half_done_and_a_restart_goes_on(
    stager: Stager, tmp_path: Path
) -> None:
    shards = {
        name: {t: (d, [len(data) * 300], data * 300) for t, (d, _s, data) in tensors.items()}
        for name, tensors in SHARDS.items()
    }
    source = model_of(shards).write(tmp_path / "big")
    work, out = tmp_path / ".out.slicing", tmp_path / "out"
    slicing = ("slice", "--model", source, "--out", out, "--groups", 4, "--concurrency", 1)
    for kill in range(3):
        with stager.running(*slicing) as run:
            until(lambda k=kill: run.is_over or _lines(work / ".done") > k, "one more file is done")  # type: ignore[misc]
            run.signal(signal.SIGKILL) if not run.is_over else None
        if out.exists():
            break
        assert _lines(work / ".done") >= kill

    ended = stager.run(*slicing)

    assert ended.code == 0, ended.err
    assert not work.exists()
    clean = cut(source, tmp_path / "clean")
    assert {p.name: p.read_bytes() for p in out.iterdir()} == {
        p.name: p.read_bytes() for p in clean.iterdir()
    }


def _lines(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


def test_a_damaged_source_is_named_and_nothing_appears(tmp_path: Path) -> None:
    model = Model(MODEL.files | {"SHA256SUMS": MODEL.sums()})
    source = model.write(tmp_path / "model")
    shard = source / MODEL.shards[1]
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 1
    shard.write_bytes(raw)

    fell = failure(lambda: cut(source, tmp_path / "out"))

    assert (fell.exit, fell.file) == (StageExit.CHECKSUM_MISMATCH, MODEL.shards[1])
    assert fell.expected == sha256(MODEL.files[MODEL.shards[1]])
    assert not (tmp_path / "out").exists()


def test_a_view_is_a_source_and_its_description_is_the_checksum_list(
    source: Path, store: Store, tmp_path: Path
) -> None:
    view = pull(MODEL.manifest(source.as_uri()), store)
    blob = store.blob(sha256(MODEL.files[MODEL.shards[0]]))
    raw = bytearray(blob.read_bytes())
    raw[-1] ^= 1
    blob.chmod(0o644)
    blob.write_bytes(raw)

    assert failure(lambda: cut(view, tmp_path / "out")).file == MODEL.shards[0]


def _fused() -> dict[str, Tensors]:
    return {"model.safetensors": {"layers.0.mlp.experts.gate_up_proj": ("U8", [4], b"1234")}}


def _without_one() -> dict[str, Tensors]:
    shards = kimi()
    shards[next(iter(shards))] = {
        name: tensor for name, tensor in shards[next(iter(shards))].items() if ".experts.4." not in name
    }
    return shards


REFUSED = {
    "fused experts": (_fused(), 1, "all experts in one tensor"),
    "no experts": ({"model.safetensors": {"layers.0.weight": ("U8", [4], b"1234")}}, 1, "no routed experts"),
    "uneven groups": (SHARDS, 5, "12 experts cannot be cut into 5 equal groups"),
    "an expert is missing": (_without_one(), 4, "does not have the experts 0 to 11"),
}


@pytest.mark.parametrize(("shards", "groups", "why"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_cut_is_refused(
    shards: dict[str, Tensors], groups: int, why: str, tmp_path: Path
) -> None:
    fell = failure(lambda: cut(model_of(shards).write(tmp_path / "m"), tmp_path / "out", groups))

    assert fell.exit is StageExit.LAYOUT_INCOMPATIBLE
    assert why in fell.message
    assert not (tmp_path / "out").exists()


def test_too_small_a_disk_is_said_first(source: Path, tmp_path: Path) -> None:
    fell = failure(lambda: cut(source, tmp_path / "out", reserve=1 << 60))

    assert fell.exit is StageExit.INSUFFICIENT_DISK
    assert "bytes to write" in fell.expected


def test_a_directory_that_holds_something_else_is_not_touched(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")

    fell = failure(lambda: cut(source, tmp_path / "out"))

    assert fell.exit is StageExit.LAYOUT_INCOMPATIBLE
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]
