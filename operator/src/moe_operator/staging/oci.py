"""``oci://registry/repository:tag`` or ``@sha256:digest``: a model whose files are raw layers of an image.

Each layer is one file: its digest is the publisher's SHA-256 and its path is the annotation of ModelPack (or
the title that ORAS writes). Layers that are archives are refused: they would have to be unpacked beside
themselves, at twice the disk, and their files have no digests.

A registry answers 401 and names where a token is to be had. The tenant's password goes there only when that
is the registry's own host, or one that the admin named.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from moe_operator.api.manifest import StageExit
from moe_operator.staging.credentials import Credentials
from moe_operator.staging.failure import StageError, Unauthorized
from moe_operator.staging.hosts import shown
from moe_operator.staging.sources import Entry, Listing
from moe_operator.staging.transport import HttpStream, Transport
from moe_operator.staging.weights import parse_object

DOCUMENT_BYTES = 8 << 20
PATH_ANNOTATIONS = ("org.cncf.model.filepath", "org.opencontainers.image.title")
ACCEPT = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
_ARCHIVE = re.compile(r"(\btar\b|\+gzip|\+zstd|\.gzip)")
_NAME = re.compile(r"[a-z0-9]+(?:[._/-]+[a-z0-9]+)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


class OciSource:
    """One manifest of one repository; ``resolved`` pins its digest."""

    checksum_lists = False

    def __init__(
        self,
        url: str,
        transport: Transport,
        credentials: Credentials,
        *,
        resolved: str = "",
    ) -> None:
        parts = urlsplit(url)
        self.url = url
        self._registry = parts.netloc
        self._repository, self._reference = _named(url, parts.path.lstrip("/"))
        self._reference = resolved if _DIGEST.fullmatch(resolved) else self._reference
        self._transport = transport
        self._credentials = credentials
        self._policy = transport.policy
        self._token = ""
        self._layers: dict[str, str] | None = None
        self._lock = threading.Lock()

    def list(self) -> Listing:
        """Read the manifest: every layer is a file."""
        raw = self._read(f"manifests/{self._reference}")
        digest = hashlib.sha256(raw).hexdigest()
        if (pinned := _DIGEST.fullmatch(self._reference)) and pinned[1] != digest:
            raise StageError(
                StageExit.CHECKSUM_MISMATCH,
                f"{self.url}: the registry's manifest is not the one asked for",
                expected=self._reference,
                actual=f"sha256:{digest}",
            )
        entries: dict[str, Entry] = {}
        layers: dict[str, str] = {}
        for layer in _layers(parse_object(raw, self.url), self.url):
            path, entry, name = layer
            if path in entries:
                raise StageError(StageExit.BAD_MANIFEST, f"{path} is two layers of {self.url}", file=path)
            entries[path], layers[path] = entry, name
        self._reference, self._layers = f"sha256:{digest}", layers
        return Listing(self._reference, entries)

    def stat(self, path: str) -> Entry | None:
        """One file's facts, from the manifest."""
        return self.list().entries.get(path)

    def open(self, path: str, offset: int = 0) -> HttpStream:
        """GET one layer."""
        with self._lock:
            if self._layers is None:
                self.list()
        assert self._layers is not None
        if path not in self._layers:
            raise StageError(StageExit.NOT_FOUND, f"{path} is no layer of {self.url}", file=path)
        try:
            return self._asked(f"blobs/{self._layers[path]}", offset, "*/*")
        except StageError as fault:
            fault.file = path
            raise

    def _asked(self, what: str, offset: int, accept: str) -> HttpStream:
        url = f"{self._base()}/v2/{self._repository}/{what}"
        try:
            return self._transport.open(url, offset=offset, authorization=self._token, accept=accept)
        except Unauthorized as refused:
            self._token = self._new_token(refused)
        return self._transport.open(url, offset=offset, authorization=self._token, accept=accept)

    def _read(self, what: str) -> bytes:
        url = f"{self._base()}/v2/{self._repository}/{what}"
        try:
            return self._transport.read(url, DOCUMENT_BYTES, authorization=self._token, accept=ACCEPT)
        except Unauthorized as refused:
            self._token = self._new_token(refused)
        return self._transport.read(url, DOCUMENT_BYTES, authorization=self._token, accept=ACCEPT)

    def _base(self) -> str:
        host, _, port = self._registry.partition(":")
        plain = self._policy.excepts(host, int(port) if port.isdigit() else 80)
        return f"{'http' if plain else 'https'}://{self._registry}"

    def _new_token(self, refused: Unauthorized) -> str:
        """Do what the registry's challenge asks for."""
        scheme, _, rest = refused.challenge.partition(" ")
        if scheme.lower() == "basic":
            return self._credentials.authorization()
        asked = dict(_CHALLENGE.findall(rest))
        if scheme.lower() != "bearer" or not asked.get("realm"):
            raise refused
        query = {name: asked[name] for name in ("service", "scope") if name in asked}
        query.setdefault("scope", f"repository:{self._repository}:pull")
        realm = asked["realm"]
        raw = self._transport.read(
            f"{realm}{'&' if '?' in realm else '?'}{urlencode(query)}",
            DOCUMENT_BYTES,
            authorization=self._for_realm(realm),
        )
        answer = parse_object(raw, shown(realm))
        token = answer.get("token") or answer.get("access_token")
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise StageError(StageExit.AUTH, f"{shown(realm)} gave no token")
        return f"Bearer {token}"

    def _for_realm(self, realm: str) -> str:
        if self._credentials.directory is None:
            return ""
        target = self._policy.target(realm)
        if target.host != self._registry.partition(":")[0] and not self._policy.names(target.host):
            raise StageError(
                StageExit.AUTH,
                f"{self._registry} wants the password to go to {target.host}",
                hint=f"the admin permits that with --allow-host {target.host}",
            )
        return self._credentials.authorization()


