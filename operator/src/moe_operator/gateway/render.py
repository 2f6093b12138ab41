"""The Envoy configuration that an intent means.

Two halves with different lives. What :func:`render_site` makes (bootstrap and listener) depends on the pod
alone and is written once. What :func:`render_intent` makes (endpoints, clusters, routes) may be swapped at
any moment by rename(2) and never touches a connection.

Invariants: pure; equal input gives equal bytes; no intent changes a byte of the first half.
"""

from __future__ import annotations

from moe_operator.api.intent import Intent
from moe_operator.gateway import endpoints
from moe_operator.gateway.address import Address
from moe_operator.gateway.cluster import clusters
from moe_operator.gateway.files import (
    BOOTSTRAP,
    CDS,
    EDS,
    EDS_PREVIEW,
    LDS,
    NO_INTENT,
    RDS,
    discovery,
    text_of,
)
from moe_operator.gateway.listener import listener
from moe_operator.gateway.routes import routes
from moe_operator.gateway.site import Site, bootstrap
from moe_operator.gateway.tls import secret_files


def render(intent: Intent | None, site: Site) -> dict[str, str]:
    """File name → JSON text of everything Envoy reads."""
    return render_site(site) | render_intent(intent, site.xds, site.room)


def render_site(site: Site) -> dict[str, str]:
    """``bootstrap.json`` and ``lds.json``: the same for every intent."""
    return {
        **secret_files(site.tls),
        BOOTSTRAP: text_of(bootstrap(site)),
        LDS: discovery("site", listener(site)),
    }


def render_intent(intent: Intent | None, xds: str, room: Address) -> dict[str, str]:
    """The files that change, in the order they must be written.

    ``None`` (no intent known yet) serves nothing: every path answers 503, no version carries a generation.
    """
    prefix = NO_INTENT if intent is None else str(intent.generation)
    wanted = intent or Intent(generation=0, model="")
    return {
        EDS: discovery(prefix, endpoints.engines(wanted, room)),
        EDS_PREVIEW: discovery(prefix, endpoints.preview(wanted)),
        CDS: discovery(prefix, *clusters(wanted, xds)),
        RDS: discovery(prefix, routes(intent)),
    }
