"""What a request takes, against numbers that engines logged."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moe_operator.checkpoint.model import Checkpoint
from moe_operator.planning.kv_cache import Pages, StageCache, largest, stage_cache
from moe_operator.planning.plan import Layout

from tests.planning.known_models import checkpoint
from tests.planning.questions import request

MIB = 1 << 20
GIB = 1 << 30


def cache(
    name: str, tensor: int = 1, dtype: str = "BF16", decode_context: int = 1, **changes: Any
) -> StageCache:
    model = checkpoint(name)
    layout = Layout(tensor, 1, 1, False, 1, tensor, decode_context)
    asked = request(name, kv_cache_dtype=dtype, **changes)
    return stage_cache(model, layout, range(len(model.order)), asked, in_flight=8192)


@pytest.mark.parametrize(
    ("name", "tensor", "dtype", "expected"),
    [
        ("zai-org/GLM-5.3-FP8", 8, "Auto", 78 * 656 + 21 * 132),  # recipes PR#893
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8", 1, "BF16", 62 * 2 * 8 * 128 * 2),
        ("Qwen/Qwen3-235B-A22B-FP8", 4, "BF16", 94 * 2 * 128 * 2),  # 4 KV heads over 4 ranks
        ("Qwen/Qwen3-235B-A22B-FP8", 8, "BF16", 94 * 2 * 128 * 2),  # replicated beyond
        ("moonshotai/Kimi-K2-Thinking", 8, "BF16", 61 * 576 * 2),
        ("moonshotai/Kimi-K2-Thinking", 1, "BF16", 61 * 576 * 2),  # a latent is never split
        ("moonshotai/Kimi-K3", 8, "FP8", 24 * 576),
        ("nvidia/MiniMax-M3-NVFP4", 2, "FP8", 60 * 2 * 2 * 128 + 57 * 128),
        ("openai/gpt-oss-120b", 1, "BF16", 18 * 2 * 8 * 64 * 2),  # half of its layers keep a window
    ],
)
def test_bytes_per_token_and_rank(name: str, tensor: int, dtype: str, expected: int) -> None:
    assert cache(name, tensor, dtype).token_bytes == expected


@pytest.mark.parametrize(
    ("name", "tokens", "ranks", "logged"),
    [
        ("zai-org/GLM-5.3-FP8", 138_496, 8, 59_763_793_920),
        ("zai-org/GLM-5.3-FP8", 44_288, 8, 19_111_157_760),
    ],
)
def test_pools_that_were_logged_to_the_byte(name: str, tokens: int, ranks: int, logged: int) -> None:
    assert cache(name, 8, "Auto").request_bytes(tokens) * ranks == logged


def test_decode_context_spreads_a_latent_over_its_ranks() -> None:
    plain, spread = (
        cache("moonshotai/Kimi-K2-Thinking", 8),
        cache("moonshotai/Kimi-K2-Thinking", 8, decode_context=8),
    )
    assert plain.token_bytes == 8 * spread.token_bytes
    assert plain.longest(50 * GIB, 1, 1 << 25) == pytest.approx(
        spread.longest(50 * GIB, 1, 1 << 25) / 8, rel=1e-3
    )


def state_mib(model: Checkpoint, tensor: int, draft_tokens: int = 0) -> float:
    states = [layer.state.request_bytes(tensor, draft_tokens) for layer in model.layers if layer.state]
    return sum(states) / MIB


@pytest.mark.parametrize(
    ("tensor", "draft_tokens", "mib"), [(8, 0, 53.57), (16, 0, 26.78), (32, 0, 13.39), (8, 2, 54.78)]
)
def test_state_of_kimi_delta_attention(tensor: int, draft_tokens: int, mib: float) -> None:
    assert state_mib(checkpoint("moonshotai/Kimi-K3"), tensor, draft_tokens) == pytest.approx(mib, abs=0.01)


def test_state_of_a_gated_delta_network() -> None:
    model = checkpoint("nvidia/Qwen3.8-2.4T-A95B-NVFP4")
    assert state_mib(model, 1) / 69 == pytest.approx(4.1172, abs=0.0001)


def test_attention_pages_of_a_hybrid_grow_to_hold_a_state() -> None:
    """srt-slurm's memory report of Qwen3.8 on GB300: 299 pages of 4.125 MiB for 10,240 tokens."""
    found = cache("nvidia/Qwen3.8-2.4T-A95B-NVFP4", 1, prefix_caching=False)
    assert found.block == 1056
    assert found.request_bytes(10_240) == 299 * 4.125 * MIB


def test_prefix_caching_keeps_a_second_state_per_request() -> None:
    with_it, without = (cache("moonshotai/Kimi-K3", 8, prefix_caching=on).state_bytes for on in (True, False))
    assert with_it == 2 * without


def test_sglang_keeps_five_states_per_request_with_its_radix_cache() -> None:
    on, off = (
        cache("moonshotai/Kimi-K3", 8, engine="SGLang", prefix_caching=radix).state_bytes
        for radix in (True, False)
    )
    assert on == 5 * off == pytest.approx(5 * 53.57 * MIB, rel=1e-3)


def test_a_window_keeps_what_it_sees_and_what_is_in_flight() -> None:
    pages = Pages(block=16, nbytes=1, limit=128 - 1 + 8192)
    assert pages.request_bytes(16) == 1
    assert pages.request_bytes(8319) == 520
    assert pages.request_bytes(1 << 20) == 521


pools = st.integers(0, 1 << 40)
pages = st.builds(Pages, st.sampled_from([16, 64, 1056]), st.integers(1, 1 << 22), st.sampled_from([0, 4096]))
caches = st.builds(StageCache, st.lists(pages, min_size=1, max_size=3).map(tuple), st.integers(0, 1 << 28))


@given(caches, pools, st.integers(1, 64), st.integers(1, 1 << 21))
def test_the_longest_request_fits_and_one_more_token_does_not(
    found: StageCache, pool: int, requests: int, limit: int
) -> None:
    tokens = found.longest(pool, requests, limit)
    assert 0 <= tokens <= limit
    assert tokens == 0 or requests * found.request_bytes(tokens) <= pool
    assert tokens == limit or requests * found.request_bytes(tokens + 1) > pool


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_largest_finds_the_edge(edge: int, limit: int) -> None:
    assert largest(limit, lambda n: n <= edge) == min(edge, limit)