def _named(url: str, path: str) -> tuple[str, str]:
    repository, at, digest = path.partition("@")
    if not at:
        repository, _, tag = path.partition(":")
        reference = tag or "latest"
    else:
        repository, reference = repository.partition(":")[0], digest
    fits = _DIGEST.fullmatch(reference) if at else _TAG.fullmatch(reference)
    if not urlsplit(url).netloc or not _NAME.fullmatch(repository) or not fits or "?" in url or "#" in url:
        raise StageError(
            StageExit.BAD_MANIFEST,
            f"source {shown(url)!r} names no image",
            expected="oci://registry/repository:tag or oci://registry/repository@sha256:digest",
        )
    return quote(repository), reference


def _layers(manifest: Mapping[str, Any], url: str) -> list[tuple[str, Entry, str]]:
    found = []
    try:
        for layer in manifest["layers"]:
            kind, digest = str(layer["mediaType"]), str(layer["digest"])
            notes = layer.get("annotations") or {}
            path = next((str(notes[key]) for key in PATH_ANNOTATIONS if notes.get(key)), "")
            if _ARCHIVE.search(kind):
                raise StageError(
                    StageExit.LAYOUT_INCOMPATIBLE,
                    f"{url}: layer {path or digest} is an archive",
                    file=path,
                    expected="raw layers, one file each (application/vnd.cncf.model.weight.v1.raw)",
                    actual=kind,
                    hint="push the model with raw layers: modctl build --raw, or oras push of files",
                )
            match = _DIGEST.fullmatch(digest)
            if not path or match is None:
                raise ValueError(f"layer {digest} has no {PATH_ANNOTATIONS[0]}")
            found.append((path, Entry(size=int(layer["size"]), sha256=match[1]), digest))
    except (KeyError, TypeError, ValueError, AttributeError) as fault:
        raise StageError(
            StageExit.BAD_MANIFEST,
            f"{url} is no model image: {fault}"[:400],
            actual=json.dumps(manifest)[:200],
            hint="an index of several platforms, or an image that is no model? Name the model's own manifest",
        ) from fault
    return found
