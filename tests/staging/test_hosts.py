"""Whom the stager talks to, and what it tells them."""

from __future__ import annotations

from pathlib import Path

import pytest
from moe_operator.api.manifest import StageExit
from moe_operator.staging.failure import StageError, Transient
from moe_operator.staging.hosts import HostPolicy, forbidden
from moe_operator.staging.stop import Stop
from moe_operator.staging.transport import Transport

from tests.staging.fault_server import Fault, FaultServer, fault_server
from tests.staging.model import make_model
from tests.staging.runs import failure, link, pull, resolve, source

FORBIDDEN = [
    "127.0.0.1", "127.9.9.9", "::1", "169.254.169.254", "169.254.0.1", "fe80::1", "fe80::1%eth0", "0.0.0.0",
    "::", "224.0.0.1", "ff02::1", "100.100.100.200", "168.63.129.16", "fd00:ec2::254", "::ffff:127.0.0.1",
    "::ffff:169.254.169.254", "64:ff9b::7f00:1",
]  # fmt: skip
ALLOWED = ["10.1.2.3", "192.168.0.9", "8.8.8.8", "2606:4700::1111", "fd12::1"]
REFUSED_URLS = [
    "http://example.com/model",
    "ftp://example.com/model",
    "https:///model",
    "https://user:secret@example.com/model",
    "https://example.com:notaport/model",
    "gopher://example.com/",
]


@pytest.mark.parametrize("address", FORBIDDEN)
def test_inner_addresses_are_forbidden(address: str) -> None:
    assert forbidden(address) is not None


@pytest.mark.parametrize("address", ALLOWED)
def test_ordinary_and_private_addresses_are_not(address: str) -> None:
    assert forbidden(address) is None


@pytest.mark.parametrize("url", REFUSED_URLS)
def test_a_url_that_may_not_be_asked_is_refused(url: str) -> None:
    with pytest.raises(StageError) as fell:
        HostPolicy().target(url)

    assert fell.value.exit is StageExit.BAD_MANIFEST
    assert "secret" not in fell.value.message


@pytest.mark.parametrize("spelling", ["127.0.0.1", "localhost", "2130706433", "0x7f000001", "[::1]"])
def test_every_spelling_of_loopback_is_refused_over_tls(spelling: str) -> None:
    policy = HostPolicy()

    with pytest.raises(StageError) as fell:
        policy.addresses(policy.target(f"https://{spelling}:8443/"))

    # A spelling the resolver does not know is just as unreachable.
    assert fell.value.exit is StageExit.BAD_MANIFEST or isinstance(fell.value, Transient)


@pytest.mark.parametrize("named", ["mirror.local", "mirror.local:8080", "MIRROR.local"])
def test_a_named_host_may_be_asked_in_plain_text(named: str) -> None:
    target = HostPolicy.of((named,)).target("http://mirror.local:8080/m?sig=1")

    assert (target.host, target.port, target.path) == ("mirror.local", 8080, "/m?sig=1")
    assert "sig" not in str(target)


def test_naming_one_port_does_not_name_another() -> None:
    with pytest.raises(StageError):
        HostPolicy.of(("mirror.local:8080",)).target("http://mirror.local:8081/")


LISTED = ("huggingface.co", "*.example.com")


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("https://huggingface.co/x", True),
        ("https://HuggingFace.co:8443/x", True),
        ("https://cdn.example.com/x", True),
        ("https://a.b.example.com/x", True),
        ("https://example.com/x", False),
        ("https://evilexample.com/x", False),
        ("https://huggingface.co.evil.net/x", False),
    ],
)
def test_with_a_list_no_other_host_is_asked(url: str, allowed: bool) -> None:
    policy = HostPolicy.of((), LISTED)

    if allowed:
        assert str(policy.target(url)).startswith("https://")
        return
    fell = failure(lambda: policy.target(url))
    assert (fell.exit, "not on the list" in fell.message) == (StageExit.BAD_MANIFEST, True)


