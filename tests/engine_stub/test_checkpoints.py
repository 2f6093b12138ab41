"""The builder reproduces published layouts, is deterministic, and a revision touches few files."""

import hashlib
import json
from pathlib import Path

import pytest

from e2e.checkpoints import MODELS, build
from e2e.checkpoints.architectures import tensors


def parameters(name: str):
    return tensors(MODELS[name].config())


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


def header(path: Path) -> dict[str, dict]:
    data = path.read_bytes()
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


@pytest.mark.parametrize(
    ("name", "count", "total"),
    [
        ("deepseek-v3.1", 91_991, 688_574_839_360),
        ("kimi-k3", 497_220, 1_560_860_324_864),
        ("qwen3-235b-a22b", 36_945, 235_093_634_560 * 2),
        ("qwen3-235b-a22b-fp8", 73_417, 236_445_455_360),
    ],
)
def test_tensor_counts_and_bytes_are_the_published_ones(name, count, total):
    assert sum(one.copies for one in parameters(name)) == count
    assert sum(one.copies * one.nbytes for one in parameters(name)) == total


def test_one_kimi_expert_has_the_published_size():
    expert = [one for one in parameters("kimi-k3") if ".layers.1.block_sparse_moe.experts.*" in one.name]
    assert sum(one.nbytes for one in expert) == 17_547_264


@pytest.mark.parametrize("name", sorted(MODELS))
def test_index_and_headers_agree_and_every_shard_of_the_published_layout_exists(name, tmp_path):
    build(name, tmp_path)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    stored, total = {}, 0
    for path in tmp_path.glob("*.safetensors"):
        entries = header(path)
        del entries["__metadata__"]
        stored |= dict.fromkeys(entries, path.name)
        total += max(entry["data_offsets"][1] for entry in entries.values())
    assert stored == index["weight_map"]
    assert total == index["metadata"]["total_size"]
    assert len(set(stored.values())) == MODELS[name].shards
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 6_000_000


def test_the_config_is_the_published_file_byte_for_byte(tmp_path):
    build("kimi-k3", tmp_path)
    assert (tmp_path / "config.json").read_bytes() == MODELS["kimi-k3"].config_text()


def test_a_shrunk_shard_says_what_its_parameters_really_weigh(tmp_path):
    build("deepseek-v3.1", tmp_path)
    full: dict[str, int] = {}
    for path in tmp_path.glob("*.safetensors"):
        full |= json.loads(header(path)["__metadata__"]["shrunk"])
    assert sum(full.values()) == 688_574_839_360
    assert full["model.layers.3.mlp.experts.*.gate_proj.weight"] == 256 * 2048 * 7168


def test_an_unshrunk_checkpoint_makes_no_such_claim(tmp_path):
    build("tiny-qwen3-moe", tmp_path)
    assert all("shrunk" not in header(path)["__metadata__"] for path in tmp_path.glob("*.safetensors"))


def test_building_twice_gives_the_same_bytes(tmp_path):
    build("qwen3-235b-a22b-fp8", tmp_path / "a")
    build("qwen3-235b-a22b-fp8", tmp_path / "b")
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


def test_a_revision_changes_the_last_layers_files_only(tmp_path):
    build("deepseek-v3.1", tmp_path / "1")
    build("deepseek-v3.1", tmp_path / "2", revision=2)
    before, after = digests(tmp_path / "1"), digests(tmp_path / "2")
    changed = {name for name in before if before[name] != after[name]}
    shards = json.loads((tmp_path / "1/model.safetensors.index.json").read_text())["weight_map"]
    last = tuple(f"model.layers.{layer}." for layer in range(57, 61))
    assert before.keys() == after.keys()
    assert changed == {file for name, file in shards.items() if name.startswith(last)}
    assert 0 < len(changed) < 15


def test_a_revision_below_one_is_refused(tmp_path):
    with pytest.raises(ValueError, match="counted from 1"):
        build("tiny-qwen3-moe", tmp_path, revision=0)
