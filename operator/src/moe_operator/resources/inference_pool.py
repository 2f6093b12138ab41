"""Behind a gateway that the user brings: an InferencePool of the leaders that serve.

A pool has one selector and no weights, so all of a deployment's traffic goes to one revision, and a change of
revision is one change of the selector. It selects by revision and by the mark of leaders that serve: a leader
that has not proved itself, or is on its way out, is in no pool. HTTPRoutes to it are the user's, and so is
the endpoint picker, which chooses among the leaders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moe_operator.api.names import (
    ANNOTATION_POOL_STANDBY,
    ANNOTATION_ROUTE_GENERATION,
    ANNOTATION_ROUTE_SINCE,
    COMPONENT_GATEWAY,
    PORT_ENGINE_HTTP,
)
from moe_operator.api.spec import EndpointPicker, InferencePoolRef
from moe_operator.resources.http_route import serving_leaders
from moe_operator.resources.ownership import Owner

Obj = dict[str, Any]
INFERENCE_API = "inference.networking.k8s.io"


def inference_pool(
    owner: Owner, to: InferencePoolRef, weights: Mapping[str, int], generation: int, since: str
) -> Obj:
    """Build the pool of the revision with a weight; ``generation`` and ``since`` say what it stands for.

    ``weights``: revision → share, exactly one of them more than 0. The others stand by.
    """
    [selected] = (revision for revision, weight in weights.items() if weight)
    standby = ",".join(sorted(weights.keys() - {selected}))
    stands_for = {
        ANNOTATION_ROUTE_GENERATION: str(generation),
        ANNOTATION_ROUTE_SINCE: since,
        **({ANNOTATION_POOL_STANDBY: standby} if standby else {}),
    }
    return {
        "apiVersion": f"{INFERENCE_API}/v1",
        "kind": "InferencePool",
        "metadata": owner.metadata(to.name, COMPONENT_GATEWAY, annotations=stands_for),
        "spec": {
            "selector": {"matchLabels": serving_leaders(owner, selected)},
            "targetPorts": [{"number": PORT_ENGINE_HTTP}],
            "endpointPickerRef": _picker(to.endpoint_picker),
        },
    }


def _picker(picker: EndpointPicker) -> Obj:
    return {
        "group": "",
        "kind": "Service",
        "name": picker.name,
        "port": {"number": picker.port},
        "failureMode": picker.failure_mode,
    }
