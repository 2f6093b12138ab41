"""``moe-operator sandbox``: what it reads, what it says, how it ends."""

from __future__ import annotations

import json
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from moe_operator.cli.sandbox import sandbox as command
from moe_operator.sandbox import session
from moe_operator.sandbox.images import Images, repository
from moe_operator.sandbox.loopback import claim_block
from moe_operator.sandbox.objects import Key
from moe_operator.sandbox.progress import facts, is_true, news

from tests.sandbox.conftest import RANGE
from tests.sandbox.objects import Obj, config_map


def asked(tmp_path: Path, **changes: Any) -> session.Request:
    plain: dict[str, Any] = {
        "files": (),
        "nodes": "h20-4x8",
        "images": (),
        "claims": (),
        "state_dir": tmp_path / "state",
        "namespace": "default",
        "policy_path": None,
        "api_port": 0,
        "loopback": RANGE,
        "exit_after_ready": False,
    }
    return session.request(**{**plain, **changes})


def written(path: Path, *objects: Any) -> Path:
    path.write_text(yaml.safe_dump_all(objects))
    return path


def test_objects_get_the_namespace_that_was_named_unless_they_have_one(tmp_path: Path) -> None:
    bare, own = config_map("bare"), config_map("own")
    del bare["metadata"]["namespace"]
    own["metadata"]["namespace"] = "team-a"
    read = asked(tmp_path, files=(written(tmp_path / "f.yaml", bare, None, own),), namespace="models")
    assert [s.obj["metadata"]["namespace"] for s in read.sources] == ["models", "team-a"]
    assert read.config.namespaces == ("models", "team-a")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": ("vllm",)}, "'vllm' is not NAME=COMMAND"),
        ({"images": ("=x",)}, "is not NAME=COMMAND"),
        ({"images": ("x=",)}, "is not NAME=COMMAND"),
        ({"claims": ("models",)}, "is not NAME=DIRECTORY"),
        ({"claims": ("models=/no/such/directory",)}, "of a directory that exists"),
    ],
)
def test_bad_arguments_are_said_before_anything_starts(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        asked(tmp_path, **changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not YAML"),
        ("just text", "apiVersion, kind or metadata.name"),
        ("kind: ConfigMap", "apiVersion, kind or metadata.name"),
        ("{apiVersion: v1, kind: Potato, metadata: {name: p}}", "its kind is unknown"),
        ("{apiVersion: v1, kind: ConfigMap, metadata: {}}", "metadata.name"),
    ],
)
def test_a_file_that_holds_no_object_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message) as raised:
        asked(tmp_path, files=(file,))
    assert str(file) in str(raised.value)


def test_a_claim_may_name_its_namespace(tmp_path: Path) -> None:
    read = asked(tmp_path, claims=(f"a={tmp_path}", f"team/b={tmp_path}"))
    assert read.config.claims == {Key("default", "a"): tmp_path, Key("team", "b"): tmp_path}


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("vllm/vllm-openai:v1", "vllm/vllm-openai"),
        ("host:5000/a/b", "host:5000/a/b"),
        ("host:5000/a/b:v1", "host:5000/a/b"),
        ("a@sha256:0123", "a"),
        ("a:v1@sha256:0123", "a"),
    ],
)
def test_an_image_without_its_tag(image: str, expected: str) -> None:
    assert repository(image) == expected


def test_a_tag_of_its_own_wins_over_the_bare_name() -> None:
    images = Images.parse(["a=one 'two words'", "a:v2=three"])

    def host(image: str) -> tuple[str, ...] | None:
        found = images.command({"image": image, "args": ["x"]})
        return found and (*found.host, *found.container)

    assert host("a:v1") == ("one", "two words", "x")
    assert host("a:v2") == ("three", "x")
    assert host("b") is None


def test_own_commands_need_no_mapping_and_others_do() -> None:
    images = Images()
    found = images.command({"image": "moe-operator:latest", "command": ["moestage", "pull"], "args": ["--x"]})
    assert found is not None
    assert Path(found.host[0]).name == "moestage"
    assert found.container == ("pull", "--x")
    assert images.command({"image": "moe-operator:latest", "command": ["vllm", "serve"]}) is None
    assert images.command({"image": "moe-operator:latest"}) is None