def test_a_redirect_to_a_host_that_is_not_listed_is_not_followed(server: FaultServer) -> None:
    with fault_server("127.40.0.2") as other:
        server.faults["config.json"].append(
            Fault(status=302, headers={"Location": f"https://{other.address}/config.json"})
        )
        policy = HostPolicy.of((server.address,), ("huggingface.co",))
        transport = Transport(policy, Stop(), stall_seconds=1)

        fell = failure(lambda: transport.open(f"{server.url}/config.json"))

        assert "not on the list" in fell.message
        assert other.requests == []


def test_a_redirect_to_an_inner_address_is_not_followed(server: FaultServer, tmp_path: Path) -> None:
    with fault_server("127.40.0.2") as inner:
        server.faults["config.json"].extend(
            [Fault(status=302, headers={"Location": f"{inner.url}/config.json"})] * 5
        )

        fell = failure(lambda: source(server.url, link()).open("config.json"))

        assert fell.exit is StageExit.BAD_MANIFEST
        assert "--allow-http-host" in fell.message
        assert inner.requests == []


def test_credentials_stay_with_the_host_they_are_for(server: FaultServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("tell-nobody\n")
    with fault_server("127.40.0.2") as elsewhere:
        elsewhere.files["blob"] = b"bytes"
        server.faults["x.json"].append(Fault(status=307, headers={"Location": "/y.json"}))
        server.faults["y.json"].append(Fault(status=302, headers={"Location": f"{elsewhere.url}/blob"}))
        reader = source(server.url, link(), allow=("127.40.0.1", "127.40.0.2"), credentials=tmp_path)

        stream = reader.open("x.json")
        stream.close()

        assert [request.authorization for request in server.requests] == ["Bearer tell-nobody"] * 2
        assert [request.authorization for request in elsewhere.requests] == [""]


def test_a_signed_url_that_ran_out_is_asked_for_again(server: FaultServer, tmp_path: Path) -> None:
    from moe_operator.staging.store import Store, init_store

    model = make_model(shards=1)
    init_store(tmp_path / "store")
    with fault_server("127.40.0.2") as cdn:
        cdn.files = server.files = dict(model.files)
        shard = model.shards[0]
        server.faults[shard].extend(
            [Fault(status=302, headers={"Location": f"{cdn.url}/{shard}?sig=s3"})] * 2
        )
        cdn.faults[f"{shard}?sig=s3"].append(Fault(status=403))
        shared = link()
        manifest = model.manifest(server.url)
        pull(manifest, Store(tmp_path / "store"), shared=shared, allow=("127.40.0.1", "127.40.0.2"))

        assert len(server.requests_of(shard)) == 2
        assert shared.progress.counts.retries == {"403": 1}


def test_credentials_without_a_usable_key_are_an_auth_failure(server: FaultServer, tmp_path: Path) -> None:
    (tmp_path / "TOKEN_OF_SOMETHING").write_text("x")

    fell = failure(lambda: resolve(server.url, credentials=tmp_path))

    assert (fell.exit, fell.actual) == (StageExit.AUTH, "TOKEN_OF_SOMETHING")
    assert server.requests == []


def test_basic_credentials_are_sent(server: FaultServer, tmp_path: Path) -> None:
    (tmp_path / "username").write_text("u")
    (tmp_path / "password").write_text("p")
    server.files["config.json"] = b"{}"

    source(server.url, link(), credentials=tmp_path).open("config.json").close()

    assert server.requests[0].authorization == "Basic dTpw"


def test_an_unreachable_host_is_a_network_failure(tmp_path: Path) -> None:
    with fault_server() as gone:
        url = gone.url

    fell = failure(lambda: resolve(url, shared=link(retries=1)))

    assert fell.exit is StageExit.NETWORK


def test_nothing_is_asked_when_the_manifest_is_refused(server: FaultServer, tmp_path: Path) -> None:
    from moe_operator.staging.store import Store, init_store

    init_store(tmp_path / "store")
    manifest = make_model().manifest(server.url).model_copy(update={"files": []})

    fell = failure(lambda: pull(manifest, Store(tmp_path / "store")))

    assert fell.exit is StageExit.BAD_MANIFEST
    assert server.requests == []
