"""Which files of a source make up a model.

Taken: files with an extension on the allow-list, in plain relative paths without hidden parts. ``*.py``
only when remote code is trusted. Safetensors: the shards the index names, or, without an index, those
at the top level (what vLLM and SGLang load); a copy in another layout would only cost disk.
Pickles (``.bin``, ``.pt``) are never taken: loading one runs its code.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import PurePosixPath

from moe_operator.api.manifest import Manifest, ManifestFile, StageExit
from moe_operator.staging.failure import StageError

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
CHECKSUM_LISTS = ("moe-manifest.json", "SHA256SUMS")
EXTENSIONS = frozenset({".safetensors", ".json", ".txt", ".model", ".tiktoken", ".jinja"})
CODE = ".py"
NAME_MAX = 255

# What a directory behind plain HTTP may hold besides config, index and shards; it cannot be listed.
USUAL_FILES = (
    "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "tiktoken.model",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja",
    "chat_template.json", "preprocessor_config.json", "processor_config.json",
    "video_preprocessor_config.json", "hf_quant_config.json",
)  # fmt: skip


def taken(path: str, *, trust_remote_code: bool) -> bool:
    """Whether a file of this name is part of a model, shards aside."""
    pure = PurePosixPath(path)
    if path in CHECKSUM_LISTS or any(part.startswith(".") and part != ".." for part in pure.parts):
        return False  # a path with ".." is no hidden file: it is refused by checked_path
    return pure.suffix in EXTENSIONS or (trust_remote_code and pure.suffix == CODE)


def model_files(
    paths: Iterable[str], shards: Collection[str] | None, *, trust_remote_code: bool
) -> list[str]:
    """The sorted paths of a model; ``shards`` is what the index names, None without an index."""
    return sorted(
        path
        for path in paths
        if taken(path, trust_remote_code=trust_remote_code)
        and (not path.endswith(".safetensors") or _is_weight(path, shards))
    )


def _is_weight(path: str, shards: Collection[str] | None) -> bool:
    return "/" not in path if shards is None else path in shards


def checked_path(path: str) -> str:
    """``path`` if it stays below a directory in plain form; BAD_MANIFEST otherwise."""
    try:
        ManifestFile(path=path, size=0, sha256="0" * 64)
    except ValueError as fault:
        raise _unsafe(path, "it leaves the model directory or is not in plain form") from fault
    parts = PurePosixPath(path).parts
    if any(part.startswith(".") for part in parts):
        raise _unsafe(path, "hidden files are not part of a model")
    if any(len(part.encode()) > NAME_MAX for part in parts):
        raise _unsafe(path, f"a name is longer than {NAME_MAX} bytes")
    return path


def check_manifest(manifest: Manifest) -> None:
    """Refuse a manifest whose files cannot or must not be laid out as a view."""
    if not manifest.files:
        raise StageError(StageExit.BAD_MANIFEST, "the manifest names no file")
    paths = {checked_path(file.path) for file in manifest.files}
    lengths: dict[str, int] = {}
    for file in manifest.files:
        if lengths.setdefault(file.sha256, file.size) != file.size:
            raise _unsafe(file.path, "its digest is listed with two lengths")
    for path in sorted(paths):
        if not taken(path, trust_remote_code=True):
            raise _unsafe(path, "files of this kind are not part of a model")
        above = next((str(p) for p in PurePosixPath(path).parents if str(p) in paths), None)
        if above is not None:
            raise _unsafe(path, f"{above!r} is listed as a file")


def _unsafe(path: str, why: str) -> StageError:
    return StageError(
        StageExit.BAD_MANIFEST,
        f"path {path[:200]!r} is refused: {why}",
        file=path[:200],
        hint="a model's files are plain relative paths ending in " + ", ".join(sorted(EXTENSIONS)),
    )
