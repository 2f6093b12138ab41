"""The files a gateway pod starts from."""

from __future__ import annotations

import logging
from pathlib import Path

from pydantic import ValidationError

from moe_operator.api.intent import Intent
from moe_operator.gateway.address import Address
from moe_operator.gateway.admission import Admission
from moe_operator.gateway.render import render_intent, render_site
from moe_operator.gateway.site import Site
from moe_operator.gateway.store import Store
from moe_operator.gateway.tls import resolved

_log = logging.getLogger(__name__)


def prepare(xds: Path, mounted: Path, listen: Address, admin: Address) -> None:
    """Write everything Envoy needs to start.

    An intent that is missing or unreadable is no reason not to start: the gateway then answers 503 until
    the agent finds a good one.
    """
    xds.mkdir(parents=True, exist_ok=True)
    intent, store = _read(mounted), Store(xds.absolute())
    site = _site(intent, store.xds, listen, admin)
    store.put(render_site(site))
    Admission(store).prepare(_newest(store, intent))
    if store.generation() >= (intent.generation if intent else 0):
        return  # the directory outlived a restart of the pod and knows better
    store.put(render_intent(intent, site.xds, site.room))
    if intent and store.accepted() is None:
        store.remember(intent)  # nobody has judged it yet, but a refused successor has nothing better


def _site(intent: Intent | None, xds: str, listen: Address, admin: Address) -> Site:
    wanted = intent or Intent(generation=0, model="")
    otlp = Address.parse(wanted.otlp_endpoint) if wanted.otlp_endpoint else None
    return Site(xds, listen, admin, tls=resolved(wanted.tls, xds), otlp=otlp)


def _newest(store: Store, mounted: Intent | None) -> Intent | None:
    """Whose keys count: the mounted intent's, or those of a newer one that the directory still serves."""
    accepted = store.accepted()
    if accepted is None or (mounted and mounted.generation > store.generation()):
        return mounted
    return accepted


def _read(path: Path) -> Intent | None:
    try:
        return Intent.model_validate_json(path.read_text())
    except (OSError, ValidationError) as error:
        _log.warning("mounted intent is unusable", extra={"fields": {"error": str(error)}})
        return None
