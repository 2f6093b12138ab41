"""The immutable ConfigMap that keeps a model's facts, and how it is read back.

JSON as it is up to 256 KiB, gzip above: a ConfigMap holds 1 MiB, and a list of thousands of shards does
not have to be readable by eye. gzip is written without a time stamp, so the same facts give the same bytes.
"""

from __future__ import annotations

import base64
import gzip
import zlib
from functools import lru_cache
from typing import Any

from moe_operator.api.manifest import Manifest
from moe_operator.api.names import COMPONENT_RESOLVER
from moe_operator.resources.ownership import Owner

Obj = dict[str, Any]
KEY_PLAIN = "manifest.json"
KEY_COMPRESSED = "manifest.json.gz"
PLAIN_LIMIT = 256 * 1024


def manifest_config_map(owner: Owner, name: str, manifest: Manifest) -> Obj:
    """Build the ConfigMap of one resolved source."""
    text = manifest.model_dump_json(by_alias=True)
    body: Obj = {"data": {KEY_PLAIN: text}}
    if len(text) > PLAIN_LIMIT:
        packed = gzip.compress(text.encode(), mtime=0)
        body = {"binaryData": {KEY_COMPRESSED: base64.b64encode(packed).decode()}}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": owner.metadata(name, COMPONENT_RESOLVER),
        "immutable": True,
        **body,
    }


def manifest_of(config_map: Obj) -> Manifest:
    """Read the facts back; ValueError when somebody replaced the object by something else."""
    plain = (config_map.get("data") or {}).get(KEY_PLAIN)
    if plain is not None:
        return _read(plain)
    packed = (config_map.get("binaryData") or {}).get(KEY_COMPRESSED)
    if packed is None:
        raise ValueError(f"ConfigMap {config_map['metadata']['name']} holds no {KEY_PLAIN}")
    try:
        text = gzip.decompress(base64.b64decode(packed, validate=True))
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"ConfigMap {config_map['metadata']['name']}: {error}") from error
    return _read(text)


@lru_cache(maxsize=16)
def _read(text: str | bytes) -> Manifest:
    """The facts in a text; they are immutable, and read in every pass."""
    return Manifest.model_validate_json(text)


def manifest_key(config_map: Obj) -> str:
    """Which of the two keys the ConfigMap uses: the file name under the mount."""
    return KEY_PLAIN if KEY_PLAIN in (config_map.get("data") or {}) else KEY_COMPRESSED
