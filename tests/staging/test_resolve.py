"""From a source to a manifest, and what is said when the source is not a model."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from moe_operator.api.manifest import Manifest, StageExit, WeightSummary, view_digest

from tests.staging.fault_server import Fault, FaultServer
from tests.staging.model import CONFIG, Model, make_model, safetensors, sha256
from tests.staging.runs import failure, link, resolve

MODEL = make_model()
INDEX = "model.safetensors.index.json"
SUMMARY = WeightSummary(tensors=6, total_bytes=240_000, shards=3)


def expected(source: str, provenance: str) -> Manifest:
    files = MODEL.manifest_files()
    return Manifest(
        source=source,
        resolved=f"sha256:{view_digest(files)}",
        checksum_provenance=provenance,  # type: ignore[arg-type]
        files=files,
        config=CONFIG,
        weights=SUMMARY,
    )


@pytest.mark.parametrize("listed", ["moe-manifest.json", "SHA256SUMS", ""])
def test_a_directory_is_resolved(listed: str, tmp_path: Path) -> None:
    MODEL.write(tmp_path)
    if listed:
        (tmp_path / listed).write_bytes(MODEL.publisher_list() if listed.endswith("json") else MODEL.sums())

    manifest = resolve(tmp_path.as_uri())

    assert manifest == expected(tmp_path.as_uri(), "publisher" if listed else "computed")


@pytest.mark.parametrize("listed", ["moe-manifest.json", "SHA256SUMS", ""])
def test_a_web_directory_is_resolved(listed: str, server: FaultServer) -> None:
    server.files = {f"models/m/{path}": data for path, data in MODEL.files.items()}
    if listed:
        server.files[f"models/m/{listed}"] = (
            MODEL.publisher_list() if listed.endswith("json") else MODEL.sums()
        )
    url = f"{server.url}/models/m/"

    manifest = resolve(url)

    assert manifest == expected(url.rstrip("/"), "publisher" if listed else "computed")


def test_published_checksums_spare_reading_the_weights(server: FaultServer) -> None:
    server.files = MODEL.files | {"SHA256SUMS": MODEL.sums()}
    shared = link()

    resolve(server.url, shared=shared)

    assert shared.progress.snapshot().bytes_total == 0


def test_without_checksums_hashing_survives_a_cut(server: FaultServer) -> None:
    server.files = dict(MODEL.files)
    shard = MODEL.shards[0]
    server.faults[shard].extend([Fault(cut_after=0), Fault(cut_after=30_000), Fault(cut_after=30_000)])

    assert resolve(server.url) == expected(server.url, "computed")


def test_without_an_index_the_headers_are_summed_up(tmp_path: Path) -> None:
    single = Model(
        {
            "config.json": json.dumps(CONFIG).encode(),
            "model.safetensors": safetensors({"a": b"x" * 100, "b": b"y" * 20}),
            "original/model.safetensors": safetensors({"c": b"z"}),
        }
    )

    manifest = resolve(single.write(tmp_path).as_uri())

    assert manifest.weights == WeightSummary(tensors=2, total_bytes=120, shards=1)
    assert [file.path for file in manifest.files] == ["config.json", "model.safetensors"]


def test_only_a_models_files_are_taken(tmp_path: Path) -> None:
    extra = {
        "README.md": b"#", "modeling.py": b"import os", "pytorch_model.bin": b"\x80", ".git/config": b"",
        "consolidated.safetensors": safetensors({"a": b"1"}), "tiktoken.model": b"t", "sub/vocab.txt": b"v",
    }  # fmt: skip
    directory = Model(MODEL.files | extra).write(tmp_path).as_uri()

    plain = {file.path for file in resolve(directory).files}
    trusting = {file.path for file in resolve(directory, trust_remote_code=True).files}

    assert plain == set(MODEL.files) | {"tiktoken.model", "sub/vocab.txt"}
    assert trusting - plain == {"modeling.py"}


def test_a_restarted_resolver_hashes_only_what_changed(tmp_path: Path) -> None:
    directory = MODEL.write(tmp_path / "m")
    cache = tmp_path / "hashes"
    resolve(directory.as_uri(), hash_cache=cache)
    with cache.open("a") as file:
        file.write('["torn')
    changed = directory / MODEL.shards[1]
    changed.write_bytes(safetensors({"layers.2.a.weight": b"q" * 80_000}))
    os.utime(changed, ns=(1, 1))
    shared = link()

    manifest = resolve(directory.as_uri(), shared=shared, hash_cache=cache)

    progress = shared.progress.snapshot()
    assert progress.bytes_total - progress.bytes_reused == changed.stat().st_size
    assert {f.path: f.sha256 for f in manifest.files}[MODEL.shards[1]] == sha256(changed.read_bytes())


def _replace(path: str, data: bytes) -> Callable[[Path], object]:
    return lambda root: (root / path).write_bytes(data)


def _cut(path: str, count: int) -> Callable[[Path], object]:
    return lambda root: (root / path).write_bytes((root / path).read_bytes()[:count])


def _symlink(path: str) -> Callable[[Path], object]:
    def make(root: Path) -> None:
        (root / path).rename(root / "elsewhere")
        (root / path).symlink_to(root / "elsewhere")

    return make


def _symlinked_directory(root: Path) -> None:
    (root / "sub").symlink_to("/etc")


def _fifo(root: Path) -> None:
    (root / "config.json").unlink()
    os.mkfifo(root / "config.json")


def _published(text: str, name: str = "SHA256SUMS") -> Callable[[Path], object]:
    return _replace(name, text.encode())


def _no_weights(root: Path) -> None:
    for path in [*MODEL.shards, INDEX]:
        (root / path).unlink()


SHARD = MODEL.shards[0]
SIZE = len(MODEL.files[SHARD])
ZEROS = "0" * 64
BAD_SOURCES: dict[str, tuple[Callable[[Path], object], StageExit, str]] = {
    "no config": (lambda root: (root / "config.json").unlink(), StageExit.NOT_FOUND, "config.json"),
    "config cut": (_cut("config.json", 20), StageExit.BAD_MANIFEST, "config.json"),
    "config empty": (_replace("config.json", b""), StageExit.BAD_MANIFEST, "config.json"),
    "config no object": (_replace("config.json", b"[1]"), StageExit.BAD_MANIFEST, "config.json"),
    "config binary": (_replace("config.json", b"\xff\xfe\x00"), StageExit.BAD_MANIFEST, "config.json"),
    "config nested": (_replace("config.json", b"[" * 100_000), StageExit.BAD_MANIFEST, "config.json"),
    "config huge": (_replace("config.json", b" " * (600 << 10)), StageExit.BAD_MANIFEST, "config.json"),
    "config symlink": (_symlink("config.json"), StageExit.BAD_MANIFEST, "config.json"),
    "config fifo": (_fifo, StageExit.BAD_MANIFEST, "config.json"),
    "index cut": (_cut(INDEX, 50), StageExit.BAD_MANIFEST, INDEX),
    "index is an error page": (_replace(INDEX, b"<html>"), StageExit.BAD_MANIFEST, INDEX),
    "index without map": (_replace(INDEX, b"{}"), StageExit.BAD_MANIFEST, INDEX),
    "index maps to numbers": (_replace(INDEX, b'{"weight_map": {"a": 1}}'), StageExit.BAD_MANIFEST, INDEX),
    "index leaves": (
        _replace(INDEX, b'{"weight_map": {"a": "../x.safetensors"}}'),
        StageExit.BAD_MANIFEST,
        "../x.safetensors",
    ),
    "shard missing": (lambda root: (root / SHARD).unlink(), StageExit.NOT_FOUND, SHARD),
    "shard shorter than its header says": (_cut(SHARD, SIZE - 1), StageExit.BAD_MANIFEST, SHARD),
    "shard cut inside its header": (_cut(SHARD, 30), StageExit.BAD_MANIFEST, SHARD),
    "shard of 3 bytes": (_cut(SHARD, 3), StageExit.BAD_MANIFEST, SHARD),
    "shard longer than its header says": (
        _replace(SHARD, MODEL.files[SHARD] + b"!"),
        StageExit.BAD_MANIFEST,
        SHARD,
    ),
    "shard symlink": (_symlink(SHARD), StageExit.BAD_MANIFEST, SHARD),
    "directory symlink": (_symlinked_directory, StageExit.BAD_MANIFEST, "sub"),
    "no weights": (_no_weights, StageExit.BAD_MANIFEST, ""),
    "sums unreadable": (_published("hello"), StageExit.BAD_MANIFEST, "SHA256SUMS"),
    "sums twice": (
        _published(f"{ZEROS}  config.json\n{ZEROS} *config.json\n"),
        StageExit.BAD_MANIFEST,
        "SHA256SUMS",
    ),
    "sums leave": (_published(f"{ZEROS}  ../../etc/passwd\n"), StageExit.BAD_MANIFEST, "../../etc/passwd"),
    "sums absolute": (_published(f"{ZEROS}  /etc/passwd\n"), StageExit.BAD_MANIFEST, "/etc/passwd"),
    "sums wrong": (_published(f"{ZEROS}  config.json\n"), StageExit.CHECKSUM_MISMATCH, "config.json"),
    "list no JSON": (_published("{", "moe-manifest.json"), StageExit.BAD_MANIFEST, "moe-manifest.json"),
    "list states another length": (
        _published(
            json.dumps({"files": [{"path": SHARD, "size": SIZE + 5, "sha256": ZEROS}]}), "moe-manifest.json"
        ),
        StageExit.CHECKSUM_MISMATCH,
        SHARD,
    ),
}


@pytest.mark.parametrize(("spoil", "code", "file"), BAD_SOURCES.values(), ids=BAD_SOURCES)
def test_a_bad_source_is_named(
    spoil: Callable[[Path], object], code: StageExit, file: str, tmp_path: Path
) -> None:
    spoil(MODEL.write(tmp_path))

    fell = failure(lambda: resolve(tmp_path.as_uri()))

    assert (fell.exit, fell.file) == (code, file)


def test_a_missing_directory_is_not_found(tmp_path: Path) -> None:
    assert failure(lambda: resolve((tmp_path / "gone").as_uri())).exit is StageExit.NOT_FOUND


def test_a_file_named_by_the_list_must_be_on_the_web_server(server: FaultServer) -> None:
    server.files = MODEL.files | {"SHA256SUMS": MODEL.sums() + f"{ZEROS}  vocab.json\n".encode()}

    fell = failure(lambda: resolve(server.url))

    assert (fell.exit, fell.file) == (StageExit.NOT_FOUND, "vocab.json")


@pytest.mark.parametrize(
    ("status", "code"), [(401, StageExit.AUTH), (403, StageExit.AUTH), (404, StageExit.NOT_FOUND)]
)
def test_a_web_server_that_refuses_is_named(status: int, code: StageExit, server: FaultServer) -> None:
    for path in ("config.json", "moe-manifest.json", "SHA256SUMS"):
        server.faults[path].extend([Fault(status=status)] * 9)

    fell = failure(lambda: resolve(server.url))

    assert (fell.exit, fell.file) == (code, "config.json")


@pytest.mark.parametrize(
    "url",
    ["ftp://host/m", "m", "", "file://host/m", "file:relative", "hf://repo", "hf://a/b/c", "hf://a/../b",
     "hf://a/b@re v", "https://example.com/m?token=x"],
)  # fmt: skip
def test_a_source_nobody_understands_is_refused(url: str) -> None:
    fell = failure(lambda: resolve(url))

    assert fell.exit is StageExit.BAD_MANIFEST
