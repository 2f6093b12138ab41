"""What a request takes of the KV cache: ``a + b·tokens``, in whole blocks.

vLLM keeps one pool per rank and cuts it into pages of equal size (vllm/v1/core/kv_cache_utils.py):

- full attention: ceil(tokens / block) pages per layer; the pages of decode-context parallelism are spread
  over its ranks;
- a window keeps at most ``window − 1 + tokens in flight``, plus one block that the window straddles;
- linear attention keeps a constant state. Its page and the attention's are made equal by growing the
  attention's block until its page holds a state; a request then takes whole pages of both kinds.

SGLang keeps states in a pool of their own, several slots per request. Every data-parallel rank has its own
cache for its own requests; tensor parallelism splits KV heads, never a latent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

from moe_operator.checkpoint.cache import BF16_BYTES, FP8_BYTES, TokenCache
from moe_operator.checkpoint.model import Checkpoint, Layer
from moe_operator.planning.plan import Layout, Request

BLOCK = 16  # vLLM's default block of tokens
LATENT_BLOCK = 64  # FlashMLA's
STATE_BLOCK_MULTIPLE = 16
SGLANG_STATE_SLOTS = {True: 5, False: 1}  # radix cache on (extra buffers) or off
LONGEST = 1 << 25  # the API's bound on maxModelLen


@dataclass(frozen=True, slots=True)
class Pages:
    """``nbytes`` for every ``block`` tokens of a request; 0 = no limit to the tokens that stay."""

    block: int
    nbytes: int
    limit: int = 0

    def request_bytes(self, tokens: int) -> int:
        """Bytes of the pages that ``tokens`` need."""
        kept = min(tokens, self.limit) if self.limit else tokens
        straddled = 1 if self.limit and tokens > self.limit else 0
        return (ceil(kept / self.block) + straddled) * self.nbytes


@dataclass(frozen=True, slots=True)
class StageCache:
    """The cache of one rank of one stage."""

    pages: tuple[Pages, ...]
    state_bytes: int  # per request, all slots

    def request_bytes(self, tokens: int) -> int:
        """Bytes that one request of ``tokens`` takes."""
        return self.state_bytes + sum(p.request_bytes(tokens) for p in self.pages)

    @property
    def token_bytes(self) -> float:
        """Bytes per further token of a long request."""
        return sum(p.nbytes / p.block for p in self.pages if not p.limit)

    @property
    def block(self) -> int:
        """Tokens of a block; lengths between two multiples take the same memory."""
        return max((p.block for p in self.pages), default=BLOCK)

    def longest(self, pool_bytes: int, requests: int, limit: int) -> int:
        """Most tokens, at most ``limit``, that ``requests`` can have at once in ``pool_bytes``; 0 = none."""
        return largest(limit, lambda tokens: requests * self.request_bytes(tokens) <= pool_bytes)


def largest(limit: int, holds: Callable[[int], bool]) -> int:
    """The largest number in 0..``limit`` for which the falling predicate ``holds``; 0 when none."""
    if limit == 0 or holds(limit):
        return limit
    low, high = 0, limit
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def element_bytes(checkpoint: Checkpoint, request: Request) -> int:
    """Bytes per cached element. Auto: FP8 where the checkpoint asks for it or its layout is packed."""
    if request.kv_cache_dtype == "FP8":
        return FP8_BYTES
    if request.kv_cache_dtype == "BF16":
        return BF16_BYTES
    return FP8_BYTES if checkpoint.kv_fp8 or checkpoint.packs_cache else BF16_BYTES


def stage_cache(
    checkpoint: Checkpoint, layout: Layout, stage: range, request: Request, in_flight: int
) -> StageCache:
    """The cache of the stage that holds the layers in ``stage``; ``in_flight`` = tokens of one step."""
    counted = Counter(checkpoint.order[stage.start : stage.stop])
    layers = [(checkpoint.kinds[kind], count) for kind, count in counted.items()]
    if request.draft_tokens and stage.stop == len(checkpoint.order):
        layers += [(layer, 1) for layer in checkpoint.draft_layers]
    return cache_of(layers, layout, element_bytes(checkpoint, request), request, in_flight)


def cache_of(
    layers: Sequence[tuple[Layer, int]], layout: Layout, element: int, request: Request, in_flight: int
) -> StageCache:
    """The cache of layers given by kind and number."""
    entries: Counter[TokenCache] = Counter()
    for layer, count in layers:
        for cache in layer.caches:
            entries[cache] += count
    states = [
        (layer.state.request_bytes(layout.tensor, request.draft_tokens), count)
        for layer, count in layers
        if layer.state
    ]
    if not states or request.engine != "vLLM":
        slots = SGLANG_STATE_SLOTS[request.prefix_caching]
        return StageCache(
            tuple(_pages(cache, count, layout, element, in_flight) for cache, count in entries.items()),
            slots * sum(size * count for size, count in states),
        )
    return _unified(entries, states, layout, element, request)


def _pages(cache: TokenCache, count: int, layout: Layout, element: int, in_flight: int) -> Pages:
    block = max(LATENT_BLOCK if cache.is_latent else BLOCK, cache.tokens_per_entry)
    entries = block // cache.tokens_per_entry
    nbytes = count * entries * cache.entry_bytes(layout.tensor, element)
    limit = cache.window - 1 + in_flight if cache.window else 0
    return Pages(block * layout.decode_context, nbytes, limit)


def _unified(
    entries: Counter[TokenCache],
    states: list[tuple[int, int]],
    layout: Layout,
    element: int,
    request: Request,
) -> StageCache:
    """vLLM: attention pages at least as large as a state."""
    state = max(size for size, _ in states)
    slots = state_slots(request) * sum(count for _, count in states)
    if not entries:
        return StageCache((), slots * state)
    entry = max(cache.entry_bytes(layout.tensor, element) for cache in entries)
    block = ceil(ceil(state / entry) / STATE_BLOCK_MULTIPLE) * STATE_BLOCK_MULTIPLE
    page = block * entry
    layers = entries.total()
    return StageCache((Pages(block * layout.decode_context, layers * page),), slots * page)


def state_slots(request: Request) -> int:
    """States per request that vLLM keeps: prefix caching aligns a second one to block ends."""
    return (2 if request.prefix_caching else 1) + request.draft_tokens
