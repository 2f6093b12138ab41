"""After everything else: what was granted was used, and nothing that was asked for was denied."""

from __future__ import annotations

import json

from e2e.kind.release import NAME, NAMESPACE
from tests.e2e.audit_log import asked, used
from tests.e2e.conftest import Audited
from tests.e2e.world import World

OPERATOR = f"{NAMESPACE}:{NAME}"
# Granted for what shows up in no request of the operator's own.
WITHOUT_A_REQUEST = {
    ("update", "moedeployments/finalizers"): "looked at where owners may block deletion",
}


async def test_no_request_was_denied_and_no_grant_is_unused(world: World, audited: Audited) -> None:
    seen = asked(audited.since, audited.without_roles)
    gateways = {each.account for each in seen if each.account.endswith("-gateway")}
    assert gateways
    denied = sorted(
        f"{each.account}: {each.verb} {each.resource}"
        for each in seen
        if not each.allowed and each.account in {OPERATOR, *gateways}
    )
    assert denied == []
    unused = granted(world) - used(seen, OPERATOR) - WITHOUT_A_REQUEST.keys()
    assert sorted(unused) == []
    assert {ask for gateway in gateways for ask in used(seen, gateway)} == {("watch", "configmaps")}


def granted(world: World) -> set[tuple[str, str]]:
    """(verb, resource) of every role that the release binds to the operator."""
    roles = json.loads(
        world.site.record.client("get", "clusterrole,role", "-n", NAMESPACE, "-l", SELECTOR, "-o", "json")
    )["items"]
    bound = [role for role in roles if role["metadata"]["name"] in {NAME, f"{NAME}-lease"}]
    rules = [rule for role in bound for rule in role["rules"]]
    assert len(bound) == 2
    return {(verb, resource) for rule in rules for verb in rule["verbs"] for resource in rule["resources"]}


SELECTOR = f"app.kubernetes.io/instance={NAME}"
