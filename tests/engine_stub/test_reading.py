"""Reading weights as an engine does, and the memory that its ranks need for them."""

import json
import re
import shutil
from pathlib import Path

import pytest

from e2e.checkpoints import MODELS, build
from e2e.checkpoints.architectures import tensors
from e2e.engine_stub.checkpoint import CheckpointError, Weights, read_config, read_shards
from e2e.engine_stub.memory import Facts, kv_need, stage_layers, weight_bytes
from e2e.engine_stub.parallel import Parallel

GIB = 1 << 30


@pytest.fixture
def copy(tiny, tmp_path):
    """A checkpoint to damage."""
    target = tmp_path / "model"
    shutil.copytree(tiny, target)
    return target


@pytest.fixture(scope="module")
def kimi(tmp_path_factory) -> tuple[Weights, Facts]:
    directory = tmp_path_factory.mktemp("kimi")
    build("kimi-k3", directory)
    return read(directory), Facts.of(read_config(directory))


def read(directory: Path) -> Weights:
    *_, weights = read_shards(directory)
    assert isinstance(weights, Weights)
    return weights


def first_shard(model: Path) -> Path:
    return min(model.glob("*.safetensors"))


def damage_length(data: bytes) -> bytes:
    return (10**9).to_bytes(8, "little") + data[8:]


def damage_json(data: bytes) -> bytes:
    return data[:8] + b"X" + data[9:]


def damage_shape(data: bytes) -> bytes:
    return re.sub(rb'"shape":\[(\d)', rb'"shape":[9', data, count=1)


def damage_offset(data: bytes) -> bytes:
    return data.replace(b'"data_offsets":[0,', b'"data_offsets":[1,', 1)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: data[:4], "header too small"),
        (lambda data: data[:20], "invalid header length"),
        (damage_length, "header too large"),
        (damage_json, "invalid JSON in header"),
        (damage_shape, "info and data offsets mismatch"),
        (damage_offset, "invalid offset for tensor"),
        (lambda data: data + b"\0", "incomplete metadata, file not fully covered"),
    ],
)
def test_every_kind_of_damaged_header_is_refused(copy, damage, reason):
    shard = first_shard(copy)
    shard.write_bytes(damage(shard.read_bytes()))
    with pytest.raises(CheckpointError, match=f"SafetensorError: Error while deserializing header: {reason}"):
        list(read_shards(copy))


def test_a_tensor_that_is_not_where_the_index_says(copy):
    path = copy / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.layers.9.mlp.gate.weight"] = first_shard(copy).name
    path.write_text(json.dumps(index))
    lost = re.escape("not initialized from checkpoint: {'model.layers.9.mlp.gate.weight'}")
    with pytest.raises(CheckpointError, match=lost):
        list(read_shards(copy))


def test_a_single_file_needs_no_index(copy):
    (copy / "model.safetensors.index.json").unlink()
    assert read(copy).shards == 2


def test_a_directory_without_weights(copy):
    for file in copy.glob("*.safetensors*"):
        file.unlink()
    with pytest.raises(CheckpointError, match="Cannot find any model weights with"):
        list(read_shards(copy))


def test_the_identity_follows_the_bytes(tiny, copy, tmp_path):
    build("tiny-qwen3-moe", tmp_path / "next", revision=2)
    assert read(copy).identity == read(tiny).identity
    assert read(copy).identity != read(tmp_path / "next").identity


@pytest.mark.parametrize("where", [-1, -100])
def test_a_single_altered_bit_is_refused(copy, where):
    shard = first_shard(copy)
    data = bytearray(shard.read_bytes())
    data[where] ^= 1
    shard.write_bytes(data)
    with pytest.raises(CheckpointError, match="was altered"):
        read(copy)


@pytest.mark.parametrize(
    "model", ["deepseek-v3.1", "kimi-k3", "qwen3-235b-a22b", "qwen3-235b-a22b-fp8", "tiny-qwen3-moe"]
)
def test_every_synthetic_checkpoint_reads_as_its_published_size(model, tmp_path):
    build(model, tmp_path)
    published = sum(one.nbytes * one.copies for one in tensors(MODELS[model].config()))
    assert sum(read(tmp_path).parameters.values()) == published


@pytest.mark.parametrize(
    ("parallel", "gib"),
    [  # what the text part weighs on one rank of Kimi-K3, plus 0.75 GiB of vision that every rank keeps
        (Parallel(tensor=8), 191.0),
        (Parallel(tensor=8, data=4, experts_whole=True), 64.7),
        (Parallel(tensor=16, data=2, experts_whole=True), 58.8),
        (Parallel(tensor=32, experts_whole=True), 55.8),
    ],
)
def test_kimi_weights_of_one_rank(kimi, parallel, gib):
    weights, facts = kimi
    ours = weight_bytes(weights.parameters, facts, parallel, parallel.rank(0)) / GIB
    assert ours == pytest.approx(gib + 0.82, abs=0.1)


def test_kimi_cache_is_a_latent_per_token_and_a_state_per_request(kimi):
    _, facts = kimi
    parallel = Parallel(tensor=8)
    need = kv_need(facts, parallel, parallel.rank(0), cache_bytes=1)
    assert need.per_token == 24 * 576  # not divided by TP
    assert need.fixed == 56_171_520  # 53.57 MiB


def test_key_value_heads_are_copied_when_there_are_fewer_than_ranks():
    facts = Facts.of(MODELS["qwen3-235b-a22b"].config())
    for tensor, heads in ((1, 4), (2, 2), (4, 1), (8, 1)):
        parallel = Parallel(tensor=tensor)
        need = kv_need(facts, parallel, parallel.rank(0), cache_bytes=2)
        assert need.per_token == 94 * 2 * heads * 128 * 2


@pytest.mark.parametrize(
    ("layers", "stages", "sizes"),
    [(93, 2, [47, 46]), (93, 4, [23, 23, 24, 23]), (61, 2, [31, 30]), (4, 1, [4])],
)
def test_stages_split_layers_as_vllm_does(layers, stages, sizes):
    assert [len(stage_layers(layers, stages, stage)) for stage in range(stages)] == sizes


def test_one_rank_alone_holds_the_whole_model(kimi):
    weights, facts = kimi
    one = weight_bytes(weights.parameters, facts, Parallel(), Parallel().rank(0))
    assert one == sum(weights.parameters.values())
