"""The filter that makes keys wait which have used up their tokens: a list with ends, in a Lua script."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from moe_operator.gateway.discovered import PASS, QUOTA, lua
from moe_operator.gateway.key_filter import names

SCRIPT = files("moe_operator.gateway").joinpath("quota_filter.lua").read_text()

Json = dict[str, Any]


def quota_filter(waiting: Mapping[str, float]) -> Json:
    """The filter's configuration; ``waiting`` = key id → Unix seconds until which it waits."""
    if not waiting:
        return PASS
    ends = ", ".join(f"[{json.dumps(key)}] = {math.ceil(end * 1000)}" for key, end in sorted(waiting.items()))
    return lua(QUOTA, names(), f"local UNTIL = {{{ends}}}", SCRIPT)
