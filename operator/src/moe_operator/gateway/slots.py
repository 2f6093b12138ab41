"""Which counter of requests in flight belongs to which key.

Envoy starts all counters anew when the table of counters changes, so that table must not change with every
key that is added. Keys therefore hold numbered slots: a key keeps its slot as long as it exists, a new key
takes a free one, and the number of slots only grows, by doubling.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count

FEWEST = 64


def assign(before: Mapping[str, int], key_ids: Iterable[str]) -> dict[str, int]:
    """Key id → slot; nobody moves, and no two keys share a slot."""
    ids = sorted(set(key_ids))
    slots = {key_id: before[key_id] for key_id in ids if key_id in before}
    taken = set(slots.values())
    free = (slot for slot in count() if slot not in taken)
    return slots | {key_id: next(free) for key_id in ids if key_id not in slots}


def capacity(slots: Mapping[str, int]) -> int:
    """How many slots the table must have: a power of two."""
    wanted = max(slots.values(), default=0) + 1
    return max(FEWEST, 1 << (wanted - 1).bit_length())
