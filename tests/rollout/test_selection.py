"""Which files each rank's node gets, and what is refused because nobody could tell."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moe_operator.api.manifest import Manifest, ManifestFile, select_files, view_digest
from moe_operator.api.spec import MoESpec
from moe_operator.checkpoint.model_facts import checkpoint_from_config
from moe_operator.planning.plan import Layout, Refusal
from moe_operator.rollout.revision import NodeFiles, record, recorded, revision_of
from moe_operator.rollout.selection import local_experts, rank_files

Obj = dict[str, Any]
CONFIG: Obj = json.loads(
    (Path(__file__).parents[2] / "e2e" / "checkpoints" / "data" / "deepseek-v3.1.config.json").read_text()
)
CHECKPOINT = checkpoint_from_config(CONFIG, 688_000_000_000)
LAYERS, EXPERTS = 61, 256
TOKENIZER = ManifestFile(path="tokenizer.json", size=7, sha256="e" * 64)


def spec(**engine: Any) -> MoESpec:
    return MoESpec.model_validate(
        {
            "model": {"source": "hf://org/model@main"},
            "engine": {"type": "vLLM", "image": "vllm:1", **engine},
            "accelerators": {"product": "NVIDIA-H20"},
            "weights": {"selection": "PerRank"},
        }
    )


def shard(path: str, number: int, **facts: Any) -> ManifestFile:
    return ManifestFile(path=path, size=10, sha256=f"{number:064x}", **facts)


def manifest(*files: ManifestFile, **config: Any) -> Manifest:
    return Manifest(source="s", files=[*files, TOKENIZER], config={**CONFIG, **config})


def layered() -> Manifest:
    """One layer in a file; embedding and head in one of their own; drafting layer 61 at the end."""
    layers = [shard(f"model-{n:05d}.safetensors", n, layers=(n, n), outside=False) for n in range(LAYERS + 1)]
    return manifest(*layers, shard("model-outside.safetensors", 99))


def sliced(groups: int = 32) -> Manifest:
    each = EXPERTS // groups
    cut = [
        shard(f"experts-{g * each:04d}-{g * each + each - 1:04d}-00001.safetensors", g) for g in range(groups)
    ]
    return manifest(*cut, shard("common-00001.safetensors", 99))


def shards_of(facts: Manifest, node: NodeFiles) -> set[str]:
    chosen = select_files(facts.files, node.only)
    assert view_digest(chosen) == node.view and TOKENIZER in chosen
    return {f.path for f in chosen if f.path.endswith(".safetensors")}


def files(layout: Layout, facts: Manifest, wish: MoESpec | None = None) -> tuple[NodeFiles, ...]:
    found = rank_files(wish or spec(), layout, CHECKPOINT, facts)
    assert not isinstance(found, Refusal), found
    return found


def test_a_pipeline_stage_gets_its_layers_the_last_one_the_drafts_and_everybody_what_is_outside() -> None:
    facts = layered()
    first, second = files(Layout(8, 2, 1, False, 2, 8), facts)
    outside = {"model-outside.safetensors"}
    assert shards_of(facts, first) == {f"model-{n:05d}.safetensors" for n in range(31)} | outside
    assert shards_of(facts, second) == {f"model-{n:05d}.safetensors" for n in range(31, 62)} | outside


def test_a_stage_that_spans_nodes_gives_each_of_them_its_layers() -> None:
    found = files(Layout(16, 2, 1, False, 4, 8), layered())
    assert found[0] == found[1] != found[2] == found[3]


def test_stages_inside_one_node_and_plain_data_parallelism_need_everything() -> None:
    assert files(Layout(4, 2, 1, False, 1, 8), layered()) == ()
    assert files(Layout(8, 1, 2, True, 2, 8), layered()) == (), "whole files hold all experts of a layer"


def test_expert_parallel_nodes_get_the_groups_of_their_ranks_and_the_common_files() -> None:
    facts = sliced()
    found = files(Layout(8, 1, 4, True, 4, 8), facts)
    held = [shards_of(facts, node) for node in found]
    assert all("common-00001.safetensors" in node and len(node) == 9 for node in held)
    assert set.union(*held) == {f.path for f in facts.files if f.path.endswith(".safetensors")}
    assert "experts-0064-0071-00001.safetensors" in held[1]


def test_without_expert_parallelism_every_node_needs_all_experts() -> None:
    assert files(Layout(8, 1, 4, False, 4, 8), sliced()) == ()


def test_a_shard_of_which_nobody_knows_goes_everywhere() -> None:
    facts = manifest(
        *(f for f in layered().files if f.path != "tokenizer.json"), shard("odd.safetensors", 7777)
    )
    assert all(
        "odd.safetensors" in shards_of(facts, node) for node in files(Layout(8, 2, 1, False, 2, 8), facts)
    )


def test_names_are_taken_as_they_are_and_not_as_patterns() -> None:
    odd = shard("model[1]*.safetensors", 5000, layers=(0, 0), outside=False)
    facts = manifest(*(f for f in layered().files if f.path != "tokenizer.json"), odd)
    first, second = files(Layout(8, 2, 1, False, 2, 8), facts)
    assert odd.path in shards_of(facts, first) and odd.path not in shards_of(facts, second)
    assert any(fnmatchcase(odd.path, pattern) for pattern in first.only)


EPLB = spec(expertBalancing={"enabled": True})
REFUSED: dict[str, tuple[MoESpec, Layout, Manifest]] = {
    "PER_RANK_EXPERT_BALANCING": (EPLB, Layout(8, 1, 2, True, 2, 8), layered()),
    "PER_RANK_EXPERT_PLACEMENT": (
        spec(args=["--expert-placement-strategy=round_robin"]),
        Layout(8, 1, 2, True, 2, 8),
        sliced(),
    ),
    "PER_RANK_FUSED_EXPERTS": (
        spec(),
        Layout(8, 1, 2, True, 2, 8),
        manifest(*sliced().files[:-1], model_type="gpt_oss"),
    ),
    "PER_RANK_PIPELINE_CUT": (
        spec(env=[{"name": "VLLM_PP_LAYER_PARTITION", "value": "1,60"}]),
        Layout(8, 2, 1, False, 2, 8),
        layered(),
    ),
}


@pytest.mark.parametrize("code", REFUSED)
def test_what_cannot_be_told_is_refused_with_a_way_out(code: str) -> None:
    wish, layout, facts = REFUSED[code]
    refusal = rank_files(wish, layout, CHECKPOINT, facts)
    assert isinstance(refusal, Refusal) and refusal.code == code
    assert "weights.selection: Whole" in refusal.fix


def test_another_engines_cut_of_the_pipeline_is_refused_too() -> None:
    wish = spec(type="SGLang", image="sglang:1")
    refusal = rank_files(wish, Layout(8, 2, 1, False, 2, 8), CHECKPOINT, layered())
    assert isinstance(refusal, Refusal) and refusal.code == "PER_RANK_PIPELINE_CUT"


@given(st.integers(1, 1024), st.integers(1, 256))
def test_every_expert_has_one_rank_and_ranks_differ_by_one_at_most(experts: int, ranks: int) -> None:
    spans = [local_experts(experts, ranks, rank) for rank in range(ranks)]
    assert [e for first, end in spans for e in range(first, end)] == list(range(experts))
    assert max(end - first for first, end in spans) - min(end - first for first, end in spans) <= 1


def test_the_files_of_each_rank_are_on_record_and_in_the_hash_and_their_absence_in_neither() -> None:
    layout = Layout(8, 2, 1, False, 2, 8)
    whole = revision_of(spec(), layout, "v", "m")
    chosen = (NodeFiles("a", ("x",)), NodeFiles("b", ("y",)))
    parted = revision_of(spec(), layout, "v", "m", rank_files=chosen)
    assert whole.hash != parted.hash and "rankFiles" not in record(whole)
    obj = {
        "metadata": {"labels": {"moe-operator.io/revision": parted.hash}},
        "data": json.loads(json.dumps(record(parted))),
        "revision": 1,
    }
    [found] = recorded([obj]).values()
    assert found.rank_files == chosen and found.views == {"a", "b"} and whole.views == {"v"}
    assert found.files_of(1) == chosen[1] and whole.files_of(1) == NodeFiles("v")
