"""``s3://``, ``gs://`` and ``az://``: a prefix of a bucket.

The store only says where an object lies and signs the request; bytes come through the same transport as
everywhere, so host rules, resume and limits are the same. That is why no cloud library is used: the ones for
Python choose the address themselves, follow redirects with the session token, and ask the metadata service
when they find no keys.

An ETag only tells that an object changed. Digests come from the publisher's list, or from the store where it
keeps a SHA-256 of the whole object, else they are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol
from urllib.parse import parse_qsl, quote, urlsplit
from xml.etree import ElementTree

from moe_operator.api.manifest import SHARD_SUFFIX, StageExit
from moe_operator.staging.azure_sas import container_sas
from moe_operator.staging.credentials import TOKEN_KEYS, Credentials
from moe_operator.staging.failure import StageError
from moe_operator.staging.hosts import shown
from moe_operator.staging.selection import CHECKSUM_LISTS, checked_path, taken
from moe_operator.staging.sigv4 import AccessKey, presigned
from moe_operator.staging.sources import Entry, Listing
from moe_operator.staging.transport import HttpStream, Transport

PAGE_BYTES = 32 << 20
PAGES_MOST = 1000
GOOGLE = "https://storage.googleapis.com"
KEY_ID = ("AWS_ACCESS_KEY_ID", "accessKeyId", "access_key_id")
SECRET = ("AWS_SECRET_ACCESS_KEY", "secretAccessKey", "secret_access_key")
SESSION = ("AWS_SESSION_TOKEN", "sessionToken", "session_token")
AZURE_KEY = ("AZURE_STORAGE_KEY", "accountKey", "azurestorageaccountkey")
AZURE_SAS = ("AZURE_STORAGE_SAS_TOKEN", "sasToken")


@dataclass(frozen=True, slots=True)
class Page:
    """One answer to a listing: key -> bytes, and where the next page begins, "" at the end."""

    sizes: Mapping[str, int]
    marker: str


class Bucket(Protocol):
    """How one kind of store names and signs."""

    def object_url(self, key: str) -> str:
        """Where to GET an object."""
        ...

    def list_url(self, prefix: str, marker: str) -> str:
        """Where to GET a page of the listing."""
        ...

    def page(self, root: ElementTree.Element) -> Page:
        """What a listing's answer says."""
        ...

    def authorization(self) -> str:
        """The Authorization header, "" when the URL is signed or the bucket is public."""
        ...


@dataclass(frozen=True, slots=True)
class S3Bucket:
    """S3 and what speaks it. ``key`` None = a public bucket or a bearer token."""

    base: str  # URL of the bucket, without a slash at the end
    region: str
    key: AccessKey | None
    bearer: str = ""
    checksums: bool = True
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)

    def object_url(self, key: str) -> str:
        """Where to GET an object."""
        query = "?x-amz-checksum-mode=ENABLED" if self.checksums and self.key else ""
        return self._signed(f"{self.base}/{quote(key, safe='/-_.~')}{query}")

    def list_url(self, prefix: str, marker: str) -> str:
        """Where to GET a page of the listing."""
        query = f"list-type=2&prefix={quote(prefix, safe='')}"
        if marker:
            query += f"&continuation-token={quote(marker, safe='')}"
        return self._signed(f"{self.base}/?{query}")

    def page(self, root: ElementTree.Element) -> Page:
        """What a listing's answer says."""
        found = root.findall("{*}Contents")
        sizes = {_text(item, "Key"): int(_text(item, "Size")) for item in found}
        more = _text(root, "IsTruncated", "false") == "true"
        return Page(sizes, _text(root, "NextContinuationToken") if more else "")

    def authorization(self) -> str:
        """A bearer token, or nothing."""
        return f"Bearer {self.bearer}" if self.bearer else ""

    def _signed(self, url: str) -> str:
        return url if self.key is None else presigned(url, self.key, self.region, self.clock())


