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

from moe_operator.gateway.discovered import FILTERS, PASS, name_of
from moe_operator.gateway.endpoints import PREVIEW
from moe_operator.gateway.files import BOOTSTRAP, CDS, EDS, EDS_PREVIEW, LDS, RDS

TIMEOUT_SECONDS = 20.0
_REASON = re.compile(r"error initializing configuration '[^']*': (?P<words>.+)", re.DOTALL)

Json = dict[str, Any]


def static_form(files: Mapping[str, str]) -> Json:
    """All rendered files as one bootstrap that needs no other file."""
    bootstrap: Json = json.loads(files[BOOTSTRAP])
    del bootstrap["dynamic_resources"]
    (listener,), (routes,) = _resources(files[LDS]), _resources(files[RDS])
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    del manager["rds"]
    manager["route_config"] = routes
    manager["http_filters"] = [_inlined(each, files) for each in manager["http_filters"]]
    listener["filter_chains"][0].pop("transport_socket", None)  # names files of other directories
    clusters = [_with_endpoints(cluster, files) for cluster in _resources(files[CDS])]
    clusters += bootstrap["static_resources"]["clusters"]
    return bootstrap | {"static_resources": {"listeners": [listener], "clusters": clusters}}


def _inlined(http_filter: Json, files: Mapping[str, str]) -> Json:
    """A filter with the configuration that its file delivers; one that does nothing where there is none."""
    if "config_discovery" not in http_filter:
        return http_filter
    file = next(file for file in FILTERS if name_of(file) == http_filter["name"])
    delivered = _resources(files[file])[0]["typed_config"] if file in files else PASS
    return {"name": http_filter["name"], "typed_config": delivered}


def _with_endpoints(cluster: Json, files: Mapping[str, str]) -> Json:
    service = cluster.pop("eds_cluster_config")["service_name"]
    (assignment,) = _resources(files[EDS_PREVIEW if service == PREVIEW else EDS])
    named = assignment | {"cluster_name": cluster["name"]}
    return cluster | {"type": "STATIC", "load_assignment": named}


def _resources(text: str) -> list[Json]:
    found: list[Json] = json.loads(text)["resources"]
    return [{key: value for key, value in resource.items() if key != "@type"} for resource in found]


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
