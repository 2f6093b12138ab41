"""Small models with the shape of real ones: config, index, safetensors shards with honest headers."""

from __future__ import annotations

import hashlib
import json
import random
import re
from dataclasses import dataclass
from pathlib import Path

from moe_operator.api.manifest import Manifest, ManifestFile

MODEL_REPO = "moonshotai/Tiny-K3"
_LAYER = re.compile(r"\blayers\.(\d+)\.")
CONFIG = {"architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 4, "n_routed_experts": 16}


def safetensors(tensors: dict[str, bytes]) -> bytes:
    """A file as the safetensors library writes it."""
    header, at = {}, 0
    for name, data in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [at, at + len(data)]}
        at += len(data)
    raw = json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + b"".join(tensors.values())


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Model:
    """path -> bytes."""

    files: dict[str, bytes]

    @property
    def total(self) -> int:
        return sum(len(data) for data in self.files.values())

    @property
    def shards(self) -> list[str]:
        return [path for path in self.files if path.endswith(".safetensors")]

    def write(self, directory: Path) -> Path:
        for path, data in self.files.items():
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_bytes(data)
        return directory

    def manifest_files(self) -> list[ManifestFile]:
        return [_listed(path, data) for path, data in sorted(self.files.items())]

    def manifest(self, source: str, resolved: str = "") -> Manifest:
        return Manifest(source=source, resolved=resolved, files=self.manifest_files(), config=CONFIG)

    def sums(self) -> bytes:
        return "".join(f"{sha256(data)}  {path}\n" for path, data in self.files.items()).encode()

    def publisher_list(self) -> bytes:
        return json.dumps({"files": [file.model_dump() for file in self.manifest_files()]}).encode()


def _listed(path: str, data: bytes) -> ManifestFile:
    """What the resolver says about a file; the names in a shard's header tell its layers."""
    file = ManifestFile(path=path, size=len(data), sha256=sha256(data))
    if not path.endswith(".safetensors"):
        return file
    names = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    layers = {int(found[1]) if (found := _LAYER.search(name)) else None for name in names}
    inside = sorted(layer for layer in layers if layer is not None)
    span = (inside[0], inside[-1]) if inside else None
    return file.model_copy(update={"layers": span, "outside": None in layers})


def make_model(shards: int = 3, tensor_bytes: int = 40_000, seed: int = 1) -> Model:
    """``shards`` files of two tensors each, an index, a config and a tokenizer."""
    rng = random.Random(seed)
    files: dict[str, bytes] = {"config.json": json.dumps(CONFIG).encode(), "tokenizer.json": b'{"v": 1}'}
    weight_map: dict[str, str] = {}
    for number in range(1, shards + 1):
        path = f"model-{number:05d}-of-{shards:06d}.safetensors"
        tensors = {f"layers.{number}.{part}.weight": rng.randbytes(tensor_bytes) for part in ("a", "b")}
        weight_map |= dict.fromkeys(tensors, path)
        files[path] = safetensors(tensors)
    index = {"metadata": {"total_size": 2 * shards * tensor_bytes}, "weight_map": weight_map}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    return Model(files)
