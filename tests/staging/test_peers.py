"""Nodes that give each other what they have: what is saved, who is believed, and who is let in."""

from __future__ import annotations

import json
import signal
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from moe_operator.api.manifest import StageExit
from moe_operator.staging.serve import Catalogue
from moe_operator.staging.store import Store

from tests.staging.fault_server import Fault, FaultServer, fault_server
from tests.staging.model import Model, make_model, sha256
from tests.staging.nodes import TOKEN, Node, nodes
from tests.staging.runs import assert_published, failure, link, pull
from tests.staging.stager import Stager, until

MODEL = make_model()
SHARD = MODEL.shards[0]
DIGEST = sha256(MODEL.files[SHARD])


@pytest.fixture
def seed(stager: Stager, tmp_path: Path) -> Iterator[Node]:
    """A node that holds the whole model."""
    with nodes(stager, tmp_path, 1) as (node,):
        pull(MODEL.manifest(MODEL.write(tmp_path / "source").as_uri()), node.store)
        yield node


def ask(node: Node, path: str, *, token: str = TOKEN, span: str = "") -> tuple[int, bytes]:
    request = urllib.request.Request(node.url + path, headers={"Authorization": f"Bearer {token}"})
    if span:
        request.add_header("Range", span)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read()


def test_what_a_peer_has_is_not_asked_of_the_origin(seed: Node, server: FaultServer, store: Store) -> None:
    shared = link()

    view = pull(
        MODEL.manifest(server.url), store, peers=[seed.url], token_file=seed.token_file, shared=shared
    )

    assert_published(view, MODEL)
    assert server.requests == []
    progress = shared.progress.snapshot()
    assert (progress.bytes_from_peers, progress.bytes_done) == (MODEL.total, MODEL.total)


def test_what_no_peer_has_comes_from_the_origin(seed: Node, server: FaultServer, store: Store) -> None:
    green = Model(MODEL.files | {SHARD: make_model(seed=2).files[SHARD]})
    server.files = dict(green.files)

    view = pull(green.manifest(server.url), store, peers=[seed.url], token_file=seed.token_file)

    assert_published(view, green)
    assert [request.path for request in server.requests] == [SHARD]


@pytest.fixture
def liar() -> Iterator[FaultServer]:
    """A peer that says it has everything and misbehaves."""
    with fault_server("127.74.2.9") as running:
        catalogue = {"have": [sha256(data) for data in MODEL.files.values()], "coming": {}}
        running.files = {f"blobs/sha256/{sha256(data)}": data for data in MODEL.files.values()}
        running.files["blobs"] = json.dumps(catalogue).encode()
        yield running


BAD_PEERS = {
    "lies": Fault(flip_at=5000),
    "dies": Fault(cut_after=5000),
    "stalls": Fault(hold_after=5000),
    "has lost it": Fault(status=404),
    "does not know us": Fault(status=401),
    "is busy": Fault(status=503, headers={"Retry-After": "99"}),
    "redirects": Fault(status=302, headers={"Location": "http://127.40.0.1:1/x"}),
    "is longer": Fault(stated_length=99_999_999),
    "ignores ranges": Fault(ignore_range=True),
}


