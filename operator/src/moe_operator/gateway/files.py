"""The files that Envoy reads, and how their versions lead back to an intent.

``bootstrap.json`` and ``lds.json`` are written once in the life of a pod; the others may be swapped by
rename(2) at any moment and never touch a connection. Every one of those carries a version that starts with
the intent's generation, so reading one version back says which intent Envoy runs.
"""

from __future__ import annotations

import json
import re
from typing import Any

from moe_operator.api.names import digest

BOOTSTRAP = "bootstrap.json"
LDS = "lds.json"
EDS = "eds.json"  # engines and the waiting room
EDS_PREVIEW = "eds_preview.json"  # the revision that only chosen clients reach
CDS = "cds.json"
RDS = "rds.json"
DYNAMIC_FILES = (EDS, EDS_PREVIEW, CDS, RDS)  # in the order they are written: make before break

_VERSION = re.compile(r'\s*\{\s*"version_info": "([^"]*)"')
NO_INTENT = "none"  # version prefix while no intent is known

Json = dict[str, Any]


def text_of(value: Json) -> str:
    """Equal values give equal bytes."""
    return json.dumps(value, indent=1, sort_keys=False) + "\n"


def discovery(prefix: str, *resources: Json) -> str:
    """The text of a discovery file; its version is ``prefix`` and a digest of what is in it."""
    body = {"resources": list(resources)}
    return text_of({"version_info": f"{prefix}-{digest(text_of(body), 12)}", **body})


def file_source(xds: str, name: str) -> Json:
    """A config source that reads the file ``name`` in the directory ``xds``."""
    return {"path_config_source": {"path": f"{xds}/{name}"}, "resource_api_version": "V3"}


def version_of(text: str) -> str:
    """The version that a discovery file carries, of which the beginning is enough; empty when it has none."""
    found = _VERSION.match(text)
    return found[1] if found else ""


def generation_of(version: str) -> int:
    """The intent generation a version was rendered from; -1 for a version that carries none."""
    head = version.partition("-")[0]
    return int(head) if head.isdigit() else -1
