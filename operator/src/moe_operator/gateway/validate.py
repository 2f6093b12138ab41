"""Why Envoy refuses a configuration, in Envoy's own words.

Envoy counts refused files but keeps the reason to its log, and ``--mode validate`` does not read the
files a bootstrap points at. So the same resources are laid out as a static bootstrap and handed to the
``envoy`` binary, where one is at hand, to be told.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moe_operator.gateway.render import BOOTSTRAP, CDS, EDS, LDS, RDS

TIMEOUT_SECONDS = 20.0
_REASON = re.compile(r"error initializing configuration '[^']*': (?P<words>.+)", re.DOTALL)

Json = dict[str, Any]


def static_form(files: Mapping[str, str]) -> Json:
    """All rendered files as one bootstrap that needs no other file."""
    bootstrap: Json = json.loads(files[BOOTSTRAP])
    listener, cluster = _resource(files[LDS]), _resource(files[CDS])
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    del manager["rds"], cluster["eds_cluster_config"], bootstrap["dynamic_resources"]
    manager["route_config"] = _resource(files[RDS])
    cluster |= {"type": "STATIC", "load_assignment": _resource(files[EDS])}
    return bootstrap | {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def _resource(text: str) -> Json:
    resource: Json = json.loads(text)["resources"][0]
    return {key: value for key, value in resource.items() if key != "@type"}


def find_envoy() -> str | None:
    """The ``envoy`` command beside the running interpreter or on PATH; None when there is neither."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    return shutil.which("envoy", path=path)


async def refusal(files: Mapping[str, str], envoy: str, scratch: Path) -> str:
    """What Envoy says against ``files``; empty when it has nothing against them.

    ``scratch`` is a writable directory (a container's root file system need not be).
    """
    with tempfile.TemporaryDirectory(prefix=".validate-", dir=scratch) as directory:
        config = Path(directory) / "static.json"
        config.write_text(json.dumps(static_form(files)))
        process = await asyncio.create_subprocess_exec(
            envoy, "--mode", "validate", "-c", str(config), "-l", "critical", "--use-dynamic-base-id",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    return "" if process.returncode == 0 else words(output.decode(errors="replace"))


def words(output: str) -> str:
    """The reason out of what ``envoy --mode validate`` prints."""
    match = _REASON.search(output)
    return (match["words"] if match else output).strip()
