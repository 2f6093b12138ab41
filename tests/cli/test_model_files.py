"""Facts from directories, sources over HTTP, and a cluster seen through kubectl."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from moe_operator.cli import model_files
from moe_operator.cli.cluster_view import Kubectl, NoCluster, gpus_of
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


def node(name: str, gpus: int = 8, product: str = "NVIDIA-H20", cordoned: bool = False) -> dict[str, Any]:
    resources = {"nvidia.com/gpu": str(gpus)}
    return {
        "metadata": {
            "name": name,
            "labels": {"nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": "97871"},
        },
        "spec": {"unschedulable": cordoned},
        "status": {
            "allocatable": resources,
            "capacity": resources,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(on: str, gpus: int) -> dict[str, Any]:
    limits = {"limits": {"nvidia.com/gpu": str(gpus)}}
    return {
        "metadata": {"name": f"pod-{on}", "namespace": "default"},
        "spec": {"nodeName": on, "containers": [{"resources": limits}]},
        "status": {"phase": "Running"},
    }


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kubectl that prints what lies in files, one per resource."""
    script = tmp_path / "kubectl"
    script.write_text(
        f"#!/bin/sh\nshift\nif [ -f {tmp_path}/$1.json ]; then cat {tmp_path}/$1.json; "
        'else echo "Error from server (Forbidden): no $1 for you" >&2; exit 1; fi\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def put(directory: Path, resource: str, *items: dict[str, Any]) -> None:
    (directory / f"{resource}.json").write_text(json.dumps({"items": list(items)}))


def test_free_gpus_are_counted_on_nodes_that_may_be_used(kubectl: Path) -> None:
    nodes = [node("a"), node("b"), node("c", cordoned=True), node("d", product="NVIDIA-H200")]
    put(kubectl, "nodes", *nodes)
    put(kubectl, "pods", pod("b", 3))
    put(kubectl, "moedeployments")
    found = gpus_of(Kubectl(), "NVIDIA-H20", 8, "nvidia.com/gpu")
    assert (found.nodes, found.usable_nodes, found.free_nodes, found.free_gpus) == (3, 2, 1, 13)
    assert found.memory_mib == 97_871 and found.excluded == ("c is cordoned",)


def test_a_cluster_without_the_product_says_what_it_has(kubectl: Path) -> None:
    put(kubectl, "nodes", node("a", product="NVIDIA-H200"))
    with pytest.raises(NoCluster, match=r"no node with GPUs of product NVIDIA-H20 .*NVIDIA-H200"):
        gpus_of(Kubectl(), "NVIDIA-H20", 8, "nvidia.com/gpu")


def test_what_kubectl_refuses_is_said_in_its_words(kubectl: Path) -> None:
    with pytest.raises(NoCluster, match="no nodes for you"):
        gpus_of(Kubectl(), "NVIDIA-H20", 8, "nvidia.com/gpu")


def test_a_machine_without_kubectl_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoCluster, match="kubectl is not on PATH"):
        Kubectl().items("nodes")
