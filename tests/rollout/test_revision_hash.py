"""A hash names pods that run: it may never change under a spec that nobody edited.

If one of these pins fails, an operator upgrade would restart every engine of every cluster. Do not pin anew;
make the change leave the canonical form alone (a new member needs a default, a default may not change).
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moe_operator.api.spec import MoESpec
from moe_operator.planning.plan import Layout
from moe_operator.rollout.revision import (
    POD_AFFECTING,
    Revision,
    revision_of,
    same_spec,
    spec_digest,
    superfluous,
)

SMALL: dict[str, Any] = {
    "model": {"source": "hf://org/model@main"},
    "engine": {"type": "vLLM", "image": "vllm:1"},
    "accelerators": {"product": "NVIDIA-H20"},
}
LARGE: dict[str, Any] = {
    "model": {
        "name": "k3",
        "source": "hf://moonshotai/Kimi-K3@9f62e4e9",
        "credentialsRef": {"name": "hf"},
        "trustRemoteCode": True,
    },
    "engine": {
        "type": "vLLM",
        "image": "vllm/vllm-openai:v0.33.0",
        "maxModelLen": 131072,
        "kvCacheDtype": "FP8",
        "args": ["--seed", "1"],
        "env": [{"name": "A", "value": "b"}],
    },
    "parallelism": {"tensor": 8, "pipeline": 1, "data": 4, "expert": True},
    "accelerators": {"product": "NVIDIA-H20", "nodes": 4, "extraResources": {"rdma/ib": "1"}},
    "placement": {"domain": {"type": "Label", "key": "nvidia.com/gpu.clique"}, "policy": "Preferred"},
    "resources": {"memory": "512Gi"},
    "network": {"interface": "bond0", "rdma": {"hcas": ["mlx5_0"]}},
    "pod": {"labels": {"a": "b"}},
    "startup": {"timeoutSeconds": 600},
}
SGLANG: dict[str, Any] = {
    **SMALL,
    "engine": {"type": "SGLang", "image": "sglang:1"},
    "weights": {"cacheClass": "ssd"},
}
PINS = (
    (SMALL, Layout(8, 1, 1, True, 1, 8), "v1", "ac7f3c9d", "cd1f43c21eb966a4"),
    (LARGE, Layout(8, 1, 4, True, 4, 8), "v2", "223d3c1c", "739f38196d5a954a"),
    (SGLANG, Layout(8, 1, 2, True, 2, 8), "", "9f89ffac", "2167d60072a4466b"),
)
LAYOUT = PINS[0][1]


def spec(content: dict[str, Any]) -> MoESpec:
    return MoESpec.model_validate(content)


def hash_of(content: dict[str, Any], layout: Layout = LAYOUT, view: str = "v1") -> str:
    return revision_of(spec(content), layout, view, "m").hash


@pytest.mark.parametrize(("content", "layout", "view", "pin", "digest"), PINS)
def test_hashes_are_what_they_were_in_the_first_release(
    content: dict[str, Any], layout: Layout, view: str, pin: str, digest: str
) -> None:
    assert hash_of(content, layout, view) == pin
    assert spec_digest(spec(content), view) == digest


def test_writing_a_default_out_changes_nothing() -> None:
    whole = spec(SMALL).model_dump(mode="json", by_alias=True, exclude_none=True)
    assert hash_of(whole) == hash_of(SMALL)
    assert spec_digest(spec(whole), "v") == spec_digest(spec(SMALL), "v")


EDITS: dict[str, tuple[dict[str, Any], bool]] = {
    "model.source": ({"model": {"source": "hf://org/model@other"}}, True),
    "model.name": ({"model": {**SMALL["model"], "name": "x"}}, True),
    "engine.image": ({"engine": {**SMALL["engine"], "image": "vllm:2"}}, True),
    "engine.args": ({"engine": {**SMALL["engine"], "args": ["--x"]}}, True),
    "parallelism": ({"parallelism": {"tensor": 4}}, True),
    "accelerators": ({"accelerators": {"product": "NVIDIA-H20", "nodes": 2}}, True),
    "placement": ({"placement": {"policy": "Preferred"}}, True),
    "weights.cacheClass": ({"weights": {"cacheClass": "ssd"}}, True),
    "resources": ({"resources": {"cpu": "1"}}, True),
    "network": ({"network": {"interface": "eth1"}}, True),
    "pod": ({"pod": {"labels": {"a": "b"}}}, True),
    "startup": ({"startup": {"timeoutSeconds": 60}}, True),
    "replicas": ({"replicas": 3}, False),
    "gateway": ({"gateway": {"replicas": 4}}, False),
    "rollout": ({"rollout": {"drainSeconds": 5}}, False),
    "restart": ({"restart": {"maxGroupRestarts": 0}}, False),
    "health": ({"health": {"probeSeconds": 9}}, False),
    "weights.maxConcurrentNodes": ({"weights": {"maxConcurrentNodes": 9}}, False),
}


@pytest.mark.parametrize("field", EDITS)
def test_an_edit_makes_a_new_revision_exactly_when_pods_would_differ(field: str) -> None:
    change, is_new = EDITS[field]
    assert (hash_of({**SMALL, **change}) != hash_of(SMALL)) is is_new
    assert field.split(".", maxsplit=1)[0] in POD_AFFECTING or not is_new


def test_the_layout_and_the_files_are_part_of_a_revision() -> None:
    assert hash_of(SMALL, Layout(4, 1, 2, True, 1, 8)) != hash_of(SMALL)
    assert hash_of(SMALL, view="v2") != hash_of(SMALL)


@given(st.permutations(sorted(LARGE)))
def test_the_order_of_members_does_not_matter(order: list[str]) -> None:
    assert hash_of({member: LARGE[member] for member in order}) == hash_of(LARGE)


# Finding a spec's record again


def kept(number: int, content: dict[str, Any], view: str = "v1") -> Revision:
    return Revision(f"r{number}", spec(content), LAYOUT, view, "m", number)


def test_a_spec_that_was_planned_before_finds_its_newest_record() -> None:
    records = [kept(1, SMALL), kept(3, SMALL), kept(2, LARGE), kept(4, SMALL, "v2")]
    assert same_spec(records, spec({**SMALL, "replicas": 7}), "v1") == kept(3, SMALL)
    assert same_spec(records, spec(SGLANG), "v1") is None


def test_old_records_go_unless_something_needs_them() -> None:
    records = [kept(n, SMALL) for n in range(1, 14)]
    assert [r.number for r in superfluous(records, ["r2"])] == [3, 1]
    assert superfluous(records[:10], []) == []
