"""Write a synthetic checkpoint: a published model's config and file layout with tiny tensors.

Same name and revision, same bytes. Every dimension is divided by ``DIVISOR`` and of each layer's routed
experts ``KEPT_EXPERTS`` are stored. Each shard says so itself: ``__metadata__["shrunk"]`` is a JSON object
from parameter (``*`` for every expert) to the bytes that the published parameter has, all experts counted.
A reader that wants memory needs looks there first and at the tensors' own sizes otherwise.
``__metadata__["sha256"]`` is of the shard's tensor bytes, so that a reader notices a single altered bit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from itertools import groupby
from math import prod
from pathlib import Path

from .architectures import DTYPE_BYTES, Tensor, tensors
from .catalogue import MODELS, Model
from .shards import Placed, layer_of, place

DIVISOR = 256
KEPT_EXPERTS = 8
CHANGED_LAYERS = 4  # the last decoder layers: the only tensors that a later revision changes
INDEX_FILE = "model.safetensors.index.json"


def build(name: str, directory: Path | str, revision: int = 1) -> None:
    """Write the checkpoint ``name`` of the catalogue into ``directory`` (made if missing).

    Revisions after 1 differ in the bytes of the last layers only, so that a store keeps what it has.
    Raises KeyError for an unknown name and ValueError for a revision below 1.
    """
    if revision < 1:
        raise ValueError(f"revision {revision}: counted from 1")
    model, target = MODELS[name], Path(directory)
    config = model.config()
    placed = place(model, tensors(config), KEPT_EXPERTS if model.shrink else None)
    target.mkdir(parents=True, exist_ok=True)
    (target / "config.json").write_bytes(model.config_text())
    (target / "generation_config.json").write_text(_generation_config(config))
    total = 0
    for shard, group in groupby(sorted(placed, key=lambda one: one.shard), key=lambda one: one.shard):
        total += _write_shard(target / model.shard_file(shard), model, tuple(group), revision, config)
    index = {
        "metadata": {"total_size": total},
        "weight_map": {one.name: model.shard_file(one.shard) for one in placed},
    }
    (target / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n")


def _write_shard(
    path: Path, model: Model, placed: Sequence[Placed], revision: int, config: dict[str, object]
) -> int:
    """Write one safetensors file; returns the bytes of its tensors."""
    metadata = {"format": "pt"}
    if model.shrink:
        full = {one.parameter.name: one.parameter.nbytes * one.parameter.copies for one in placed}
        metadata["shrunk"] = json.dumps(full, separators=(",", ":"))
    header: dict[str, object] = {"__metadata__": metadata}
    data = bytearray()
    for one in placed:
        shape = _stored_shape(one.parameter, model.shrink)
        size = prod(shape) * DTYPE_BYTES[one.parameter.dtype]
        header[one.name] = {
            "dtype": one.parameter.dtype,
            "shape": shape,
            "data_offsets": [len(data), len(data) + size],
        }
        data += _content(model.name, one.name, _revision_of(one.name, revision, config), size)
    metadata["sha256"] = hashlib.sha256(data).hexdigest()
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return len(data)


def _stored_shape(tensor: Tensor, shrink: bool) -> list[int]:
    return [max(1, size // DIVISOR) if shrink else size for size in tensor.shape]


def _revision_of(name: str, revision: int, config: dict[str, object]) -> int:
    text = config.get("text_config", config)
    assert isinstance(text, dict)
    layer, layers = layer_of(name), text["num_hidden_layers"]
    return revision if layer is not None and layers - CHANGED_LAYERS <= layer < layers else 1


def _content(model: str, tensor: str, revision: int, size: int) -> bytes:
    return hashlib.shake_128(f"{model}\n{tensor}\n{revision}".encode()).digest(size)


def _generation_config(config: dict[str, object]) -> str:
    ids = {key: config.get(key) for key in ("bos_token_id", "eos_token_id")}
    return json.dumps({"_from_model_config": True, **ids}, indent=2) + "\n"