@dataclass(frozen=True, slots=True)
class AzureContainer:
    """Azure Blob Storage. ``key`` and ``sas`` "" = a public container."""

    base: str
    account: str
    container: str
    key: str = ""
    sas: str = ""
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)

    def object_url(self, key: str) -> str:
        """Where to GET an object."""
        signature = self._signature()
        return f"{self.base}/{quote(key, safe='/-_.~')}" + (f"?{signature}" if signature else "")

    def list_url(self, prefix: str, marker: str) -> str:
        """Where to GET a page of the listing."""
        query = f"restype=container&comp=list&prefix={quote(prefix, safe='')}"
        query += f"&marker={quote(marker, safe='')}" if marker else ""
        signature = self._signature()
        return f"{self.base}?{query}" + (f"&{signature}" if signature else "")

    def page(self, root: ElementTree.Element) -> Page:
        """What a listing's answer says."""
        found = root.findall("./Blobs/Blob")
        sizes = {_text(item, "Name"): int(_text(item, "./Properties/Content-Length")) for item in found}
        return Page(sizes, root.findtext("NextMarker") or "")

    def authorization(self) -> str:
        """A bearer token, or nothing."""
        return ""

    def _signature(self) -> str:
        if not self.key:
            return self.sas.removeprefix("?")
        tls = self.base.startswith("https://")
        return container_sas(self.account, self.container, self.key, self.clock(), tls=tls)


class ObjectStoreSource:
    """A prefix of a bucket."""

    checksum_lists = True

    def __init__(self, url: str, bucket: Bucket, prefix: str, transport: Transport) -> None:
        self.url = url
        self._bucket = bucket
        self._prefix = prefix
        self._transport = transport

    def list(self) -> Listing:
        """Every object below the prefix that matters, with the store's own SHA-256 of shards."""
        entries: dict[str, Entry] = {}
        for key, size in self._keys().items():
            path = key.removeprefix(self._prefix)
            if path in CHECKSUM_LISTS or taken(path, trust_remote_code=True):
                entries[path] = Entry(size=size)
        if not any(path in entries for path in CHECKSUM_LISTS):
            for path in [path for path in entries if path.endswith(SHARD_SUFFIX)]:
                entries[path] = replace(entries[path], sha256=self._stored_sha256(path))
        return Listing("", entries)

    def stat(self, path: str) -> Entry | None:
        """Length of one object."""
        try:
            with closing(self.open(path)) as stream:
                return Entry(size=stream.total)
        except StageError as fault:
            if fault.exit is StageExit.NOT_FOUND:
                return None
            raise

    def open(self, path: str, offset: int = 0) -> HttpStream:
        """GET one object."""
        try:
            return self._transport.open(
                self._bucket.object_url(self._prefix + checked_path(path)),
                offset=offset,
                authorization=self._bucket.authorization(),
            )
        except StageError as fault:
            fault.file = path
            raise

    def _stored_sha256(self, path: str) -> str | None:
        with closing(self.open(path)) as stream:
            return stream.sha256

    def _keys(self) -> dict[str, int]:
        keys: dict[str, int] = {}
        marker = ""
        for _page in range(PAGES_MOST):
            page = self._page(self._bucket.list_url(self._prefix, marker))
            keys.update(page.sizes)
            marker = page.marker
            if not marker:
                return keys
        raise StageError(StageExit.BAD_MANIFEST, f"{self.url} holds too many objects to be one model")

    def _page(self, url: str) -> Page:
        raw = self._transport.read(url, PAGE_BYTES, authorization=self._bucket.authorization())
        try:
            return self._bucket.page(ElementTree.fromstring(raw))
        except (ElementTree.ParseError, ValueError, LookupError) as fault:
            raise StageError(
                StageExit.BAD_MANIFEST,
                f"{shown(url)} does not answer as an object store: {fault}",
                hint="check the endpoint",
            ) from fault


