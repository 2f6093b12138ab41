"""What must hold for every model and every cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from moe_operator.checkpoint.model import Checkpoint
from moe_operator.checkpoint.model_facts import checkpoint_from_config
from moe_operator.checkpoint.weights import Split
from moe_operator.engines.known import ENGINES
from moe_operator.hardware.catalogue import CATALOGUE
from moe_operator.planning.assess import assess, budget_bytes
from moe_operator.planning.layouts import candidates, shape_refusals
from moe_operator.planning.plan import Layout, Pinned, Request
from moe_operator.planning.rank_weights import PADDING, stage_weights
from moe_operator.planning.stages import partition

from tests.planning.known_models import checkpoint, models
from tests.planning.questions import MIB, planned

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
KNOWN = sorted(models())


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """MoE models as they are built: GQA or MLA, any sizes, BF16 or FP8."""
    heads = draw(st.sampled_from([16, 32, 64, 96, 128]))
    config: dict[str, Any] = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "hidden_size": draw(st.sampled_from([2048, 4096, 7168])),
        "num_hidden_layers": draw(st.integers(1, 70)),
        "num_attention_heads": heads,
        "num_key_value_heads": draw(st.sampled_from([k for k in (1, 2, 4, 8) if heads % k == 0])),
        "head_dim": 128,
        "vocab_size": draw(st.sampled_from([32_000, 151_936])),
        "n_routed_experts": draw(st.sampled_from([8, 60, 128, 256])),
        "num_experts_per_tok": draw(st.integers(1, 8)),
        "moe_intermediate_size": draw(st.sampled_from([768, 1536, 2048])),
        "intermediate_size": 8192,
        "first_k_dense_replace": draw(st.integers(0, 3)),
        "n_shared_experts": draw(st.integers(0, 2)),
        "max_position_embeddings": draw(st.sampled_from([4096, 131_072, 1_048_576])),
    }
    if draw(st.booleans()):
        config |= {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128}
        config |= {"v_head_dim": 128}
    if draw(st.booleans()):
        config["quantization_config"] = FP8
    return config


checkpoints = st.one_of(configs().map(checkpoint_from_config), st.sampled_from(KNOWN).map(checkpoint))
requests = st.builds(
    lambda engine, model, product, nodes, dtype, length, requests, share: Request(
        engine=engine,
        checkpoint=model,
        pinned=Pinned(),
        nodes=nodes,
        gpus_per_node=CATALOGUE[product].nvlink_gpus,
        domain_gpus=CATALOGUE[product].nvlink_gpus,
        gpu_memory_bytes=CATALOGUE[product].memory_mib * MIB,
        memory_utilization=share,
        max_model_len=length,
        concurrency=requests,
        kv_cache_dtype=dtype,
        gpu=CATALOGUE[product],
    ),
    st.sampled_from(sorted(ENGINES)),
    checkpoints,
    st.sampled_from(sorted(CATALOGUE)),
    st.integers(1, 6),
    st.sampled_from(["Auto", "BF16"]),
    st.none() | st.sampled_from([1000, 40_000, 200_000]),
    st.sampled_from([1, 8]),
    st.sampled_from([0.8, 0.9, 0.95]),
)


@settings(deadline=None, max_examples=60)
@given(requests)
def test_a_proposed_layout_passes_its_own_rules_and_fills_its_gpus(asked: Request) -> None:
    answer = planned(asked)
    layout = answer.layout
    assert layout is not None and asked.checkpoint is not None
    assert (answer.verdict == "Refused") == bool(answer.refusals)
    assume(not answer.refusals)
    assert layout.world == layout.gpus
    assert list(shape_refusals(layout, asked)) == []
    judges = ENGINES[asked.engine].judges
    assert all(rule(layout, asked.checkpoint, asked) is None for rule in judges.rules)
    again = planned(replace(asked, pinned=pins(layout)))
    assert (again.layout, again.verdict) == (layout, answer.verdict)


@settings(deadline=None, max_examples=60)
@given(requests)
def test_memory_of_an_accepted_plan_stays_inside_the_budget(asked: Request) -> None:
    answer = planned(asked)
    assume(not answer.refusals and answer.chosen)
    assert answer.chosen
    for stage in answer.chosen.stages:
        rows = sum(row.size for row in stage.rows)
        held = stage.weight_bytes if asked.engine == "SGLang" else rows
        assert held + stage.pool_bytes == budget_bytes(asked)
        assert stage.pool_bytes > 0


@settings(deadline=None, max_examples=40)
@given(requests, st.integers(1, 4))
def test_more_gpus_never_refuse_what_fits(asked: Request, more: int) -> None:
    """In the same family: TP and PP as they were, the new nodes are further data-parallel ranks."""
    answer = planned(asked)
    layout = answer.layout
    assume(answer.verdict == "Fits" and layout and layout.model_parallel <= layout.gpus_per_node)
    assert layout and asked.checkpoint
    grown = replace(
        layout, nodes=layout.nodes + more, data=layout.data * (layout.nodes + more) // layout.nodes
    )
    judges = ENGINES[asked.engine].judges
    assume(not any(rule(grown, asked.checkpoint, asked) for rule in judges.rules))  # 256 experts on 24 ranks
    assert assess(grown, asked.checkpoint, asked, judges).verdict != "Refused"


@settings(deadline=None, max_examples=40)
@given(requests)
def test_a_longer_request_than_the_longest_does_not_fit(asked: Request) -> None:
    assert asked.checkpoint
    boundless = replace(asked.checkpoint, max_positions=1 << 25)
    asked = replace(asked, checkpoint=boundless, max_model_len=None)
    answer = planned(asked)
    assume(not answer.refusals and answer.chosen and answer.chosen.longest != 1 << 25)
    assert answer.chosen and answer.chosen.longest and answer.layout
    again = replace(asked, pinned=pins(answer.layout), nodes=answer.layout.nodes)
    fitting, beyond = (planned(replace(again, max_model_len=answer.chosen.longest + more)) for more in (0, 1))
    assert fitting.refusals == () and "KV_CACHE_TOO_SMALL" not in [c.code for c in fitting.cautions]
    assert "KV_CACHE_TOO_SMALL" in [r.code for r in (*beyond.refusals, *beyond.cautions)]


@settings(deadline=None, max_examples=60)
@given(
    checkpoints,
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 3, 4]),
    st.sampled_from([1, 2]),
    st.booleans(),
)
def test_what_ranks_hold_together_is_the_checkpoint(
    model: Checkpoint, tensor: int, data: int, pipeline: int, expert: bool
) -> None:
    """Split parts times the ranks that split them, and one copy of the rest, over all stages."""
    assume(pipeline <= len(model.order))
    layout = Layout(tensor, pipeline, data, expert, 1, tensor * data * pipeline)
    asked = Request("vLLM", model, Pinned(), 1, layout.gpus, None, None, 0.9)
    rows = stage_weights(model, layout, partition(len(model.order), pipeline), asked)
    experts = tensor * data
    routed = sum(r["routed experts"] for r in rows) * experts
    split = sum(r["attention and dense"] + r["embedding and head"] for r in rows) * tensor
    once = sum(r["replicated parts"] + r["vision tower"] + r["not classified"] for r in rows)
    drafts = sum(layer.nbytes for layer in model.draft_layers)
    whole = sum(w.nbytes for layer in model.layers for w in layer.weights) + sum(
        w.nbytes for w in model.outside
    )
    repeated = _repeated_keys(model, tensor)
    uneven = _uneven_experts(model, experts) if expert else 0
    assert routed + split + once - repeated - uneven - whole < 1e-6 * whole + 4096 * len(model.order)
    assert routed + split + once - repeated - uneven >= whole
    assert abs(whole + drafts - max(model.weight_bytes, model.computed_bytes)) <= 0.01 * model.computed_bytes
    assert all(r[PADDING] >= 0 for r in rows)


def _repeated_keys(model: Checkpoint, tensor: int) -> int:
    """Bytes that K and V projections are repeated beyond the number of KV heads."""
    if tensor <= model.kv_heads:
        return 0
    keys = sum(layer.split_bytes[Split.KV_HEADS] for layer in model.layers)
    return int(keys * (tensor / model.kv_heads - 1))


def _uneven_experts(model: Checkpoint, ranks: int) -> int:
    """Bytes by which the fullest rank, times the ranks, exceeds all experts."""
    extra = -model.routed_experts % ranks
    return sum(w.nbytes // w.shape.copies for layer in model.layers for w in layer.routed) * extra


def pins(layout: Layout) -> Pinned:
    return Pinned(layout.tensor, layout.pipeline, layout.data, layout.expert, layout.decode_context)


@settings(deadline=None, max_examples=30)
@given(requests)
def test_every_candidate_has_a_valid_shape_and_none_comes_twice(asked: Request) -> None:
    found = list(candidates(asked, asked.nodes or 1))
    assert len(found) == len(set(found))
    assert all(not list(shape_refusals(layout, asked)) for layout in found)
