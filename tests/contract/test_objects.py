"""Creating, reading, replacing and patching single objects."""

from __future__ import annotations

import pytest
from moe_operator.runtime.kube import (
    CONFIG_MAP,
    DEPLOYMENT,
    NAMESPACE,
    POD,
    SERVICE,
    ApiError,
    Obj,
)

from tests.contract.world import ANOTHER, MOE, World, container, refused, version


async def test_a_new_object_gets_what_only_the_server_knows(world: World) -> None:
    made = await world.kube.create(world.deployment())

    meta = made["metadata"]
    assert meta["uid"]
    assert int(meta["resourceVersion"]) > 0
    assert meta["creationTimestamp"].endswith("Z")
    assert meta["generation"] == 1
    assert await world.kube.get(MOE, world.namespace, "moe") == made


async def test_the_server_does_not_take_its_own_fields_from_a_client(world: World) -> None:
    sent = world.deployment(uid="mine", generation=7, creationTimestamp="2001-01-01T00:00:00Z")

    meta = (await world.kube.create(sent))["metadata"]

    assert meta["uid"] != "mine"
    assert meta["generation"] == 1
    assert not meta["creationTimestamp"].startswith("2001")


async def test_an_absent_object_is_not_found(world: World) -> None:
    assert await refused(world.kube.get(POD, world.namespace, "nobody")) == (404, "NotFound")


async def test_a_name_is_taken_once(world: World) -> None:
    await world.kube.create(world.config_map())

    assert await refused(world.kube.create(world.config_map())) == (409, "AlreadyExists")


async def test_a_deleted_name_is_a_new_object_next_time(world: World) -> None:
    first = await world.kube.create(world.config_map())
    await world.kube.delete(CONFIG_MAP, world.namespace, "cm")

    second = await world.kube.create(world.config_map())

    assert first["metadata"]["uid"] != second["metadata"]["uid"]


async def test_every_write_of_any_kind_has_a_newer_version(world: World) -> None:
    first = await world.kube.create(world.config_map())
    second = await world.kube.create(world.pod())
    third = await world.kube.replace({**first, "data": {"a": "2"}})

    assert int(version(first)) < int(version(second)) < int(version(third))


async def test_generated_names_differ(world: World) -> None:
    draft = world.config_map()
    del draft["metadata"]["name"]
    draft["metadata"]["generateName"] = "part-"

    names = {(await world.kube.create(draft))["metadata"]["name"] for _ in range(3)}

    assert len(names) == 3
    assert all(name.startswith("part-") and len(name) > len("part-") for name in names)


async def test_nothing_is_created_in_an_absent_namespace(world: World) -> None:
    lost = world.config_map()
    lost["metadata"]["namespace"] = "absent-namespace"

    assert await refused(world.kube.create(lost)) == (404, "NotFound")
    assert await refused(world.kube.apply(lost, manager="m")) == (404, "NotFound")


async def test_nothing_is_created_in_a_namespace_that_is_going(world: World) -> None:
    await world.kube.create(world.config_map("last", finalizers=["contract.example/hold"]))
    await world.kube.delete(NAMESPACE, None, world.namespace)

    assert await refused(world.kube.create(world.config_map("late"))) == (403, "Forbidden")
    assert await refused(world.kube.apply(world.config_map("late"), manager="m")) == (403, "Forbidden")

    drop = [{"op": "remove", "path": "/metadata/finalizers"}]
    await world.kube.patch_json(CONFIG_MAP, world.namespace, "last", drop)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "Upper"),
        ("name", "under_score"),
        ("name", "x" * 254),
        ("labels", {"k": "v" * 64}),
        ("labels", {"a b": "c"}),
        ("finalizers", ["not/a/name"]),
        ("ownerReferences", [{"apiVersion": "v1", "kind": "Pod", "name": "", "uid": "u"}]),
    ],
)
async def test_bad_metadata_is_invalid(world: World, field: str, value: object) -> None:
    bad = world.config_map()
    bad["metadata"][field] = value

    assert await refused(world.kube.create(bad)) == (422, "Invalid")


async def test_an_answer_is_the_callers_own(world: World) -> None:
    made = await world.kube.create(world.config_map())
    made["data"]["a"] = "changed here only"
    listed = (await world.kube.list(CONFIG_MAP, world.namespace, fields="metadata.name=cm")).items[0]
    listed["metadata"]["name"] = "changed here only"

    kept = await world.kube.get(CONFIG_MAP, world.namespace, "cm")

    assert kept["data"] == {"a": "1"}
    assert kept["metadata"]["name"] == "cm"


async def test_a_replace_needs_the_version_it_was_made_from(world: World) -> None:
    old = await world.kube.create(world.config_map())
    new = await world.kube.replace({**old, "data": {"a": "2"}})

    assert await refused(world.kube.replace({**old, "data": {"a": "3"}})) == (409, "Conflict")
    assert (await world.kube.get(CONFIG_MAP, world.namespace, "cm"))["data"] == {"a": "2"}
    assert (await world.kube.replace({**new, "data": {"a": "3"}}))["data"] == {"a": "3"}


