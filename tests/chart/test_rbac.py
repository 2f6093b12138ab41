"""The operator's roles: exactly the verbs that it uses, shown by running it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import pytest
from moe_operator.api import names
from moe_operator.runtime.kopf_app import WATCHED_CHILDREN
from moe_operator.runtime.kube import (
    HTTP_ROUTE,
    INFERENCE_POOL,
    KINDS,
    LEASE,
    MOE_DEPLOYMENT,
    NODE,
    Kind,
    kind_of,
)
from moe_operator.runtime.lease import LeaderLease
from moe_operator.sandbox.api import MemoryApi, MemoryKube

from e2e.chart import render
from tests.simulator import gateway_api
from tests.simulator.scenes import DSV31, fresh_world
from tests.simulator.world import World, moe_deployment

Obj = dict[str, Any]
Grant = tuple[str, str, str]  # API group, resource, verb

VERBS: dict[str, tuple[str, ...]] = {
    "get": ("get",),
    "list": ("list",),
    "watch": ("watch",),
    "create": ("create",),
    "replace": ("update",),
    "patch_json": ("patch",),
    "apply": ("patch", "create"),  # the API server asks for create when there is nothing to patch yet
    "apply_status": ("patch",),
    "delete": ("delete",),
}
KIND_OF_WATCH = (MOE_DEPLOYMENT, NODE, *WATCHED_CHILDREN)


class Recorder:
    """A client that writes down what RBAC would be asked."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.used: set[Grant] = set()
        self.applied: list[Obj] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(self.inner, name)
        return self._recorded(name, found) if name in VERBS else found

    def _recorded(self, call: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        def record(first: Obj | Kind, *rest: Any, **options: Any) -> Any:
            kind = first if isinstance(first, Kind) else kind_of(first)
            resource = f"{kind.plural}/status" if call == "apply_status" else kind.plural
            self.used |= {(kind.group, resource, verb) for verb in VERBS[call]}
            if call == "apply" and not isinstance(first, Kind):
                self.applied.append(first)
            return inner(first, *rest, **options)

        return record


def granted(rules: Iterable[Obj]) -> set[Grant]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def rules(objects: Iterable[Obj], kind: str, name: str, namespace: str | None = None) -> set[Grant]:
    (role,) = (
        o
        for o in objects
        if (o["kind"], o["metadata"]["name"], o["metadata"].get("namespace")) == (kind, name, namespace)
    )
    return granted(role["rules"])


async def a_whole_life(world: World) -> None:
    """Made before its Secret is, led through two gateways, changed often, and deleted."""
    credentials = {"name": "hf"}
    await world.apply(moe_deployment(model={"source": DSV31, "credentialsRef": credentials}))
    await world.until(lambda: world.condition("k3", "PlanAccepted").get("reason") == "ContainerConfigError")
    await world.secret("hf")
    await world.until(lambda: world.stable("k3"))
    await to_another_gateway_and_back(world)
    for number in range(13):
        before = world.status("k3")["activeRevision"]

        def moved(old: str = before) -> bool:
            return world.stable("k3") and world.status("k3")["activeRevision"] != old

        await world.edit("k3", lambda spec, n=number: spec["engine"].update(image=f"vllm:{n}"))
        await world.until(moved, seconds=5.0)
    await world.delete("k3")
    await world.until(lambda: not world.exists("k3"))


async def to_another_gateway_and_back(world: World) -> None:
    world.api.create(gateway_api.CRD)
    world.api.create(gateway_api.POOL_CRD)
    world.neighbours.append(gateway_api.Controller(world.api).step)
    by_a_route = {"httpRouteRef": {"name": "edge"}}
    in_a_pool = {"inferencePool": {"name": "pool", "endpointPicker": {"name": "picker"}}}
    await world.edit("k3", lambda spec: spec.update(gateway={"external": by_a_route}))
    await world.until(lambda: not world.gateway_pods())
    await world.edit("k3", lambda spec: spec.update(gateway={"external": in_a_pool}))
    await world.until(lambda: not world.api.list(HTTP_ROUTE).items)
    await world.annotate("k3", names.ANNOTATION_REFRESH_KEYS, "1")
    await world.edit("k3", lambda spec: spec.update(gateway={}))
    await world.until(lambda: not world.api.list(INFERENCE_POOL).items and world.stable("k3"))


async def a_lease_is_taken_and_given_back(api: MemoryApi) -> set[Grant]:
    recorder = Recorder(MemoryKube(api))

    async def sleep(_: float) -> None: ...

    lease = LeaderLease(
        recorder,  # type: ignore[arg-type]
        "default",
        "me",
        monotonic=lambda: 0.0,
        wall=lambda: datetime(2026, 1, 1, tzinfo=UTC),
        sleep=sleep,
    )
    await lease.acquire()
    await lease.release()
    return recorder.used


@pytest.fixture(scope="module")
def life() -> Recorder:
    """What the operator asked for in one life of one deployment."""
    return asyncio.run(_recorded_life())


async def _recorded_life() -> Recorder:
    world = await fresh_world()
    recorder = Recorder(world.kube)
    world.kube = recorder  # type: ignore[assignment]
    await a_whole_life(world)
    return recorder


def asked(life: Recorder) -> set[Grant]:
    """What was asked, what kopf watches, and what the API server checks behind a write."""
    watches = {(k.group, k.plural, verb) for k in KIND_OF_WATCH for verb in ("list", "watch")}
    handed_on = granted(
        rule for o in life.applied if o["kind"] in {"Role", "ClusterRole"} for rule in o["rules"]
    )
    blocking = {
        (names.GROUP, f"{names.PLURAL}/finalizers", "update")
        for o in life.applied
        for owner in o["metadata"].get("ownerReferences", ())
        if owner["blockOwnerDeletion"]
    }
    return life.used | watches | handed_on | blocking


def test_the_cluster_role_grants_what_is_used_and_no_more(life: Recorder) -> None:
    assert rules(render.objects(), "ClusterRole", "moe-operator") == asked(life)


def test_a_namespaced_operator_writes_in_its_namespaces_only(life: Recorder) -> None:
    objects = render.objects({"watchNamespaces": ["team-a", "team-b"]})
    everywhere = rules(objects, "ClusterRole", "moe-operator")
    inside = rules(objects, "Role", "moe-operator", "team-a")
    assert inside == rules(objects, "Role", "moe-operator", "team-b")
    assert {verb for *_, verb in everywhere} == {"get", "list", "watch"}
    assert everywhere | inside == asked(life)
    assert everywhere - {("", "nodes", "list"), ("", "nodes", "watch"), ("", "namespaces", "get")} == {
        ("", "pods", "list"),
        ("batch", "jobs", "list"),
        (names.GROUP, names.PLURAL, "list"),
    }


async def test_the_lease_role_grants_what_a_lease_needs() -> None:
    used = await a_lease_is_taken_and_given_back(MemoryApi())
    lease_role = rules(render.objects(), "Role", "moe-operator-lease", render.NAMESPACE)
    assert lease_role == used == {(LEASE.group, LEASE.plural, verb) for verb in ("get", "create", "update")}


def test_no_role_of_the_chart_reaches_secrets_or_says_everything() -> None:
    for values in ({}, {"watchNamespaces": ["team-a"]}):
        roles = [o for o in render.objects(values) if o["kind"] in {"Role", "ClusterRole"}]
        for group, resource, verb in granted(rule for role in roles for rule in role["rules"]):
            assert "*" not in (group + resource + verb)
            assert resource not in {"secrets", "pods/exec", "pods/attach", "pods/portforward", "nodes/proxy"}
            assert (
                verb not in {"escalate", "bind", "impersonate", "deletecollection"}
                or resource == names.PLURAL
            )


def test_only_the_operators_account_gets_the_operators_roles() -> None:
    bindings = [o for o in render.objects() if o["kind"] in {"RoleBinding", "ClusterRoleBinding"}]
    account = {"kind": "ServiceAccount", "name": "moe-operator", "namespace": render.NAMESPACE}
    assert [b["subjects"] for b in bindings] == [[account]] * 2


def test_every_granted_resource_is_one_the_operator_knows() -> None:
    known = {(k.group, k.plural) for k in KINDS}
    for group, resource, _ in rules(render.objects(), "ClusterRole", "moe-operator"):
        assert (group, resource.split("/")[0]) in known


def test_users_get_the_verbs_of_their_own_role() -> None:
    objects = render.objects()
    assert {v for *_, v in rules(objects, "ClusterRole", "moe-operator-view")} == {"get", "list", "watch"}
    editors = rules(objects, "ClusterRole", "moe-operator-edit")
    assert (names.GROUP, f"{names.PLURAL}/status", "patch") not in editors
    assert {resource for _, resource, _ in editors} == {names.PLURAL, f"{names.PLURAL}/scale"}
