"""Start the engine that the command line names.

All of these are understood, so that an image may map any entry point to ``python -m e2e.engine_stub``:
``vllm serve MODEL …``, ``serve MODEL …``, ``sglang --model-path MODEL …``,
``python3 -m sglang.launch_server --model-path MODEL …``, ``sglang serve --model-path MODEL …``.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from .settings import Misuse

USAGE = "engine stub: expected 'vllm serve MODEL …' or 'sglang --model-path MODEL …'"
BAD_SETTINGS = 64  # EX_USAGE: the stub's own settings are wrong, which no engine would say


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one node; returns its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        engine, rest = recognize(given)
        return asyncio.run(_run(engine, rest))
    except Misuse as error:
        print(f"engine stub: {error}", file=sys.stderr)
        return BAD_SETTINGS


def recognize(given: Sequence[str]) -> tuple[str, list[str]]:
    """(engine, its own arguments) for any of the spellings above; Misuse for others."""
    words = list(given)
    if words[:1] and words[0].rsplit("/", 1)[-1].startswith("python"):
        words = words[1:]
    if words[:2] in (["-m", "sglang.launch_server"], ["-m", "sglang"]):
        return "sglang", words[2:]
    if words[:1] == ["sglang"]:
        return "sglang", words[2:] if words[1:2] == ["serve"] else words[1:]
    if words[:1] == ["vllm"]:
        return "vllm", words[1:]
    if words[:1] == ["serve"]:
        return "vllm", words
    if words[:1] == ["--model-path"]:
        return "sglang", words
    raise Misuse(USAGE)


async def _run(engine: str, arguments: Sequence[str]) -> int:
    if engine == "vllm":
        from .vllm_serve import run_vllm

        return await run_vllm(arguments)
    from .sglang_serve import run_sglang

    return await run_sglang(arguments)


if __name__ == "__main__":
    sys.exit(main())