@pytest.mark.parametrize("key", ["", "a/b", "..", "..a", "é", "a" * 254])
async def test_a_config_map_has_the_keys_of_files(world: World, key: str) -> None:
    assert await refused(world.kube.create(world.config_map(data={key: "1"}))) == (422, "Invalid")


async def test_a_patch_may_name_the_uid_but_not_change_it(world: World) -> None:
    made = await world.kube.create(world.config_map())

    def uid(value: str) -> list[Obj]:
        return [{"op": "add", "path": "/metadata/uid", "value": value}]

    patch = world.kube.patch_json
    assert await refused(patch(CONFIG_MAP, world.namespace, "cm", uid(ANOTHER))) == (422, "Invalid")
    assert await patch(CONFIG_MAP, world.namespace, "cm", uid(made["metadata"]["uid"])) == made


async def test_a_new_object_has_no_version_yet(world: World) -> None:
    made = await world.kube.create(world.config_map())
    made["metadata"]["name"] = "copy"

    assert await refused(world.kube.create(made)) == (500, "Unknown")


async def test_a_replace_is_for_one_life_of_an_object(world: World) -> None:
    first = await world.kube.create(world.config_map())
    await world.kube.delete(CONFIG_MAP, world.namespace, "cm")
    second = await world.kube.create(world.config_map())
    first["metadata"]["resourceVersion"] = version(second)

    assert await refused(world.kube.replace(first)) == (409, "Conflict")


async def test_a_custom_object_is_not_replaced_without_a_version(world: World) -> None:
    made = await world.kube.create(world.deployment())
    del made["metadata"]["resourceVersion"]

    assert await refused(world.kube.replace(made)) == (422, "Invalid")


async def test_a_replace_that_changes_nothing_is_no_write(world: World) -> None:
    made = await world.kube.create(world.config_map())

    assert version(await world.kube.replace(made)) == version(made)


async def test_generation_counts_changes_of_the_spec_only(world: World) -> None:
    made = await world.kube.create(world.deployment())
    made["metadata"]["labels"] = {"a": "b"}
    labelled = await world.kube.replace(made)
    reported = await world.kube.apply_status(world.status(observedGeneration=1), manager="s")
    reported["spec"]["replicas"] = 2
    scaled = await world.kube.replace(reported)

    generations = [o["metadata"]["generation"] for o in (labelled, reported, scaled)]
    assert generations == [1, 1, 2]


async def test_a_write_through_the_main_door_leaves_the_status_alone(world: World) -> None:
    await world.kube.create({**world.deployment(), "status": {"observedGeneration": 8}})
    made = await world.kube.apply_status(world.status(observedGeneration=1), manager="s")
    assert made["status"]["observedGeneration"] == 1

    made["status"] = {"observedGeneration": 9}
    made["spec"]["replicas"] = 3
    new = await world.kube.replace(made)

    assert (new["status"]["observedGeneration"], new["spec"]["replicas"]) == (1, 3)


async def test_a_json_patch_is_all_or_nothing(world: World) -> None:
    await world.kube.create(world.config_map(data={"a": "1"}, annotations={"b/c": "2"}))
    good = [
        {"op": "test", "path": "/data/a", "value": "1"},
        {"op": "replace", "path": "/data/a", "value": "9"},
        {"op": "add", "path": "/data/new", "value": "3"},
        {"op": "move", "from": "/metadata/annotations/b~1c", "path": "/data/d"},
    ]
    patched = await world.kube.patch_json(CONFIG_MAP, world.namespace, "cm", good)
    assert patched["data"] == {"a": "9", "new": "3", "d": "2"}

    for bad in (
        {"op": "test", "path": "/data/a", "value": "other"},
        {"op": "remove", "path": "/data/absent"},
        {"op": "replace", "path": "/data/absent/deeper", "value": "x"},
    ):
        change = [{"op": "add", "path": "/data/half", "value": "done"}, bad]
        call = world.kube.patch_json(CONFIG_MAP, world.namespace, "cm", change)
        assert (await refused(call))[0] == 422
    assert await world.kube.get(CONFIG_MAP, world.namespace, "cm") == patched


async def test_a_json_patch_can_insist_on_a_version(world: World) -> None:
    made = await world.kube.create(world.config_map(finalizers=["contract.example/a"]))

    def drop(insist: str) -> list[Obj]:
        return [
            {"op": "test", "path": "/metadata/resourceVersion", "value": insist},
            {"op": "remove", "path": "/metadata/finalizers"},
        ]

    assert (await refused(world.kube.patch_json(CONFIG_MAP, world.namespace, "cm", drop("1"))))[0] == 422
    done = await world.kube.patch_json(CONFIG_MAP, world.namespace, "cm", drop(version(made)))
    assert "finalizers" not in done["metadata"]


async def test_a_patch_of_an_absent_object_is_not_found(world: World) -> None:
    call = world.kube.patch_json(CONFIG_MAP, world.namespace, "nobody", [])

    assert await refused(call) == (404, "NotFound")


