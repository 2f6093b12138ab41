"""How a group leaves without losing a request.

No new requests first (weight 0, so that it can still step in when everything else is down, or marked as
leaving beside groups of its revision that stay; running streams go on), then out of
the gateways' configuration once nothing runs on it or the drain time is over, then its pods. Each step waits
until every gateway pod has acknowledged the one before: a lagging gateway would keep sending to it. All of
it is read from the intent that was written and from what the gateways answered; nothing is remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from moe_operator.api.intent import Ack, Endpoint, Intent


class Leave(Enum):
    """The next step of a group that is to go."""

    STANDBY = "standby"  # stay in the configuration with weight 0
    OUT = "out"  # leave the configuration
    DELETE = "delete"  # nobody sends to it any more


def next_leave(
    endpoint: Endpoint | None,
    intent: Intent | None,
    acks: Sequence[Ack],
    overdue: bool,
    draining: Sequence[Ack] = (),
) -> Leave:
    """Decide one step.

    ``acks``: of every gateway pod that serves; ``draining``: of those on their way out, whose streams count
    but whose configuration does not; ``overdue``: the drain time is over.
    """
    if endpoint is None or intent is None:
        return Leave.DELETE
    weight = _weight(intent, endpoint)
    acked = all(ack.generation >= intent.generation for ack in acks)
    if weight is None:
        return Leave.DELETE if acked or overdue else Leave.OUT
    if overdue:
        return Leave.OUT
    if weight > 0 or not acked:
        return Leave.STANDBY
    return Leave.STANDBY if _running(endpoint, [*acks, *draining]) else Leave.OUT


def _weight(intent: Intent, endpoint: Endpoint) -> int | None:
    """Share of new requests that the endpoint's colour gets; None when the endpoint is in no colour."""
    for colour in intent.colours:
        for known in colour.endpoints:
            if (known.address, known.port) == (endpoint.address, endpoint.port):
                return 0 if known.leaving else colour.weight
    return None


def healthy_everywhere(endpoints: Sequence[Endpoint], intent: Intent, acks: Sequence[Ack]) -> bool:
    """Whether every gateway pod runs ``intent`` and finds every endpoint healthy; False without gateways."""
    wanted = {(e.address, e.port) for e in endpoints}
    return bool(acks) and all(
        ack.accepted
        and ack.generation >= intent.generation
        and wanted <= {(h.address, h.port) for h in ack.hosts if h.healthy}
        for ack in acks
    )


def _running(endpoint: Endpoint, acks: Sequence[Ack]) -> int:
    return sum(
        host.active_requests
        for ack in acks
        for host in ack.hosts
        if (host.address, host.port) == (endpoint.address, endpoint.port)
    )
