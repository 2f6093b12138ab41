"""The managed gateway as a whole: which objects it is made of, and the intent that its pods follow."""

from __future__ import annotations

from typing import Any

from moe_operator.api.intent import INTENT_KEY, Intent
from moe_operator.api.names import COMPONENT_GATEWAY, gateway_name
from moe_operator.api.policy import OperatorPolicy
from moe_operator.api.spec import MoESpec
from moe_operator.resources.gateway_access import gateway_access
from moe_operator.resources.gateway_deployment import gateway_deployment
from moe_operator.resources.gateway_service import gateway_budget, gateway_service
from moe_operator.resources.ownership import Owner

Obj = dict[str, Any]


def intent_config_map(owner: Owner, intent: Intent) -> Obj:
    """The one object the gateway pods follow."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": owner.metadata(gateway_name(owner.name), COMPONENT_GATEWAY),
        "data": {INTENT_KEY: intent.model_dump_json(by_alias=True)},
    }


def gateway_objects(owner: Owner, spec: MoESpec, policy: OperatorPolicy) -> list[Obj]:
    """Everything but the intent, in the order in which it has to exist."""
    return [
        *gateway_access(owner),
        gateway_budget(owner),
        gateway_deployment(owner, spec, policy),
        gateway_service(owner, spec),
    ]
