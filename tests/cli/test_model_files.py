"""Facts from directories and from sources over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from moe_operator.cli import model_files
from moe_operator.cli.model_files import NoFacts

from e2e.checkpoints.build import build
from tests.planning.known_models import CONFIGS

NEW = {
    "architectures": ["NobodyKnowsThisForCausalLM"],
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 4,
}


def shard(path: Path, tensors: dict[str, int]) -> None:
    """A safetensors file with U8 tensors of so many bytes."""
    header, at = {}, 0
    for name, size in tensors.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(at))


@pytest.fixture
def new_model(tmp_path: Path) -> Path:
    """A checkpoint of an architecture without a reader, in two shards."""
    (tmp_path / "config.json").write_text(json.dumps(NEW))
    first = {"model.embed_tokens.weight": 500, "model.layers.0.self_attn.q_proj.weight": 100}
    second = {f"model.layers.1.mlp.experts.{e}.up_proj.weight": 25 for e in range(4)}
    shard(tmp_path / "a.safetensors", first)
    shard(tmp_path / "b.safetensors", second)
    weight_map = dict.fromkeys(first, "a.safetensors") | dict.fromkeys(second, "b.safetensors")
    index = {"metadata": {"total_size": 700}, "weight_map": weight_map}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


@pytest.fixture
def served(new_model: Path) -> Iterator[str]:
    """The same checkpoint over HTTP."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(new_model))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_new_architecture_is_sized_by_the_headers_of_its_shards(new_model: Path) -> None:
    found = model_files.from_directory(new_model).checkpoint
    assert found.weight_bytes == 700 and not found.known
    assert [layer.nbytes for layer in found.layers] == [100, 100]
    assert any("names of their tensors" in said for said in found.assumptions)


def test_a_source_over_http_says_the_same_as_the_directory(
    new_model: Path, served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_files, "PLAIN_HOSTS", ("127.0.0.1",))
    assert model_files.from_source(served).checkpoint == model_files.from_directory(new_model).checkpoint


def test_a_source_that_does_not_answer_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_files, "PLAIN_HOSTS", ("127.0.0.1",))
    with pytest.raises(NoFacts, match=r"http://127\.0\.0\.1:1"):
        model_files.from_source("http://127.0.0.1:1/model")


def test_a_known_architecture_needs_no_headers(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((CONFIGS / "Qwen--Qwen3-235B-A22B.config.json").read_text())
    index = {"metadata": {"total_size": 470_187_269_120}, "weight_map": {"x": "absent.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = model_files.from_directory(tmp_path)
    assert found.checkpoint.weight_bytes == 470_187_269_120 and found.origin == str(tmp_path)


def test_a_checkpoint_on_disk_is_read_whole(tmp_path: Path) -> None:
    build("tiny-qwen3-moe", tmp_path)
    assert model_files.from_directory(tmp_path).checkpoint.routed_experts == 8


@pytest.mark.parametrize("content", [b"", b"1234567", b"\xff" * 8, (50).to_bytes(8, "little") + b"not json"])
def test_a_file_that_is_no_shard_is_said_in_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_text(json.dumps(NEW))
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(NoFacts, match=r"model\.safetensors"):
        model_files.from_directory(tmp_path)
