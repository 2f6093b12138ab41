"""``oci://``: layers by digest, tokens where they belong, archives refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from moe_operator.api.manifest import Manifest, StageExit
from moe_operator.staging.store import Store

from tests.staging.fault_server import Fault, FaultServer, fault_server
from tests.staging.model import make_model, sha256
from tests.staging.runs import assert_published, failure, link, pull, source
from tests.staging.runs import resolve as run_resolve

MODEL = make_model()
RAW = "application/vnd.cncf.model.weight.v1.raw"
REPOSITORY = "team/tiny-k3"


def image(**changes: Any) -> dict[str, Any]:
    layers = [
        {
            "mediaType": RAW,
            "digest": f"sha256:{sha256(data)}",
            "size": len(data),
            "annotations": {"org.cncf.model.filepath": path},
        }
        for path, data in MODEL.files.items()
    ]
    return {"schemaVersion": 2, "layers": layers} | changes


@pytest.fixture
def registry() -> Iterator[FaultServer]:
    with fault_server("127.74.4.1") as running:
        running.files = {f"v2/{REPOSITORY}/blobs/sha256:{sha256(d)}": d for d in MODEL.files.values()}
        tag(running, image())
        yield running


def tag(registry: FaultServer, document: Any) -> str:
    raw = json.dumps(document).encode()
    registry.files[f"v2/{REPOSITORY}/manifests/v1"] = raw
    registry.files[f"v2/{REPOSITORY}/manifests/sha256:{sha256(raw)}"] = raw
    return sha256(raw)


def url_of(registry: FaultServer, reference: str = ":v1") -> str:
    return f"oci://{registry.address}/{REPOSITORY}{reference}"


def resolve(registry: FaultServer, reference: str = ":v1", **options: Any) -> Manifest:
    return run_resolve(url_of(registry, reference), allow=[registry.address], **options)


def test_a_tag_is_resolved_once_and_pulled_by_digest(registry: FaultServer, store: Store) -> None:
    digest = tag(registry, image())
    manifest = resolve(registry)
    tag(registry, {"layers": []})
    shared = link()

    view = pull(
        manifest,
        store,
        shared=shared,
        opener=lambda: source(url_of(registry), shared, allow=[registry.address], resolved=manifest.resolved),
    )

    assert manifest.resolved == f"sha256:{digest}"
    assert manifest.checksum_provenance == "publisher"
    assert manifest.files == MODEL.manifest_files()
    assert_published(view, MODEL)


def test_a_digest_is_proved(registry: FaultServer) -> None:
    digest = tag(registry, image())
    assert resolve(registry, f"@sha256:{digest}").resolved == f"sha256:{digest}"
    registry.files[f"v2/{REPOSITORY}/manifests/sha256:{digest}"] = b'{"layers": []}'

    fell = failure(lambda: resolve(registry, f"@sha256:{digest}"))

    assert (fell.exit, fell.expected) == (StageExit.CHECKSUM_MISMATCH, f"sha256:{digest}")


@pytest.mark.parametrize(
    "kind",
    [
        "application/vnd.cncf.model.weight.v1.tar", "application/vnd.oci.image.layer.v1.tar+gzip",
        "application/vnd.docker.image.rootfs.diff.tar.gzip", "application/vnd.cncf.model.weight.v1.tar+zstd",
    ],
)  # fmt: skip
def test_an_archive_is_refused_with_the_way_out(kind: str, registry: FaultServer) -> None:
    document = image()
    document["layers"][1]["mediaType"] = kind
    tag(registry, document)

    fell = failure(lambda: resolve(registry))

    assert (fell.exit, fell.actual) == (StageExit.LAYOUT_INCOMPATIBLE, kind)
    assert "raw layers" in fell.hint


BROKEN: dict[str, Any] = {
    "an index of platforms": {"manifests": []},
    "no annotation": {"layers": [{"mediaType": RAW, "digest": f"sha256:{'0' * 64}", "size": 1}]},
    "a digest of another kind": {
        "layers": [{"mediaType": RAW, "digest": "sha512:00", "size": 1, "annotations": {
            "org.cncf.model.filepath": "a.json"}}]
    },
    "twice the same path": {"layers": image()["layers"] + image()["layers"][:1]},
    "layers that are none": {"layers": ["x"]},
}  # fmt: skip


@pytest.mark.parametrize("document", BROKEN.values(), ids=BROKEN)
def test_what_is_no_model_image_is_said_so(document: Any, registry: FaultServer) -> None:
    tag(registry, document)

    assert failure(lambda: resolve(registry)).exit is StageExit.BAD_MANIFEST


def with_layer_at(path: str) -> dict[str, Any]:
    document = image()
    document["layers"].append(document["layers"][0] | {"annotations": {"org.cncf.model.filepath": path}})
    return document


@pytest.mark.parametrize("path", ["../escape.json", "/etc/config.json", "a//b.json"])
def test_a_path_that_leaves_the_model_is_refused(path: str, registry: FaultServer) -> None:
    tag(registry, with_layer_at(path))

    fell = failure(lambda: resolve(registry))

    assert (fell.exit, fell.file) == (StageExit.BAD_MANIFEST, path)


@pytest.mark.parametrize("path", [".hidden/config.json", "weights.bin", "model.pt"])
def test_a_layer_that_is_no_part_of_a_model_is_left_out(path: str, registry: FaultServer) -> None:
    tag(registry, with_layer_at(path))

    assert resolve(registry).files == MODEL.manifest_files()


def guard(registry: FaultServer, realm: str) -> None:
    """Every path of the registry asks for a token once."""
    challenge = f'Bearer realm="{realm}",service="registry",scope="repository:{REPOSITORY}:pull"'
    for path in list(registry.files):
        registry.faults[path].append(Fault(status=401, headers={"WWW-Authenticate": challenge}))


def test_a_token_is_fetched_from_the_registrys_own_host_with_the_password(
    registry: FaultServer, tmp_path: Path
) -> None:
    (tmp_path / "username").write_text("u")
    (tmp_path / "password").write_text("p")
    guard(registry, f"{registry.url}/token")
    asked = f"token?service=registry&scope=repository:{REPOSITORY}:pull"
    registry.answers[asked] = lambda: b'{"token": "t0k3n"}'

    manifest = resolve(registry, credentials=tmp_path)

    assert manifest.files == MODEL.manifest_files()
    sent = {request.path: request.authorization for request in registry.requests}
    assert sent[asked] == "Basic dTpw"
    assert sent[f"v2/{REPOSITORY}/manifests/v1"] == "Bearer t0k3n"


def test_the_password_does_not_go_to_another_host(registry: FaultServer, tmp_path: Path) -> None:
    (tmp_path / "username").write_text("u")
    (tmp_path / "password").write_text("p")
    guard(registry, "https://auth.example/token")

    fell = failure(lambda: resolve(registry, credentials=tmp_path))

    assert (fell.exit, fell.hint) == (
        StageExit.AUTH,
        "the admin permits that with --allow-host auth.example",
    )


def test_the_password_goes_to_a_host_that_the_admin_named(registry: FaultServer, tmp_path: Path) -> None:
    (tmp_path / "username").write_text("u")
    (tmp_path / "password").write_text("p")
    with fault_server("127.74.4.2") as elsewhere:
        guard(registry, f"{elsewhere.url}/token")
        asked = f"token?service=registry&scope=repository:{REPOSITORY}:pull"
        elsewhere.answers[asked] = lambda: b'{"access_token": "t0k3n"}'
        allow = [registry.address, elsewhere.address]

        manifest = run_resolve(url_of(registry), allow=allow, credentials=tmp_path)

    assert manifest.files == MODEL.manifest_files()
    assert {request.authorization for request in elsewhere.requests} == {"Basic dTpw"}


def test_no_credentials_and_no_challenge_is_an_auth_failure(registry: FaultServer) -> None:
    registry.faults[f"v2/{REPOSITORY}/manifests/v1"].append(Fault(status=401))

    assert failure(lambda: resolve(registry)).exit is StageExit.AUTH


def test_a_layer_is_redirected_without_the_token(registry: FaultServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("registry-token")
    path = MODEL.shards[0]
    blob = f"v2/{REPOSITORY}/blobs/sha256:{sha256(MODEL.files[path])}"
    with fault_server("127.74.4.3") as storage:
        storage.files["layer"] = MODEL.files[path]
        challenge = Fault(status=401, headers={"WWW-Authenticate": "Basic realm=x"})
        registry.faults[f"v2/{REPOSITORY}/manifests/v1"].append(challenge)
        registry.faults[blob].append(Fault(status=307, headers={"Location": f"{storage.url}/layer"}))
        allow = [registry.address, storage.address]
        with_layers = source(url_of(registry), link(), allow=allow, credentials=tmp_path)

        with_layers.open(path).close()

    assert registry.requests[-1].authorization == "Bearer registry-token"
    assert [request.authorization for request in storage.requests] == [""]


@pytest.mark.parametrize(
    "url",
    [
        "oci://",
        "oci://registry",
        "oci://r/UPPER:v1",
        "oci://r/a@sha256:12",
        "oci://r/a:v1?x=1",
        "oci://r/a:b:c",
    ],
)
def test_an_address_that_names_no_image_is_refused(url: str) -> None:
    assert failure(lambda: source(url, link())).exit is StageExit.BAD_MANIFEST