async def test_a_sealed_config_map_keeps_its_data(world: World) -> None:
    made = await world.kube.create({**world.config_map(), "immutable": True})

    assert await refused(world.kube.replace({**made, "data": {"a": "2"}})) == (422, "Invalid")
    assert await refused(world.kube.replace({**made, "immutable": False})) == (422, "Invalid")
    made["metadata"]["labels"] = {"still": "free"}
    assert (await world.kube.replace(made))["metadata"]["labels"] == {"still": "free"}


async def test_a_pods_spec_is_fixed_but_for_its_images(world: World) -> None:
    made = await world.kube.create(world.pod())
    made["spec"]["containers"][0]["image"] = "registry.example/image:2"
    made = await world.kube.replace(made)
    assert made["spec"]["containers"][0]["image"] == "registry.example/image:2"

    changed = world.pod("pod", container("main", image="registry.example/image:2", args=["--more"]))
    assert await refused(world.kube.apply(changed, manager="m")) == (422, "Invalid")


async def test_a_deployments_selector_is_fixed(world: World) -> None:
    labels = {"app": "x"}
    template = {"metadata": {"labels": {**labels, "b": "c"}}, "spec": {"containers": [container("main")]}}
    made = await world.kube.create(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "d", "namespace": world.namespace},
            "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
        }
    )
    made = await world.kube.get(DEPLOYMENT, world.namespace, "d")
    made["spec"]["selector"] = {"matchLabels": {"b": "c"}}
    assert await refused(world.kube.replace(made)) in {(422, "Invalid"), (409, "Conflict")}
    assert (await world.kube.get(DEPLOYMENT, world.namespace, "d"))["spec"]["selector"] == {
        "matchLabels": labels
    }


@pytest.mark.parametrize(
    "broken",
    [
        {"containers": []},
        {"containers": [container("UPPER")]},
        {"containers": [container("a"), container("a")]},
        {"containers": [{"name": "a"}]},
        {"containers": [container("a", ports=[{"containerPort": 0}])]},
        {"containers": [container("a", volumeMounts=[{"name": "absent", "mountPath": "/x"}])]},
        {"containers": [container("a", resources={"limits": {"cpu": "1 core"}})]},
        {"containers": [container("a", resources={"requests": {"nvidia.com/gpu": "8"}})]},
        {"restartPolicy": "Sometimes"},
        {"hostname": "x" * 64},
    ],
)
async def test_a_pod_that_cannot_run_is_refused(world: World, broken: Obj) -> None:
    pod = world.pod()
    pod["spec"] |= broken

    assert (await refused(world.kube.create(pod)))[0] in (400, 422)


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # that is the point
async def test_a_config_map_has_at_most_a_mebibyte(world: World) -> None:
    huge = world.config_map(data={"a": "x" * (1024 * 1024 + 1)})

    assert (await refused(world.kube.create(huge)))[0] == 422


async def test_defaults_are_part_of_what_is_read_back(world: World) -> None:
    ports = [{"containerPort": 80}]
    pod = await world.kube.create(world.pod("pod", container("main", ports=ports)))
    service = await world.kube.create(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "s", "namespace": world.namespace},
            "spec": {"selector": {"a": "b"}, "ports": [{"port": 80}]},
        }
    )

    main = pod["spec"]["containers"][0]
    assert pod["spec"]["restartPolicy"] == "Always"
    assert (main["imagePullPolicy"], main["ports"][0]["protocol"]) == ("IfNotPresent", "TCP")
    assert pod["status"]["phase"] == "Pending"
    assert service["spec"]["clusterIP"]
    assert service["spec"]["ports"][0]["targetPort"] == 80


async def test_a_service_keeps_its_address(world: World) -> None:
    service: Obj = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "s", "namespace": world.namespace},
        "spec": {"ports": [{"port": 80}]},
    }
    first = await world.kube.apply(service, manager="m")
    service["spec"]["ports"] = [{"port": 81}]
    second = await world.kube.apply(service, manager="m")

    assert first["spec"]["clusterIP"] == second["spec"]["clusterIP"]
    second["spec"]["clusterIP"] = "10.96.77.77"
    assert await refused(world.kube.replace(second)) == (422, "Invalid")
    assert (await world.kube.get(SERVICE, world.namespace, "s"))["spec"]["ports"][0]["port"] == 81


async def test_a_custom_object_is_pruned_and_defaulted_by_its_schema(world: World) -> None:
    sent = world.deployment()
    sent["spec"]["unheardOf"] = {"a": 1}
    sent["alsoUnknown"] = True

    made = await world.kube.create(sent)

    assert "unheardOf" not in made["spec"]
    assert "alsoUnknown" not in made
    assert made["spec"]["replicas"] == 1


async def test_a_custom_object_that_breaks_its_schema_names_the_field(world: World) -> None:
    bad = world.deployment()
    bad["spec"]["engine"]["type"] = "Abacus"

    with pytest.raises(ApiError) as refusal:
        await world.kube.create(bad)

    assert (refusal.value.status, refusal.value.reason) == (422, "Invalid")
    assert "spec.engine.type" in refusal.value.message
