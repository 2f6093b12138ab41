"""The files a gateway pod starts from."""

from __future__ import annotations

import logging
from pathlib import Path

from pydantic import ValidationError

from moe_operator.api.intent import Intent
from moe_operator.gateway.render import Address, Site, render_intent, render_site
from moe_operator.gateway.store import Store

_log = logging.getLogger(__name__)


def prepare(xds: Path, mounted: Path, listen: Address, admin: Address) -> None:
    """Write everything Envoy needs to start.

    An intent that is missing or unreadable is no reason not to start: the gateway then answers 503 until
    the agent finds a good one.
    """
    xds.mkdir(parents=True, exist_ok=True)
    site, store = Site(str(xds.absolute()), listen, admin), Store(xds.absolute())
    store.put(render_site(site))
    intent = _read(mounted)
    if store.generation() < (intent.generation if intent else 0):
        store.put(render_intent(intent, site.xds))
    # else the directory outlived a restart of the pod and knows better


def _read(path: Path) -> Intent | None:
    try:
        return Intent.model_validate_json(path.read_text())
    except (OSError, ValidationError) as error:
        _log.warning("mounted intent is unusable", extra={"fields": {"error": str(error)}})
        return None
