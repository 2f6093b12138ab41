"""What a layer keeps for a request: an entry per token, or a state of constant size.

Sizes follow vLLM's KV cache specs (vllm/v1/kv_cache_interface.py) and the papers: GQA keeps K and V per
KV head; MLA keeps one latent plus the rotary part, the same on every tensor-parallel rank (DeepSeek-V2
§2.1); sparse attention adds an index; linear attention keeps convolution inputs and a matrix per head.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

BF16_BYTES = 2
FP8_BYTES = 1


@dataclass(frozen=True, slots=True)
class TokenCache:
    """Bytes that grow with the sequence.

    ``heads`` KV heads of ``width`` elements (K plus V); 0 heads = one latent that every rank keeps.
    ``packed`` = bytes of an entry in the engines' packed FP8 layout, 0 where there is none; ``fixed`` =
    bytes of an entry whatever the cache's type.
    """

    heads: int
    width: int
    packed: int = 0
    fixed: int = 0
    tokens_per_entry: int = 1  # DeepSeek-V4 compresses several tokens into one entry
    window: int = 0  # tokens that stay; 0 = all

    @property
    def is_latent(self) -> bool:
        """Whether tensor parallelism leaves it whole on every rank."""
        return self.heads == 0

    def entry_bytes(self, tensor: int, element_bytes: int) -> int:
        """Bytes of one entry on one rank of ``tensor``."""
        if self.fixed:
            return self.fixed
        if self.packed and element_bytes == FP8_BYTES:
            return self.packed
        heads = 1 if self.is_latent else max(1, ceil(self.heads / tensor))
        return heads * self.width * element_bytes


@dataclass(frozen=True, slots=True)
class StateCache:
    """Constant bytes per request of a linear-attention layer, split over tensor-parallel ranks."""

    conv_channels: int
    conv_steps: int  # kernel size − 1
    elements: int  # of the recurrent state
    element_bytes: int

    def request_bytes(self, tensor: int, draft_tokens: int = 0) -> int:
        """Bytes per request on one rank; speculation keeps the inputs of drafted tokens too."""
        conv = ceil(self.conv_channels / tensor) * (self.conv_steps + draft_tokens) * BF16_BYTES
        return conv + ceil(self.elements / tensor) * self.element_bytes
