"""Which client networks may connect: a filter in the listener, its list in the routes."""

from __future__ import annotations

from typing import Any

FILTER = "moe.sources"
RBAC = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3"

Json = dict[str, Any]


def source_filter() -> Json:
    """Lets everybody pass until a route table says who may."""
    return {"name": FILTER, "typed_config": {"@type": f"{RBAC}.RBAC"}}


def settings(allowed: list[str]) -> Json:
    """``typed_per_filter_config`` of the virtual host; nothing where every network may connect.

    The peer's own address counts, never ``x-forwarded-for``, which a client can write.
    """
    if not allowed:
        return {}
    policy = {
        "permissions": [{"any": True}],
        "principals": [{"direct_remote_ip": _range(network)} for network in allowed],
    }
    rules = {"action": "ALLOW", "policies": {"sources": policy}}
    return {FILTER: {"@type": f"{RBAC}.RBACPerRoute", "rbac": {"rules": rules}}}


def _range(network: str) -> Json:
    address, _, length = network.partition("/")
    return {"address_prefix": address, "prefix_len": int(length)}