STATUS: Obj = {
    "observedGeneration": 2,
    "conditions": [
        {"type": "Ready", "status": "False", "reason": "Starting", "message": "1/2 ranks ready"},
        {"type": "Placed", "status": "True", "reason": "Placed", "message": ""},
        {"type": "GatewayReady", "status": "Unknown", "reason": "Pending"},
    ],
    "placement": [
        {"revision": "ab12", "replica": 0, "ranks": [{"rank": 0, "node": "a"}, {"rank": 1, "node": "b"}]}
    ],
    "staging": [{"node": "a", "phase": "Pulling", "bytesTotal": 1000, "bytesDone": 479}],
    "groups": [{"revision": "ab12", "replica": 0, "phase": "Starting", "readyRanks": 1}],
}


def deployment(status: Obj | None = None, generation: int = 2) -> Obj:
    return {"metadata": {"name": "d", "generation": generation}, "status": status or {}}


def test_what_there_is_to_say() -> None:
    assert list(facts(deployment(STATUS)).values()) == [
        "Ready=False Starting: 1/2 ranks ready",
        "Placed=True Placed",
        "placed ab12/0: 0→a, 1→b",
        "staging a: Pulling 40 %",
        "group ab12/0: Starting, 1/2 ranks ready",
    ]
    assert facts({"metadata": {"name": "d"}}) == {}


def test_only_news_is_told() -> None:
    before = facts(deployment(STATUS))
    later = json.loads(json.dumps(STATUS))
    later["staging"][0]["bytesDone"] = 499
    assert news(before, facts(deployment(later))) == []
    later["staging"][0]["bytesDone"] = 500
    later["activeRevision"] = "ab12"
    assert news(before, facts(deployment(later))) == ["staging a: Pulling 50 %", "revision ab12 serves"]


def test_a_condition_of_an_older_spec_does_not_count() -> None:
    ready = {"observedGeneration": 2, "conditions": [{"type": "Ready", "status": "True"}]}
    assert is_true(deployment(ready), "Ready")
    assert not is_true(deployment(ready, generation=3), "Ready")
    assert not is_true(deployment(STATUS), "Ready")


def test_presets_are_listed_and_unknown_ones_refused() -> None:
    listed = CliRunner().invoke(command, ["--nodes", "list"])
    assert listed.exit_code == 0
    assert "gb200-nvl72" in listed.output
    refused = CliRunner().invoke(command, ["--nodes", "tpu"])
    assert refused.exit_code == 2
    assert "'tpu' is none of h20-4x8" in refused.output


def test_a_platform_other_than_linux_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    refused = CliRunner().invoke(command, [])
    assert refused.exit_code == 1
    assert "the sandbox needs Linux" in refused.output


def test_a_refused_object_ends_the_run_with_the_servers_words(tmp_path: Path) -> None:
    bad = {
        "apiVersion": "moe-operator.io/v1alpha1",
        "kind": "MoEDeployment",
        "metadata": {"name": "bad"},
        "spec": {"engine": {"type": "TensorRT"}},
    }
    said: list[str] = []
    file = written(tmp_path / "bad.yaml", bad)
    assert session.run(asked(tmp_path, files=(file,), nodes="h20-1x8"), said.append) == 1
    assert said[-1].startswith(f"Error: {file}: MoEDeployment bad was refused: ")
    assert "spec.engine.type" in said[-1]


def test_no_free_block_is_a_clear_error(tmp_path: Path) -> None:
    """A range smaller than a block holds one sandbox."""
    small = IPv4Network("127.63.192.0/28")
    said: list[str] = []
    held = claim_block(small)
    try:
        assert session.run(asked(tmp_path, loopback=small), said.append) == 1
    finally:
        held.close()
    assert "every block of 127.63.192.0/28 is held" in said[0]
