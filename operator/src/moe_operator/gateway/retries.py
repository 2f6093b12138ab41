"""When a request is sent again: only while no engine can have started on it.

Connect failure, a stream that was refused, a reset before anything was sent, and a 503, with which an engine
(or the waiting room) says that it took nothing. Never a reset or a 5xx after that: a prompt that kills
engines must not be replayed onto every one of them. A final 503 of the waiting room carries
``x-envoy-ratelimited``, which Envoy does not send again.
"""

from __future__ import annotations

from typing import Any

ATTEMPTS = 6  # beside the first; two dead engines, the waiting room and a late standby fit in
FINAL = "x-envoy-ratelimited"  # response header of the waiting room: do not ask again

Json = dict[str, Any]

POLICY: Json = {
    "retry_on": "connect-failure,refused-stream,reset-before-request,retriable-status-codes",
    "retriable_status_codes": [503],
    "num_retries": ATTEMPTS,
    "retry_back_off": {"base_interval": "0.005s", "max_interval": "0.25s"},  # with full jitter
    "retry_host_predicate": [
        {
            "name": "envoy.retry_host_predicates.previous_hosts",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3."
                "PreviousHostsPredicate"
            },
        }
    ],
    "host_selection_retry_max_attempts": 5,
}
