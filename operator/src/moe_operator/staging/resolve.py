"""From a source's name to an immutable manifest.

Order: list (or discover) the files → read config.json and the index → choose the model's files →
fill in the digests nobody published by reading the bytes (trust on first use) → compare lengths and
headers → manifest. Every check names the file, what was expected and what was found.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from moe_operator.api.manifest import (
    MAX_FILES,
    Manifest,
    ManifestFile,
    StageExit,
    WeightSummary,
    view_digest,
)
from moe_operator.staging.checksums import LIST_BYTES, first_error, parse_checksums
from moe_operator.staging.digest import DigestSink
from moe_operator.staging.failure import StageError
from moe_operator.staging.hash_cache import HashCache
from moe_operator.staging.selection import (
    CHECKSUM_LISTS,
    CONFIG,
    INDEX,
    SINGLE,
    USUAL_FILES,
    checked_path,
    model_files,
)
from moe_operator.staging.sources import Entry, Source
from moe_operator.staging.transfer import Link, patiently, transfer
from moe_operator.staging.weights import (
    LENGTH_BYTES,
    Header,
    Index,
    header_length,
    parse_header,
    parse_index,
    parse_object,
)
from moe_operator.staging.workers import for_each

CONFIG_BYTES = 512 << 10  # it travels inside a ConfigMap
INDEX_BYTES = 512 << 20
_UPLOAD_AGAIN = "the file was altered or only partly uploaded; upload it again or correct the checksum list"


@dataclass(frozen=True, slots=True)
class Options:
    """How to resolve."""

    trust_remote_code: bool = False
    threads: int = 2
    hash_cache: Path | None = None


@dataclass(frozen=True, slots=True)
class _Document:
    raw: bytes
    entry: Entry  # as read


def resolve(source: Source, link: Link, options: Options) -> Manifest:
    """Read the facts of a model. Raises StageError."""
    link.progress.enter("Pending", f"reading {source.url}")
    listing = patiently(source.url, source.list, link)
    published = _published(source, link, None if listing is None else listing.entries)
    config = _required(source, CONFIG, CONFIG_BYTES, link)
    index_document = _document(source, INDEX, INDEX_BYTES, link)
    index = None if index_document is None else parse_index(index_document.raw)
    found = (
        _discovered(source, link, published, index, options.threads) if listing is None else listing.entries
    )
    entries = {path: _merged(path, entry, published.get(path)) for path, entry in found.items()}
    paths = _chosen(entries, index, options)
    documents = {CONFIG: config} | ({} if index_document is None else {INDEX: index_document})
    files = _proved(source, link, options, {path: entries[path] for path in paths}, documents)
    computed = any(entries[path].sha256 is None for path in paths if path.endswith(".safetensors"))
    headers = _headers(source, link, files, options) if computed or index is None else {}
    return _manifest(
        source.url,
        resolved=listing.resolved if listing is not None else "",
        computed=computed,
        files=[_with_layers(file, index) for file in files],
        config=parse_object(config.raw, CONFIG),
        weights=_summary(files, index, headers),
    )


def _published(source: Source, link: Link, listed: Mapping[str, Entry] | None) -> dict[str, Entry]:
    if not source.checksum_lists:
        return {}
    for name in CHECKSUM_LISTS:
        if listed is not None and name not in listed:
            continue
        document = _document(source, name, LIST_BYTES, link)
        if document is not None:
            return parse_checksums(document.raw, name)
    return {}


def _required(source: Source, path: str, limit: int, link: Link) -> _Document:
    document = _document(source, path, limit, link)
    if document is None:
        # Ask once more for the source's own words: absent and forbidden differ.
        patiently(path, lambda: source.open(path).close(), link)
        raise StageError(StageExit.NOT_FOUND, f"{path} is not at {source.url}", file=path)
    return document


def _document(source: Source, path: str, limit: int, link: Link) -> _Document | None:
    """A small file as a whole, None when it is absent."""
    entry = patiently(path, lambda: source.stat(path), link)
    if entry is None:
        return None
    sink = DigestSink(keep=limit + 1, git_size=entry.size)
    transfer(source, path, entry.size, sink, link, enough=limit + 1)
    link.progress.drop(sink.position)  # documents are not part of what is being hashed
    if sink.position > limit:
        raise StageError(
            StageExit.BAD_MANIFEST,
            f"{path} is implausibly large",
            file=path,
            expected=f"at most {limit} bytes",
            actual=f"{sink.position} bytes or more",
        )
    return _Document(bytes(sink.kept), Entry(sink.position, sink.sha256, sink.git_sha1))


def _discovered(
    source: Source, link: Link, published: Mapping[str, Entry], index: Index | None, threads: int
) -> dict[str, Entry]:
    """The files of a place that cannot be listed: what the list and the index name, and the usual ones."""
    shards = sorted(index.shards) if index is not None else [SINGLE]
    found: dict[str, Entry] = {}

    def look(name: str) -> None:
        entry = patiently(name, lambda: source.stat(name), link)
        if entry is not None:
            found[name] = entry

    for_each(dict.fromkeys([CONFIG, INDEX, *shards, *published, *USUAL_FILES]), look, threads, link.stop)
    for name in published:
        if name not in found:
            raise _missing(name, "the checksum list")
    return found


def _merged(path: str, found: Entry, published: Entry | None) -> Entry:
    """What lies at the source, with the publisher's digest."""
    if published is None:
        return found
    if None not in (found.size, published.size) and found.size != published.size:
        raise StageError(
            StageExit.CHECKSUM_MISMATCH,
            f"{path} at the source is not as long as the checksum list says",
            file=path,
            expected=f"{published.size} bytes",
            actual=f"{found.size} bytes",
            hint=_UPLOAD_AGAIN,
        )
    return replace(found, sha256=published.sha256)


