"""The index of a partial view: only the tensors whose shards are there.

Both engines refuse a directory whose index names absent files, so a partial view cannot carry the
publisher's. The filtered one is a pure function of the publisher's index and of which shards were
selected, so every node with the same selection has the same bytes. ``total_size`` counts the tensors that
are left, as the format asks: each shard's length without its header.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from moe_operator.api.manifest import SHARD_SUFFIX, ManifestFile, StageExit
from moe_operator.staging.failure import StageError
from moe_operator.staging.selection import INDEX
from moe_operator.staging.store import Store
from moe_operator.staging.weights import LENGTH_BYTES, header_length, parse_object

PUBLISHERS_INDEX = ".moe-index.json"  # beside the filtered one, so that mending never asks the source


def filtered_index(store: Store, files: Sequence[ManifestFile]) -> bytes | None:
    """The index for ``files``, whose blobs are all here; None when the model has no index."""
    original = next((file for file in files if file.path == INDEX), None)
    if original is None:
        return None
    weight_map = parse_object(store.blob(original.sha256).read_bytes(), INDEX).get("weight_map")
    if not isinstance(weight_map, dict):
        raise StageError(StageExit.BAD_MANIFEST, f"{INDEX} has no weight_map", file=INDEX)
    shards = {file.path: file for file in files if file.path.endswith(SHARD_SUFFIX)}
    left = {tensor: shard for tensor, shard in sorted(weight_map.items()) if shard in shards}
    total = sum(_tensor_bytes(store, shards[path]) for path in sorted(set(left.values())))
    return json.dumps({"metadata": {"total_size": total}, "weight_map": left}, indent=1).encode()


def _tensor_bytes(store: Store, shard: ManifestFile) -> int:
    with store.blob(shard.sha256).open("rb") as file:
        return shard.size - LENGTH_BYTES - header_length(file.read(LENGTH_BYTES), shard.path)
