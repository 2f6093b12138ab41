"""``hf://`` against a hub that answers as huggingface.co does: API by revision, LFS files on another host."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from moe_operator.api.manifest import Manifest, StageExit, WeightSummary
from moe_operator.staging.store import Store

from tests.staging import runs
from tests.staging.fault_server import Fault, FaultServer, fault_server
from tests.staging.model import CONFIG, MODEL_REPO, make_model, sha256
from tests.staging.runs import assert_published, failure

MODEL = make_model()
COMMIT = "9f62e4e9" * 5
API = f"api/models/{MODEL_REPO}/revision/v1.0?blobs=true"


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def sibling(path: str, data: bytes) -> dict[str, Any]:
    facts = {"rfilename": path, "size": len(data), "blobId": git_sha1(data)}
    if path.endswith(".safetensors"):
        facts["lfs"] = {"sha256": sha256(data), "size": len(data), "pointerSize": 135}
    return facts


class Hub:
    """The API host and the host its LFS files are redirected to."""

    def __init__(self, api: FaultServer, cdn: FaultServer) -> None:
        self.api, self.cdn = api, cdn
        self.siblings = [sibling(path, data) for path, data in MODEL.files.items()]
        api.answers[API] = lambda: json.dumps({"sha": COMMIT, "siblings": self.siblings}).encode()
        for path, data in MODEL.files.items():
            at = f"{MODEL_REPO}/resolve/{COMMIT}/{path}"
            if path.endswith(".safetensors"):
                cdn.files[path] = data
                redirect = Fault(status=302, headers={"Location": f"{cdn.url}/{path}?X-Sig=abc"})
                api.faults[at].extend([redirect] * 5)
            else:
                api.files[at] = data

    def source(self, link: Any, revision: str = "v1.0", resolved: str = "", token: Path | None = None) -> Any:
        return runs.source(
            f"hf://{MODEL_REPO}@{revision}",
            link,
            allow=(self.api.address, self.cdn.address),
            hub=self.api.url,
            resolved=resolved,
            credentials=token,
        )

    def resolve(self, **options: Any) -> Manifest:
        link = runs.link()
        return runs.resolving.resolve(self.source(link, **options), link, runs.resolving.Options())


@pytest.fixture
def hub() -> Iterator[Hub]:
    with fault_server("127.40.0.3") as api, fault_server("127.40.0.4") as cdn:
        yield Hub(api, cdn)


def test_a_revision_becomes_a_commit_and_published_digests(hub: Hub) -> None:
    assert hub.resolve() == Manifest(
        source=f"hf://{MODEL_REPO}@v1.0",
        resolved=COMMIT,
        checksum_provenance="publisher",
        files=MODEL.manifest_files(),
        config=CONFIG,
        weights=WeightSummary(tensors=6, total_bytes=240_000, shards=3),
    )
    assert hub.cdn.requests == []


def test_a_pull_asks_by_commit_and_never_for_the_branch(hub: Hub, store: Store) -> None:
    manifest = hub.resolve()
    hub.api.requests.clear()
    link = runs.link()

    view = runs.pull(
        manifest, store, shared=link, opener=lambda: hub.source(link, resolved=manifest.resolved)
    )

    assert_published(view, MODEL)
    assert {request.path.split("/")[3] for request in hub.api.requests} == {COMMIT}


def test_the_token_reaches_the_hub_and_not_the_cdn(hub: Hub, store: Store, tmp_path: Path) -> None:
    (tmp_path / "HF_TOKEN").write_text("hf_secret")
    manifest = hub.resolve(token=tmp_path)
    link = runs.link()
    runs.pull(manifest, store, shared=link, opener=lambda: hub.source(link, resolved=COMMIT, token=tmp_path))

    assert {request.authorization for request in hub.api.requests} == {"Bearer hf_secret"}
    assert {request.authorization for request in hub.cdn.requests} == {""}


def test_a_small_file_that_is_not_its_git_blob_is_refused(hub: Hub) -> None:
    at = f"{MODEL_REPO}/resolve/{COMMIT}/tokenizer.json"
    hub.api.files[at] = b'{"v": 2}'

    fell = failure(hub.resolve)

    assert (fell.exit, fell.file) == (StageExit.CHECKSUM_MISMATCH, "tokenizer.json")
    assert fell.actual == git_sha1(b'{"v": 2}')


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (Fault(status=401, headers={"X-Error-Code": "GatedRepo"}), StageExit.AUTH),
        (Fault(status=404, headers={"X-Error-Code": "RevisionNotFound"}), StageExit.NOT_FOUND),
        (Fault(status=429, headers={"Retry-After": "0"}), StageExit.THROTTLED),
    ],
)
def test_a_hub_that_refuses_is_quoted(fault: Fault, code: StageExit, hub: Hub) -> None:
    hub.api.faults[API].extend([fault] * 9)

    fell = failure(hub.resolve)

    assert fell.exit is code
    assert str(fault.status) in fell.message
    assert fault.headers.get("X-Error-Code", "") in fell.message


def test_a_busy_hub_is_asked_again(hub: Hub) -> None:
    hub.api.faults[API].extend([Fault(status=503), Fault(cut_after=10)])

    assert hub.resolve().resolved == COMMIT


@pytest.mark.parametrize(
    "spoiled",
    [
        {"rfilename": "../x.json", "size": 1},
        {"rfilename": "x.json"},
        sibling("config.json", b"{}"),
        {"size": 3},
        "x.json",
        {"rfilename": "m.safetensors", "size": 1, "lfs": {"size": 1}},
    ],
)
def test_a_listing_with_unusable_files_is_refused(spoiled: Any, hub: Hub) -> None:
    hub.siblings.append(spoiled)

    assert failure(hub.resolve).exit is StageExit.BAD_MANIFEST


@pytest.mark.parametrize("body", [b"<html>captive portal</html>", b"{}", b'{"sha": "main", "siblings": []}'])
def test_something_that_is_no_hub_is_refused(body: bytes, hub: Hub) -> None:
    hub.api.answers[API] = lambda: body

    assert failure(hub.resolve).exit is StageExit.BAD_MANIFEST
