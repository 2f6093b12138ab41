"""Server-side apply: what is merged, what is pruned, who owns what."""

from __future__ import annotations

import pytest
from moe_operator.runtime.kube import CONFIG_MAP, POD, ApiError, Obj

from tests.contract.world import (
    ANOTHER,
    MOE,
    World,
    condition,
    container,
    managers,
    owned_by,
    refused,
    version,
)


async def test_apply_creates_what_is_absent(world: World) -> None:
    made = await world.kube.apply(world.config_map(), manager="m")

    assert made["data"] == {"a": "1"}
    assert managers(made) == {("m", "Apply", "")}


async def test_applying_twice_is_applying_once(world: World) -> None:
    pod = world.pod(
        "pod", container("main", env=[{"name": "A", "value": "1"}], ports=[{"containerPort": 80}])
    )
    first = await world.kube.apply(pod, manager="m")

    assert await world.kube.apply(pod, manager="m") == first


async def test_a_field_that_is_no_longer_applied_goes(world: World) -> None:
    await world.kube.apply(world.config_map(data={"a": "1", "b": "2"}, labels={"x": "y"}), manager="m")

    new = await world.kube.apply(world.config_map(data={"a": "1"}), manager="m")

    assert new["data"] == {"a": "1"}
    assert "labels" not in new["metadata"]
    assert new["metadata"]["name"] == "cm"


async def test_a_field_that_somebody_else_wrote_stays(world: World) -> None:
    made = await world.kube.apply(world.config_map(data={"a": "1"}), manager="m")
    made["data"]["by-hand"] = "2"
    await world.kube.replace(made)

    new = await world.kube.apply(world.config_map(data={"a": "3"}), manager="m")

    assert new["data"] == {"a": "3", "by-hand": "2"}


async def test_another_managers_value_is_not_overwritten_without_force(world: World) -> None:
    await world.kube.apply(world.config_map(data={"a": "1"}), manager="first")

    with pytest.raises(ApiError) as refusal:
        await world.kube.apply(world.config_map(data={"a": "2"}), manager="second", force=False)

    assert (refusal.value.status, refusal.value.reason) == (409, "Conflict")
    assert '"first"' in refusal.value.message
    assert ".data.a" in refusal.value.message
    assert (await world.kube.get(CONFIG_MAP, world.namespace, "cm"))["data"] == {"a": "1"}


async def test_force_takes_the_field_away_from_its_owner(world: World) -> None:
    await world.kube.apply(world.config_map(data={"a": "1", "b": "1"}), manager="first")
    await world.kube.apply(world.config_map(data={"a": "2"}), manager="second")

    call = world.kube.apply(world.config_map(data={"a": "1", "b": "1"}), manager="first", force=False)
    assert await refused(call) == (409, "Conflict")

    left = await world.kube.apply(world.config_map(data={}), manager="first")
    assert left["data"] == {"a": "2"}  # b went with its owner, a did not


async def test_a_value_that_two_agree_on_goes_with_the_last(world: World) -> None:
    await world.kube.apply(world.config_map(data={"a": "1"}), manager="first")
    shared = await world.kube.apply(world.config_map(data={"a": "1"}), manager="second", force=False)
    assert managers(shared) == {("first", "Apply", ""), ("second", "Apply", "")}

    kept = await world.kube.apply(world.config_map(data={}), manager="first")
    assert kept["data"] == {"a": "1"}
    gone = await world.kube.apply(world.config_map(data={}), manager="second")
    assert not gone.get("data")


async def test_a_write_by_hand_takes_ownership(world: World) -> None:
    made = await world.kube.apply(world.config_map(data={"a": "1"}), manager="m")
    made["data"]["a"] = "2"
    await world.kube.replace(made)

    call = world.kube.apply(world.config_map(data={"a": "1"}), manager="m", force=False)
    assert await refused(call) == (409, "Conflict")
    left = await world.kube.apply(world.config_map(data={}), manager="m")
    assert left["data"] == {"a": "2"}


async def test_containers_merge_by_name(world: World) -> None:
    both = world.pod("pod", container("a"), container("b"))
    await world.kube.apply(both, manager="m")
    other = world.pod("pod", container("b", image="registry.example/image:2"))

    call = world.kube.apply(other, manager="n", force=False)
    assert await refused(call) == (409, "Conflict")
    merged = await world.kube.apply(other, manager="n")

    assert [(c["name"], c["image"]) for c in merged["spec"]["containers"]] == [
        ("a", "registry.example/image:1"),
        ("b", "registry.example/image:2"),
    ]


async def test_an_item_leaves_with_the_defaults_it_was_given(world: World) -> None:
    """The server's defaults in a port are nobody's; they do not keep the port alive."""

    def service(*ports: int) -> Obj:
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "s", "namespace": world.namespace},
            "spec": {"ports": [{"name": f"p{port}", "port": port} for port in ports]},
        }

    await world.kube.apply(service(80, 81), manager="m")
    new = await world.kube.apply(service(81), manager="m")

    assert [port["port"] for port in new["spec"]["ports"]] == [81]


