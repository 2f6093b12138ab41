"""``vllm …``: parse the command line and run the node that it describes."""

from __future__ import annotations

import os
from collections.abc import Sequence

from .node import Node, first_faults
from .settings import Settings
from .vllm_flags import parse
from .vllm_headless import run_headless
from .vllm_leader import run_leader


async def run_vllm(arguments: Sequence[str]) -> int:
    """Run one node to its end; returns the exit code. argparse's own exits pass through."""
    serve = parse(arguments)
    settings = Settings.from_environment(os.environ)
    faults = first_faults(settings, serve.parallel.node)
    if bad := faults.active("F05"):
        parse([*arguments, str(bad.get("flag", "--no-such-flag"))])
    node = Node("vllm", settings, faults, serve.parallel)
    await node.open()
    return await (run_headless(serve, node) if serve.flags.headless else run_leader(serve, node))
