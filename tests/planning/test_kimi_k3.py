"""Kimi-K3 on 32 H20: the model and the machines that this planner was written for."""

from __future__ import annotations

import json

import pytest
from moe_operator.checkpoint.model import Checkpoint
from moe_operator.checkpoint.model_facts import checkpoint_from_config
from moe_operator.planning.plan import Layout, Pinned
from moe_operator.planning.rank_weights import PADDING, stage_weights
from moe_operator.planning.stages import partition

from tests.planning.known_models import CONFIGS, checkpoint
from tests.planning.questions import GIB, codes, planned, request

K3 = "moonshotai/Kimi-K3"
TP8_DP4 = Pinned(tensor=8, pipeline=1, data=4, expert=True, decode_context=1)
OWN_LENGTH = 1_048_576


def stored_as(quantization: dict[str, object] | None) -> Checkpoint:
    """Kimi-K3's shapes in another number format."""
    config = json.loads((CONFIGS / "moonshotai--Kimi-K3.config.json").read_text())
    del config["text_config"]["quantization_config"]
    return checkpoint_from_config(
        config if quantization is None else {**config, "quantization_config": quantization}
    )


def test_its_size_is_the_index_to_the_byte() -> None:
    assert checkpoint(K3).weight_bytes == 1_560_860_324_864


def test_one_expert_is_17_547_264_bytes() -> None:
    kimi = checkpoint(K3)
    [kind] = {k for k in kimi.kinds if k.routed and k.state}
    assert sum(w.nbytes for w in kind.routed) / 896 == 17_547_264


def test_on_32_h20_it_fits_with_65_gib_of_weights_per_rank() -> None:
    answer = planned(request(K3, nodes=4))
    assert answer.verdict == "Fits" and answer.layout == Layout(8, 1, 4, True, 4, 8)
    assert answer.chosen
    assert 64 <= answer.chosen.stages[0].weight_bytes / GIB <= 66


def test_a_pipeline_over_the_machines_is_offered() -> None:
    offered = {option.layout.short: option.verdict for option in planned(request(K3, nodes=4)).alternatives}
    assert offered["TP8·PP4"] == "Fits"


@pytest.mark.parametrize(
    ("quantization", "terabytes", "code", "limit"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 2.8, "NO_KV_MEMORY", "budget 87.93 GiB"),
        (None, 5.6, "WEIGHTS_EXCEED_MEMORY", "a GPU has 95.58 GiB"),
    ],
    ids=["fp8", "bf16"],
)
def test_its_fp8_and_bf16_variants_are_refused_with_numbers(
    quantization: dict[str, object] | None, terabytes: float, code: str, limit: str
) -> None:
    variant = stored_as(quantization)
    assert variant.weight_bytes / 1e12 == pytest.approx(terabytes, abs=0.1)
    answer = planned(request(nodes=4, checkpoint=variant))
    assert codes(answer) == [code]
    assert limit in answer.refusals[0].message
    nodes = int(answer.refusals[0].fix.removeprefix("nodes: ").split()[0])
    assert 4 < nodes <= 20
    assert planned(request(nodes=nodes, checkpoint=variant)).refusals == ()


def test_a_million_tokens_are_answered_with_the_concurrency_they_allow() -> None:
    answer = planned(request(K3, nodes=4, max_model_len=OWN_LENGTH))
    assert answer.verdict == "Fits" and answer.max_model_len == OWN_LENGTH
    assert answer.concurrency and answer.concurrency >= 4
    offered = {option.layout.short: option.max_concurrency for option in answer.alternatives}
    assert offered["TP8·PP4"] and offered["TP8·PP4"] >= 4


def test_a_million_tokens_in_the_pinned_layout_are_refused_with_what_fits() -> None:
    answer = planned(request(K3, nodes=4, max_model_len=OWN_LENGTH, pinned=TP8_DP4))
    assert codes(answer) == ["KV_CACHE_TOO_SMALL"]
    assert answer.chosen and answer.chosen.longest
    assert f"the estimated maximum model length is {answer.chosen.longest}" in answer.refusals[0].message
    shorter = planned(request(K3, nodes=4, max_model_len=answer.chosen.longest, pinned=TP8_DP4))
    assert shorter.refusals == ()


@pytest.mark.parametrize(
    ("layout", "gib"),
    [
        (Layout(8, 1, 1, False, 1, 8), 191.0),
        (Layout(8, 2, 1, False, 2, 8), 95.5),
        (Layout(16, 1, 1, False, 2, 8), 128.9),  # 3072/16 = 192 is padded to 256
        (Layout(8, 1, 2, True, 2, 8), 106.8),
        (Layout(8, 1, 4, True, 4, 8), 64.7),
        (Layout(16, 1, 2, True, 4, 8), 58.8),
        (Layout(4, 1, 4, True, 4, 4), 118.8),
        (Layout(32, 1, 1, True, 4, 8), 55.8),
        (Layout(8, 4, 1, False, 4, 8), 47.9),
    ],
    ids=str,
)
def test_weights_per_rank_by_layout(layout: Layout, gib: float) -> None:
    """Mean of the stages; public arithmetic without the vision tower and MLA's copies."""
    kimi = checkpoint(K3)
    rows = stage_weights(kimi, layout, partition(93, layout.pipeline), request(K3))
    held = [sum(r.values()) - r["vision tower"] - r["copies made after loading"] for r in rows]
    assert sum(held) / len(held) / GIB == pytest.approx(gib, abs=0.6)


def test_sixteen_ranks_without_expert_parallelism_pay_a_third_for_padding() -> None:
    layout = Layout(16, 1, 1, False, 2, 8)
    [rows] = stage_weights(checkpoint(K3), layout, partition(93, 1), request(K3))
    assert rows[PADDING] / rows["routed experts"] == pytest.approx(1 / 3, abs=1e-6)