async def test_two_managers_share_a_keyed_list(world: World) -> None:
    def service(port: int) -> Obj:
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "s", "namespace": world.namespace},
            "spec": {"ports": [{"name": f"p{port}", "port": port}]},
        }

    await world.kube.apply(service(80), manager="m")
    both = await world.kube.apply(service(81), manager="n", force=False)
    assert sorted(port["port"] for port in both["spec"]["ports"]) == [80, 81]

    moved = await world.kube.apply(service(82), manager="m", force=False)
    assert sorted(port["port"] for port in moved["spec"]["ports"]) == [81, 82]


async def test_a_list_without_keys_is_replaced_whole(world: World) -> None:
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "r", "namespace": world.namespace},
    }

    def rules(*verbs: str) -> Obj:
        return {**role, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": list(verbs)}]}

    await world.kube.apply(rules("get", "list"), manager="m")
    assert await refused(world.kube.apply(rules("watch"), manager="n", force=False)) == (409, "Conflict")
    new = await world.kube.apply(rules("watch"), manager="n")

    assert new["rules"] == rules("watch")["rules"]


async def test_finalizers_are_a_set_that_managers_share(world: World) -> None:
    await world.kube.apply(world.config_map(finalizers=["x.example/a"]), manager="m")
    both = await world.kube.apply(world.config_map(finalizers=["x.example/b"]), manager="n", force=False)
    assert set(both["metadata"]["finalizers"]) == {"x.example/a", "x.example/b"}

    one = await world.kube.apply(world.config_map(), manager="m")
    assert one["metadata"]["finalizers"] == ["x.example/b"]
    await world.kube.apply(world.config_map(), manager="n")


async def test_owner_references_merge_by_uid(world: World) -> None:
    first = await world.kube.create(world.config_map("first"))
    second = await world.kube.create(world.config_map("second"))
    await world.kube.apply(world.config_map(ownerReferences=[owned_by(first)]), manager="m")

    both = await world.kube.apply(
        world.config_map(ownerReferences=[owned_by(second)]), manager="n", force=False
    )

    assert {ref["name"] for ref in both["metadata"]["ownerReferences"]} == {"first", "second"}


async def test_the_status_is_applied_through_its_own_door(world: World) -> None:
    await world.kube.create(world.deployment())
    change = {**world.status(observedGeneration=1), "spec": {"replicas": 7}}
    change["metadata"]["labels"] = {"not": "here"}

    new = await world.kube.apply_status(change, manager="s")

    assert new["status"]["observedGeneration"] == 1
    assert new["spec"]["replicas"] == 1
    assert "labels" not in new["metadata"]
    assert ("s", "Apply", "status") in managers(new)


async def test_the_main_door_does_not_apply_a_status(world: World) -> None:
    made = await world.kube.apply({**world.deployment(), "status": {"observedGeneration": 5}}, manager="m")

    assert "observedGeneration" not in made.get("status", {})


async def test_the_status_of_an_absent_object_is_not_found(world: World) -> None:
    call = world.kube.apply_status(world.status("nobody", observedGeneration=1), manager="s")

    assert await refused(call) == (404, "NotFound")


async def test_a_status_that_says_the_same_is_no_write(world: World) -> None:
    await world.kube.create(world.deployment())
    status = world.status(observedGeneration=1, conditions=[condition("Ready")])
    first = await world.kube.apply_status(status, manager="s")

    assert await world.kube.apply_status(status, manager="s") == first


async def test_a_status_write_can_insist_on_a_version(world: World) -> None:
    made = await world.kube.create(world.deployment())
    await world.kube.apply_status(world.status(observedGeneration=1), manager="s")
    late = world.status(observedGeneration=2)
    late["metadata"]["resourceVersion"] = version(made)

    assert await refused(world.kube.apply_status(late, manager="s")) == (409, "Conflict")
    now = await world.kube.get(MOE, world.namespace, "moe")
    assert now["status"]["observedGeneration"] == 1
    late["metadata"]["resourceVersion"] = version(now)
    assert (await world.kube.apply_status(late, manager="s"))["status"]["observedGeneration"] == 2


async def test_conditions_merge_by_type(world: World) -> None:
    await world.kube.create(world.deployment())
    await world.kube.apply_status(
        world.status(conditions=[condition("Ready"), condition("Placed")]), manager="s"
    )
    both = await world.kube.apply_status(world.status(conditions=[condition("Audited")]), manager="other")
    assert [c["type"] for c in both["status"]["conditions"]] == ["Ready", "Placed", "Audited"]

    fewer = await world.kube.apply_status(world.status(conditions=[condition("Ready", "False")]), manager="s")
    assert [(c["type"], c["status"]) for c in fewer["status"]["conditions"]] == [
        ("Ready", "False"),
        ("Audited", "True"),
    ]


async def test_a_version_in_an_apply_is_a_precondition(world: World) -> None:
    made = await world.kube.apply(world.config_map(data={"a": "1"}), manager="m")
    await world.kube.apply(world.config_map(data={"a": "2"}), manager="m")

    late = world.config_map(data={"a": "3"}, resourceVersion=version(made))
    assert await refused(world.kube.apply(late, manager="m")) == (409, "Conflict")


async def test_an_apply_for_another_life_is_refused(world: World) -> None:
    other_life = world.config_map(uid=ANOTHER)
    assert await refused(world.kube.apply(other_life, manager="m")) == (409, "Conflict")
    await world.kube.apply(world.config_map(), manager="m")

    assert await refused(world.kube.apply(other_life, manager="m")) == (422, "Invalid")


async def test_a_custom_objects_status_door_does_not_look_at_the_uid(world: World) -> None:
    """What keeps a status from reaching another life is the version it was decided from."""
    made = await world.kube.create(world.deployment())
    status = world.status(observedGeneration=1)
    status["metadata"]["uid"] = ANOTHER

    new = await world.kube.apply_status(status, manager="s")

    assert new["metadata"]["uid"] == made["metadata"]["uid"]
    assert new["status"]["observedGeneration"] == 1


async def test_nobody_applies(world: World) -> None:
    assert await refused(world.kube.apply(world.config_map(), manager="")) == (422, "Invalid")
    assert await refused(world.kube.apply(world.config_map(), manager="m" * 129)) == (422, "Invalid")


async def test_managed_fields_are_not_the_clients_to_apply(world: World) -> None:
    made = await world.kube.apply(world.config_map(), manager="m")
    echo = world.config_map(managedFields=made["metadata"]["managedFields"])

    assert await refused(world.kube.apply(echo, manager="m")) == (400, "BadRequest")


async def test_defaults_belong_to_nobody(world: World) -> None:
    made = await world.kube.apply(world.deployment(), manager="m")

    (entry,) = made["metadata"]["managedFields"]
    assert made["spec"]["replicas"] == 1
    assert "f:replicas" not in entry["fieldsV1"]["f:spec"]
    assert entry["fieldsV1"]["f:spec"]["f:engine"] == {"f:image": {}, "f:type": {}}


async def test_what_is_owned_is_spelled_as_fields_v1(world: World) -> None:
    made = await world.kube.apply(
        world.config_map(data={"a": "1"}, labels={"x/y": "z"}, finalizers=["x.example/a"]), manager="m"
    )

    (entry,) = made["metadata"]["managedFields"]
    assert (entry["apiVersion"], entry["fieldsType"]) == ("v1", "FieldsV1")
    fields = entry["fieldsV1"]
    assert fields["f:data"]["f:a"] == {}
    assert fields["f:metadata"]["f:labels"]["f:x/y"] == {}
    assert fields["f:metadata"]["f:finalizers"]['v:"x.example/a"'] == {}
    await world.kube.apply(world.config_map(), manager="m")


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"spec": {"unheardOf": 1}}, ".spec.unheardOf: field not declared in schema"),
        ({"alsoUnknown": True}, ".alsoUnknown: field not declared in schema"),
        ({"status": {"unheardOf": 1}}, ".status.unheardOf: field not declared in schema"),
        ({"spec": {"replicas": "1"}}, ".spec.replicas: expected numeric (int or float), got "),
        ({"spec": {"engine": "vLLM"}}, ".spec.engine: expected map, got "),
        ({"spec": {"engine": {"env": {"A": "1"}}}}, ".spec.engine.env: expected list, got "),
        ({"spec": {"engine": {"env": [{"value": "1"}]}}}, ".spec.engine.env: element 0: "),
        ({"spec": {"engine": {"env": [{"name": "A"}, {"name": "A"}]}}}, ".spec.engine.env"),
        ({"metadata": {"labels": ["a"]}}, ".metadata.labels: "),
    ],
)
async def test_what_is_not_of_the_schema_cannot_be_applied(world: World, part: Obj, words: str) -> None:
    """Neither pruned nor judged field by field: the whole configuration is refused, through any door."""
    await world.kube.create(world.deployment())
    sent = world.deployment()
    sent["metadata"] |= part.get("metadata", {})
    sent |= {name: value for name, value in part.items() if name != "metadata"}

    for apply in (world.kube.apply, world.kube.apply_status):
        with pytest.raises(ApiError) as refusal:
            await apply(sent, manager="m")
        assert (refusal.value.status, refusal.value.reason) == (500, "Unknown")
        assert refusal.value.message.startswith("failed to create typed patch object (")
        assert words in refusal.value.message


async def test_a_change_of_the_spec_is_validated_when_applied(world: World) -> None:
    await world.kube.apply(world.deployment(), manager="m")
    bad = world.deployment()
    bad["spec"]["replicas"] = -1

    assert await refused(world.kube.apply(bad, manager="m")) == (422, "Invalid")


async def test_a_pod_status_is_reported_condition_by_condition(world: World) -> None:
    await world.kube.create(world.pod())
    status = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "pod", "namespace": world.namespace},
        "status": {"conditions": [{"type": "example.com/Ready", "status": "True"}]},
    }

    new = await world.kube.apply_status(status, manager="gate")

    assert [c["type"] for c in new["status"]["conditions"]] == ["example.com/Ready"]
    assert (await world.kube.get(POD, world.namespace, "pod"))["status"]["phase"] == "Pending"