def _chosen(entries: Mapping[str, Entry], index: Index | None, options: Options) -> list[str]:
    shards = None if index is None else index.shards
    for shard in sorted(shards or ()):
        if shard not in entries:
            raise _missing(shard, INDEX)
    paths = model_files(entries, shards, trust_remote_code=options.trust_remote_code)
    if not any(path.endswith(".safetensors") for path in paths):
        raise StageError(
            StageExit.BAD_MANIFEST,
            "the source holds no .safetensors file",
            expected=f"{INDEX} with its shards, or {SINGLE}",
            hint="only safetensors checkpoints are served; convert the model or correct the source",
        )
    if len(paths) > MAX_FILES:
        raise StageError(
            StageExit.BAD_MANIFEST, f"the source holds {len(paths)} files", expected=f"≤ {MAX_FILES}"
        )
    return [checked_path(path) for path in paths]


def _missing(path: str, named_by: str) -> StageError:
    return StageError(
        StageExit.NOT_FOUND,
        f"{path} is named by {named_by} but is not at the source",
        file=path,
        expected="a file",
        actual="nothing",
        hint="the upload is incomplete, or the list belongs to another revision",
    )


def _proved(
    source: Source,
    link: Link,
    options: Options,
    entries: Mapping[str, Entry],
    documents: Mapping[str, _Document],
) -> list[ManifestFile]:
    """Every file with its length and digest; reads the bytes of those whose digest nobody published."""
    known = {path: document.entry for path, document in documents.items() if path in entries}
    for path, seen in known.items():
        _compare(path, entries[path], seen)
    known |= {p: e for p, e in entries.items() if p not in known and e.sha256 and e.size is not None}
    unknown = [path for path in entries if path not in known]
    link.progress.expect(sum(entries[path].size or 0 for path in unknown))
    link.progress.enter("Verifying", f"hashing {len(unknown)} files")
    cache = HashCache(options.hash_cache)

    def hash_one(path: str) -> None:
        known[path] = _hashed(source, path, entries[path], cache, link)

    largest_first = sorted(unknown, key=lambda path: -(entries[path].size or 0))
    for_each(largest_first, hash_one, options.threads, link.stop)
    return [_file(path, known[path]) for path in entries]


