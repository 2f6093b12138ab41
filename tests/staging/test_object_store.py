"""``s3://``, ``gs://``, ``az://``: signed, listed and read under the same rules as everything else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from moe_operator.api.manifest import Manifest, StageExit
from moe_operator.staging.azure_sas import signature
from moe_operator.staging.sigv4 import AccessKey, presigned
from moe_operator.staging.store import Store

from tests.staging.fault_server import fault_server
from tests.staging.model import make_model
from tests.staging.object_store_double import ACCOUNT_KEY, KEY, REGION, Double, object_store_double
from tests.staging.runs import assert_published, failure, pull, resolve, source
from tests.staging.runs import link as links
from tests.staging.stager import Stager

MODEL = make_model()
SHARD = MODEL.shards[0]
PREFIX = "models/tiny k3+ü/"


def test_a_signature_is_the_one_amazon_documents() -> None:
    """The worked example of AWS's page on query-string authentication."""
    url = presigned(
        "https://examplebucket.s3.amazonaws.com/test.txt",
        AccessKey("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
        "us-east-1",
        datetime(2013, 5, 24),
        86400,
    )

    assert parse_qs(urlsplit(url).query)["X-Amz-Signature"] == [
        "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
    ]


def test_a_shared_access_signature_is_the_one_another_implementation_makes() -> None:
    """Signed by obstore 0.12.1 for the same key, blob and time."""
    fields = {
        "sp": "r", "se": "2026-11-30T09:18:35Z", "st": "2026-11-30T08:18:35Z", "sv": "2023-11-03", "sr": "b",
    }  # fmt: skip

    made = signature(fields, "/blob/acct/cont/d/x.safetensors", "a2V5a2V5a2V5a2V5a2V5a2V5a2V5a2U=")

    assert made == "suqcNVy2ncscKLDyWk8JiCADS0meliu7s0O/dS+/NvE="


@pytest.fixture
def s3() -> Iterator[Double]:
    with object_store_double() as double:
        double.objects = {f"bucket/{PREFIX}{path}": data for path, data in MODEL.files.items()}
        double.objects |= {
            f"bucket/{PREFIX}SHA256SUMS": MODEL.sums(),
            f"bucket/{PREFIX}weights.bin": b"a pickle",
            f"bucket/{PREFIX}.git/config.json": b"{}",
            "bucket/models/other/config.json": b"{}",
        }
        yield double


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    directory = tmp_path / "keys"
    directory.mkdir()
    (directory / "AWS_ACCESS_KEY_ID").write_text(KEY.key_id)
    (directory / "AWS_SECRET_ACCESS_KEY").write_text(KEY.secret + "\n")
    (directory / "AWS_SESSION_TOKEN").write_text(KEY.session_token)
    return directory


def s3_url(double: Double) -> str:
    return f"s3://bucket/{PREFIX}?endpoint={double.url}&region={REGION}"


def resolved(double: Double, keys: Path | None, url: str = "") -> Manifest:
    return resolve(url or s3_url(double), allow=[double.address], credentials=keys)


def fetch(manifest: Manifest, double: Double, keys: Path | None, store: Store, url: str) -> Path:
    shared = links()
    opener = lambda: source(url, shared, allow=[double.address], credentials=keys)  # noqa: E731
    return pull(manifest, store, shared=shared, opener=opener)


def test_a_bucket_is_listed_page_by_page_and_read_with_signed_urls(
    s3: Double, keys: Path, store: Store
) -> None:
    manifest = resolved(s3, keys)
    view = fetch(manifest, s3, keys, store, s3_url(s3))

    assert manifest.files == MODEL.manifest_files()
    assert (manifest.checksum_provenance, manifest.source) == (
        "publisher",
        f"s3://bucket/{PREFIX}".rstrip("/"),
    )
    assert_published(view, MODEL)
    assert len([asked for asked in s3.asked if "list-type" in asked.query]) > 2
    assert all("Authorization" not in asked.headers for asked in s3.asked)


def test_an_etag_is_no_checksum(s3: Double, keys: Path) -> None:
    del s3.objects[f"bucket/{PREFIX}SHA256SUMS"]

    manifest = resolved(s3, keys)

    assert manifest.files == MODEL.manifest_files()
    assert manifest.checksum_provenance == "computed"


@pytest.mark.parametrize(
    ("kind", "suffix", "provenance"),
    [("FULL_OBJECT", "", "publisher"), ("COMPOSITE", "", "computed"), ("COMPOSITE", "-7", "computed")],
)
def test_the_stores_own_sha256_counts_when_it_is_of_the_whole_object(
    kind: str, suffix: str, provenance: str, s3: Double, keys: Path
) -> None:
    del s3.objects[f"bucket/{PREFIX}SHA256SUMS"]
    for path in MODEL.shards:
        digest = base64.b64encode(hashlib.sha256(MODEL.files[path]).digest()).decode()
        s3.checksums[f"bucket/{PREFIX}{path}"] = (digest + suffix, kind)

    assert resolved(s3, keys).checksum_provenance == provenance


def test_a_wrong_checksum_in_the_store_is_not_believed_over_the_bytes(
    s3: Double, keys: Path, store: Store
) -> None:
    del s3.objects[f"bucket/{PREFIX}SHA256SUMS"]
    for path in MODEL.shards:
        s3.checksums[f"bucket/{PREFIX}{path}"] = (base64.b64encode(b"?" * 32).decode(), "FULL_OBJECT")
    manifest = resolved(s3, keys)

    fell = failure(lambda: fetch(manifest, s3, keys, store, s3_url(s3)))

    assert fell.exit is StageExit.CHECKSUM_MISMATCH


def test_wrong_keys_are_an_auth_failure_that_shows_neither_keys_nor_signature(s3: Double, keys: Path) -> None:
    (keys / "AWS_SECRET_ACCESS_KEY").write_text("wrong")

    fell = failure(lambda: resolved(s3, keys))

    assert fell.exit is StageExit.AUTH
    for secret in (KEY.key_id, KEY.session_token, "X-Amz", "wrong"):
        assert secret not in fell.message


def test_a_public_bucket_needs_no_keys(s3: Double) -> None:
    s3.public = True

    manifest = resolved(s3, None)

    assert manifest.files == MODEL.manifest_files()
    assert all("X-Amz-Signature" not in asked.query for asked in s3.asked)


def test_a_secret_without_the_keys_is_named_before_anything_is_asked(s3: Double, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("x")

    fell = failure(lambda: resolved(s3, tmp_path))

    assert (fell.exit, "AWS_ACCESS_KEY_ID" in fell.expected) == (StageExit.AUTH, True)
    assert s3.asked == []


def test_a_redirect_elsewhere_carries_nothing_of_ours(s3: Double, keys: Path) -> None:
    with fault_server("127.74.3.9") as elsewhere:
        s3.redirect = f"{elsewhere.url}/config.json"
        elsewhere.files["config.json"] = b"{}"
        stream = source(s3_url(s3), links(), allow=[s3.address, elsewhere.address], credentials=keys).open(
            "config.json"
        )
        stream.close()

    assert [(r.path, r.authorization) for r in elsewhere.requests] == [("config.json", "")]


def test_a_redirect_to_an_inner_address_is_refused_for_listings_too(s3: Double, keys: Path) -> None:
    s3.redirect = "http://169.254.169.254/latest/meta-data/"

    fell = failure(lambda: source(s3_url(s3), links(), allow=[s3.address], credentials=keys).list())

    assert fell.exit is StageExit.BAD_MANIFEST


def test_an_endpoint_on_an_inner_address_is_refused(keys: Path) -> None:
    for endpoint in ("https://169.254.169.254", "https://127.0.0.1:9000", "http://minio.example"):
        url = f"s3://bucket/m?endpoint={endpoint}"
        fell = failure(lambda url=url: source(url, links(), allow=[], credentials=keys).list())  # type: ignore[misc]
        assert fell.exit is StageExit.BAD_MANIFEST, endpoint


def test_google_takes_hmac_keys_or_a_token(s3: Double, keys: Path, tmp_path: Path) -> None:
    url = f"gs://bucket/{PREFIX}?endpoint={s3.url}"
    (tmp_path / "token").write_text("ya29.token")
    s3.public = True

    signed = resolved(s3, keys, url)
    by_key = list(s3.asked)
    s3.asked.clear()
    resolved(s3, tmp_path, url)

    assert signed.files == MODEL.manifest_files()
    assert {a.query["X-Amz-Credential"].split("/")[2] for a in by_key} == {"auto"}
    assert {asked.headers["Authorization"] for asked in s3.asked} == {"Bearer ya29.token"}


@pytest.mark.parametrize("how", ["key", "sas"])
def test_azure_takes_an_account_key_or_a_sas(how: str, store: Store, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    with object_store_double("azure", "127.74.3.2") as azure:
        azure.objects = {f"box/m/{path}": data for path, data in MODEL.files.items()}
        azure.objects["box/m/SHA256SUMS"] = MODEL.sums()
        if how == "key":
            (secret / "accountKey").write_text(ACCOUNT_KEY)
        else:
            azure.public = True
            (secret / "sasToken").write_text("?sv=2022&sig=abc%3D")
        url = f"az://acct/box/m?endpoint={azure.url}"

        manifest = resolved(azure, secret, url)
        view = fetch(manifest, azure, secret, store, url)

        assert manifest.files == MODEL.manifest_files()
        assert_published(view, MODEL)
        assert how == "key" or {asked.query["sig"] for asked in azure.asked} == {"abc="}


def test_a_cut_object_goes_on_where_it_stopped_under_a_new_signature(
    stager: Stager, s3: Double, keys: Path, store: Store, tmp_path: Path
) -> None:
    manifest = resolved(s3, keys)
    (tmp_path / "manifest.json").write_text(manifest.model_dump_json(by_alias=True))
    store.lay_out()
    half = len(MODEL.files[SHARD]) // 2
    digest = hashlib.sha256(MODEL.files[SHARD]).hexdigest()
    store.part(digest).write_bytes(MODEL.files[SHARD][:half])
    etag = f'\\"{hashlib.md5(MODEL.files[SHARD]).hexdigest()}-7\\"'
    size = len(MODEL.files[SHARD])
    store.journal(digest).write_text(f'{{"etag": "{etag}", "size": {size}, "durableUpTo": {half}}}\n')

    ended = stager.run(
        "pull", "--manifest", tmp_path / "manifest.json", "--source", s3_url(s3), "--store", store.root,
        "--credentials-dir", keys, "--allow-http-host", s3.address, "--reserve-bytes", 0,
    )  # fmt: skip

    assert ended.code == 0, ended.err
    assert [asked.start for asked in s3.asked if asked.path.endswith(SHARD)][-1] == half


@pytest.mark.parametrize(
    "url",
    ["s3://", "s3://b/p?acl=1", "az://account", "az://account/", "gs:///x", "s3://u:p@b/x", "s3://b/x#y"],
)
def test_an_address_that_names_nothing_is_refused(url: str) -> None:
    assert failure(lambda: source(url, links())).exit is StageExit.BAD_MANIFEST


@pytest.mark.parametrize(
    "answer", [b"<html>", b"not xml", b"<ListBucketResult><Contents/></ListBucketResult>"]
)
def test_what_does_not_answer_as_an_object_store_is_said_so(answer: bytes) -> None:
    with fault_server("127.74.3.3") as web:
        web.files["bucket/"] = answer
        url = f"s3://bucket/m?endpoint={web.url}"
        fell = failure(lambda: source(url, links(), allow=[web.address]).list())

    assert (fell.exit, "object store" in fell.message) == (StageExit.BAD_MANIFEST, True)