@pytest.mark.parametrize("fault", BAD_PEERS.values(), ids=BAD_PEERS)
def test_a_bad_peer_costs_one_try(
    fault: Fault, liar: FaultServer, server: FaultServer, store: Store, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(TOKEN)
    server.files = dict(MODEL.files)
    asked = f"blobs/sha256/{DIGEST}"
    liar.faults[asked].extend([fault] * 20)

    view = pull(MODEL.manifest(server.url), store, peers=[liar.url], token_file=tmp_path / "token")

    assert_published(view, MODEL)
    assert len(liar.requests_of(asked)) == 1
    from_origin = server.requests_of(SHARD)
    if fault.cut_after or fault.hold_after:
        assert [r.start for r in from_origin] == [5000], "what the peer gave is gone on with"
    elif not fault.ignore_range:
        assert [r.start for r in from_origin] == [0]


def test_a_liar_is_not_asked_again_and_the_origin_is_not_blamed(
    liar: FaultServer, server: FaultServer, store: Store, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(TOKEN)
    server.files = dict(MODEL.files)
    for data in MODEL.files.values():
        liar.faults[f"blobs/sha256/{sha256(data)}"].append(Fault(flip_at=0))

    view = pull(MODEL.manifest(server.url), store, peers=[liar.url], token_file=tmp_path / "token", threads=1)

    assert_published(view, MODEL)
    assert len([r for r in liar.requests if r.path != "blobs"]) == 1
    assert server.sent == MODEL.total


def test_a_dead_peer_costs_nothing_but_the_look(server: FaultServer, store: Store) -> None:
    server.files = dict(MODEL.files)
    with socket.socket() as taken:
        taken.bind(("127.74.2.8", 0))
        port = taken.getsockname()[1]

    view = pull(MODEL.manifest(server.url), store, peers=[f"http://127.74.2.8:{port}"])

    assert_published(view, MODEL)
    assert server.sent == MODEL.total


def test_what_a_peer_is_fetching_is_waited_for_while_it_moves(
    stager: Stager, server: FaultServer, store: Store, tmp_path: Path
) -> None:
    server.files = dict(MODEL.files)
    server.usual = Fault(piece=2000, pause=0.02)
    with nodes(stager, tmp_path, 1) as (other,):
        first = threading.Thread(target=pull, args=(MODEL.manifest(server.url), other.store))
        first.start()
        until(lambda: server.open_most == 4, "the other node fetches")
        view = pull(MODEL.manifest(server.url), store, peers=[other.url], token_file=other.token_file)
        first.join()

    assert_published(view, MODEL)
    assert server.sent <= 1.15 * MODEL.total


def test_a_peer_that_stands_still_is_not_waited_for(
    liar: FaultServer, server: FaultServer, store: Store, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(TOKEN)
    server.files = dict(MODEL.files)
    liar.files["blobs"] = json.dumps({"have": [], "coming": {DIGEST: 7}}).encode()

    view = pull(MODEL.manifest(server.url), store, peers=[liar.url], token_file=tmp_path / "token")

    assert_published(view, MODEL)
    assert server.sent == MODEL.total


def test_four_nodes_ask_a_slow_origin_for_about_one_copy(
    stager: Stager, server: FaultServer, tmp_path: Path
) -> None:
    model = make_model(shards=24, tensor_bytes=20_000)
    server.files = dict(model.files)
    server.usual = Fault(piece=4000, pause=0.01)
    manifest = model.manifest(server.url)
    views: dict[int, Path] = {}
    with nodes(stager, tmp_path, 4) as four:

        def stage(number: int) -> None:
            others = [node.url for node in four if node is not four[number]]
            store, token = four[number].store, four[number].token_file
            views[number] = pull(manifest, store, peers=others, token_file=token, threads=2)

        threads = [threading.Thread(target=stage, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert len(views) == 4
    for view in views.values():
        assert_published(view, model)
    assert server.sent <= 1.15 * model.total, f"{server.sent / model.total:.2f} copies"


def test_a_corrupt_blob_is_neither_named_nor_given(seed: Node) -> None:
    blob = seed.store.blob(DIGEST)
    blob.chmod(0o644)
    blob.write_bytes(b"!" + MODEL.files[SHARD][1:])

    assert ask(seed, f"/blobs/sha256/{DIGEST}")[0] == 404
    assert DIGEST not in json.loads(Catalogue(seed.store).json())["have"]


def test_the_server_gives_ranges_of_verified_blobs_and_nothing_else(seed: Node) -> None:
    data = MODEL.files[SHARD]
    blob = f"/blobs/sha256/{DIGEST}"

    assert ask(seed, blob) == (200, data)
    assert ask(seed, blob, span="bytes=70000-") == (206, data[70_000:])
    assert ask(seed, blob, span=f"bytes={len(data)}-")[0] == 416
    assert set(json.loads(ask(seed, "/blobs")[1])["have"]) == {sha256(d) for d in MODEL.files.values()}
    for path in (
        "/", "/STORE_ID", "/blobs/sha256/", "/blobs/sha256/../../STORE_ID", "/blobs/sha256/%2e%2e/STORE_ID",
        f"/blobs/sha256/{'0' * 64}", f"/blobs/sha256/{DIGEST}/", f"/partial/{DIGEST}.part",
    ):  # fmt: skip
        assert ask(seed, path)[0] == 404, path


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], TOKEN + "x"])
def test_who_does_not_know_the_token_gets_nothing(token: str, seed: Node) -> None:
    assert ask(seed, f"/blobs/sha256/{DIGEST}", token=token) == (401, b"")
    assert ask(seed, "/blobs", token=token) == (401, b"")
    assert ask(seed, "/healthz", token=token)[0] == 200


def test_a_rotated_token_is_picked_up(seed: Node) -> None:
    seed.token_file.write_text("another")

    assert ask(seed, "/blobs")[0] == 401
    assert ask(seed, "/blobs", token="another")[0] == 200


def test_beyond_its_connections_it_says_503_and_its_metrics_go_on(stager: Stager, tmp_path: Path) -> None:
    big = Model({"big.json": b"b" * (16 << 20)})
    digest = sha256(big.files["big.json"])
    with nodes(stager, tmp_path, 1, "--connections", 1) as (node,):
        pull(big.manifest(big.write(tmp_path / "big").as_uri()), node.store)
        host, port = node.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as slow:
            slow.sendall(
                b"GET /blobs/sha256/%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n"
                % (digest.encode(), TOKEN.encode())
            )
            assert slow.recv(9) == b"HTTP/1.1 "
            crowded = ask(node, "/blobs")[0]
            metrics = ask(node, "/metrics", token="")[1].decode()
        until(lambda: ask(node, "/blobs")[0] == 200, "the slot is free again")

    assert crowded == 503
    assert "moe_serve_bytes_total" in metrics


def test_the_server_ends_at_once_when_it_is_asked_to(seed: Node) -> None:
    assert seed.server.signal(signal.SIGTERM) in (0, 143)


def test_a_server_without_a_token_does_not_start(stager: Stager, store: Store, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()

    ended = stager.run(
        "serve", "--store", store.root, "--token-file", tmp_path / "empty", "--listen", "127.74.2.1:0"
    )

    assert ended.exit is StageExit.AUTH


@pytest.mark.parametrize("url", ["ftp://h:1", "http://h:1/path", "http://u:p@h:1", "h:1", "http://"])
def test_a_peer_that_is_no_address_is_refused(url: str, store: Store) -> None:
    assert (
        failure(lambda: pull(MODEL.manifest("file:///x"), store, peers=[url])).exit is StageExit.BAD_MANIFEST
    )