def _hashed(source: Source, path: str, entry: Entry, cache: HashCache, link: Link) -> Entry:
    if entry.size is not None and (sha256 := cache.get(path, entry.size, lambda: _tag(source, path, link))):
        link.progress.reuse(entry.size)
        return Entry(entry.size, sha256)
    sink = DigestSink(git_size=entry.size if entry.git_sha1 else None)
    transfer(source, path, entry.size, sink, link)
    seen = Entry(sink.position, sink.sha256, sink.git_sha1)
    _compare(path, entry, seen)
    cache.put(path, sink.position, sink.tag, sink.sha256)
    return seen


def _tag(source: Source, path: str, link: Link) -> str:
    with closing(patiently(path, lambda: source.open(path), link)) as stream:
        return stream.tag


def _compare(path: str, stated: Entry, seen: Entry) -> None:
    """What the publisher states against what was read."""
    for name in ("sha256", "git_sha1"):
        expected, actual = getattr(stated, name), getattr(seen, name)
        if expected is not None and actual is not None and expected != actual:
            raise StageError(
                StageExit.CHECKSUM_MISMATCH,
                f"{path} at the source does not match its publisher's {name}",
                file=path,
                expected=expected,
                actual=actual,
                hint=_UPLOAD_AGAIN,
            )


def _file(path: str, entry: Entry) -> ManifestFile:
    try:
        return ManifestFile(path=path, size=entry.size or 0, sha256=entry.sha256 or "")
    except ValidationError as fault:
        raise StageError(
            StageExit.BAD_MANIFEST,
            f"{path}: the source states unusable facts: {first_error(fault)}",
            file=path,
        ) from fault


def _headers(source: Source, link: Link, files: list[ManifestFile], options: Options) -> dict[str, Header]:
    """Read the shards' headers where no publisher vouches for the files or no index sums them up."""
    headers: dict[str, Header] = {}

    def read_one(file: ManifestFile) -> None:
        length = header_length(_head(source, file, LENGTH_BYTES, link), file.path)
        raw = _head(source, file, LENGTH_BYTES + length, link)[LENGTH_BYTES:]
        header = parse_header(raw, file.path) if len(raw) == length else None
        if header is None or header.file_bytes != file.size:
            raise StageError(
                StageExit.BAD_MANIFEST,
                f"{file.path} is not as long as its header says",
                file=file.path,
                expected=f"{LENGTH_BYTES + length if header is None else header.file_bytes} bytes",
                actual=f"{file.size} bytes",
                hint="the upload is incomplete; upload the file again",
            )
        headers[file.path] = header

    for_each((f for f in files if f.path.endswith(".safetensors")), read_one, options.threads, link.stop)
    return headers


def _head(source: Source, file: ManifestFile, count: int, link: Link) -> bytes:
    sink = DigestSink(keep=count)
    transfer(source, file.path, file.size, sink, link, enough=count)
    link.progress.drop(sink.position)
    return bytes(sink.kept)


def _summary(files: list[ManifestFile], index: Index | None, headers: Mapping[str, Header]) -> WeightSummary:
    if index is not None and index.total_bytes is not None:
        return WeightSummary(tensors=index.tensors, total_bytes=index.total_bytes, shards=len(index.shards))
    sizes = {file.path: file.size for file in files if file.path.endswith(".safetensors")}
    return WeightSummary(
        tensors=index.tensors if index is not None else sum(header.tensors for header in headers.values()),
        total_bytes=sum(
            headers[path].tensor_bytes if path in headers else size for path, size in sizes.items()
        ),
        shards=len(sizes),
    )


def _with_layers(file: ManifestFile, index: Index | None) -> ManifestFile:
    """With the decoder layers that a shard holds tensors of, as far as an index says."""
    held = index.layers.get(file.path) if index else None
    if held is None:
        return file
    numbers = sorted(layer for layer in held if layer is not None)
    span = (numbers[0], numbers[-1]) if numbers else None
    return file.model_copy(update={"layers": span, "outside": None in held})


def _manifest(
    url: str,
    *,
    resolved: str,
    computed: bool,
    files: list[ManifestFile],
    config: dict[str, Any],
    weights: WeightSummary,
) -> Manifest:
    return Manifest(
        source=url,
        resolved=resolved or f"sha256:{view_digest(files)}",
        checksum_provenance="computed" if computed else "publisher",
        files=sorted(files, key=lambda file: file.path),
        config=config,
        weights=weights,
    )