def object_store(
    url: str, transport: Transport, credentials: Credentials, *, endpoint: str = ""
) -> ObjectStoreSource:
    """The source of an ``s3://``, ``gs://`` or ``az://`` URL.

    ``?endpoint=`` and ``?region=`` (or the Secret's ``AWS_ENDPOINT_URL`` and ``AWS_REGION``) name a store
    that is not the cloud's own; ``?addressing=virtual`` puts the bucket into its host name.
    """
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query))
    if unknown := sorted(set(given) - {"endpoint", "region", "addressing"}) or parts.fragment:
        raise _unusable(url, f"unknown parameter {unknown!r}")
    endpoint = given.get("endpoint") or credentials.value("AWS_ENDPOINT_URL", "endpoint") or endpoint
    path = parts.path.strip("/")
    plain = f"{parts.scheme}://{parts.netloc}/{path}".rstrip("/")
    bucket: Bucket
    if not parts.netloc or parts.username is not None:
        raise _unusable(url, "it names no bucket")
    match parts.scheme:
        case "s3":
            region = given.get("region") or credentials.value("AWS_REGION", "region") or "us-east-1"
            base = _s3_base(parts.netloc, endpoint, region, virtual=given.get("addressing") == "virtual")
            bucket = S3Bucket(base, region, _access_key(credentials))
        case "gs":
            key = _access_key(credentials, optional=True)
            token = "" if key else credentials.value(*TOKEN_KEYS)
            if credentials.directory is not None and not key and not token:
                raise credentials.unusable("an HMAC key (accessKeyId, secretAccessKey) or a file named token")
            base = f"{endpoint or GOOGLE}/{parts.netloc}"
            bucket = S3Bucket(base, "auto", key, token, checksums=False)
        case _:
            container, _, path = path.partition("/")
            if not container:
                raise _unusable(url, "it names no container")
            bucket = _azure(parts.netloc, container, endpoint, credentials)
    return ObjectStoreSource(plain, bucket, f"{path}/" if path else "", transport)


def _s3_base(bucket: str, endpoint: str, region: str, *, virtual: bool) -> str:
    if not endpoint:
        # A name with dots does not fit the cloud's certificate.
        host = f"s3.{region}.amazonaws.com"
        return f"https://{host}/{bucket}" if "." in bucket else f"https://{bucket}.{host}"
    parts = urlsplit(endpoint.rstrip("/"))
    if virtual:
        return f"{parts.scheme}://{bucket}.{parts.netloc}{parts.path}"
    return f"{parts.scheme}://{parts.netloc}{parts.path}/{bucket}"


def _access_key(credentials: Credentials, *, optional: bool = False) -> AccessKey | None:
    key_id, secret = credentials.value(*KEY_ID), credentials.value(*SECRET)
    if key_id and secret:
        return AccessKey(key_id, secret, credentials.value(*SESSION))
    if credentials.directory is None or optional:
        return None
    raise credentials.unusable("files named AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")


def _azure(account: str, container: str, endpoint: str, credentials: Credentials) -> AzureContainer:
    key, sas = credentials.value(*AZURE_KEY), credentials.value(*AZURE_SAS)
    if credentials.directory is not None and not key and not sas:
        raise credentials.unusable("a file named accountKey or sasToken")
    base = f"{endpoint.rstrip('/') or f'https://{account}.blob.core.windows.net'}/{container}"
    try:
        container_sas(account, container, key, datetime.now(UTC), tls=True)
    except ValueError as fault:
        raise StageError(StageExit.AUTH, f"accountKey cannot be used: {fault}") from fault
    return AzureContainer(base, account, container, key, sas)


def _text(item: ElementTree.Element, name: str, default: str | None = None) -> str:
    found = item.findtext(name if name.startswith("./") else f"{{*}}{name}", default)
    if found is None:
        raise LookupError(f"{name} is absent")
    return found


def _unusable(url: str, why: str) -> StageError:
    return StageError(
        StageExit.BAD_MANIFEST,
        f"source {shown(url)!r} is unusable: {why}",
        expected="s3://bucket/prefix, gs://bucket/prefix or az://account/container/prefix",
    )
