"""Request headers that mean something inside the gateway.

A client cannot set those that are ours: they are dropped before the first filter and the first route see
the request, and they do not travel on to an engine.
"""

from __future__ import annotations

from typing import Any

REVISION_PREVIEW = "x-moe-revision-preview"  # a client's: the revision it wants to look at
KEY_ID = "x-moe-key-id"  # set once a key is known; clear the route cache after setting it
SLOT = "x-moe-slot"  # set beside the key's id: the counter of its requests in flight
LANE = "x-moe-lane"  # set for requests that go to a pool of their own
RECEIVED = "x-moe-received"  # set for the waiting room: when the request came, in Unix milliseconds

OURS = (KEY_ID, SLOT, LANE, RECEIVED)

ENVOYS = tuple(
    f"x-envoy-{name}"
    for name in (
        "retry-on", "retry-grpc-on", "max-retries", "retriable-status-codes", "retriable-header-names",
        "upstream-rq-timeout-ms", "upstream-rq-per-try-timeout-ms", "hedge-on-per-try-timeout",
        "upstream-stream-duration-ms", "upstream-alt-stat-name", "force-trace", "attempt-count",
        "expected-rq-timeout-ms", "original-path", "original-url", "decorator-operation",
    )
)  # fmt: skip
"""With these a client inside the cluster could have its prompt sent again where that is not safe."""

Json = dict[str, Any]


def drop_spoofed() -> Json:
    """The early header mutation that drops what only the gateway may say."""
    return {
        "name": "envoy.http.early_header_mutation.header_mutation",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.http.early_header_mutation.header_mutation.v3."
            "HeaderMutation",
            "mutations": [{"remove": name} for name in (*OURS, *ENVOYS)],
        },
    }
