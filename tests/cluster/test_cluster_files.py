"""What the nodes are made from: kind's configuration, the pod network, the images, the OCI descriptions."""

import json
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster import control_images, rootfs
from e2e.cluster.kind_config import AUDIT_POLICY, render
from e2e.cluster.oci_runtime_shim import option, rewrite
from e2e.cluster.record import Record
from e2e.cluster.settings import ClusterSpec, Folders, Mount
from e2e.cluster.source import Source
from e2e.cluster.topology import load
from e2e.cluster.wiring import WiredNode, conflist, script

H20 = ClusterSpec(load("h20"))
AUDIT_ON_HOST = Path("/state/audit.yaml")
A, B, C = (WiredNode(f"n{i}", f"10.244.{i}.0/24", f"172.18.0.{i + 2}") for i in range(3))


def rendered(spec: ClusterSpec, source: Source, *, cgroup_v1: bool = False) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(render(spec, source, AUDIT_ON_HOST, cgroup_v1=cgroup_v1))
    return config


def patches(config: dict[str, Any]) -> list[dict[str, Any]]:
    return [yaml.safe_load(text) for text in config["kubeadmConfigPatches"]]


def test_a_built_image_gets_no_network_add_on_and_a_worker_per_node_of_the_topology() -> None:
    config = rendered(H20, Source.BUILD)
    assert config["networking"] == {"podSubnet": "10.244.0.0/16", "disableDefaultCNI": True}
    assert [node["role"] for node in config["nodes"]] == ["control-plane", *["worker"] * 4]


def test_a_pulled_image_keeps_its_network_add_on() -> None:
    assert rendered(H20, Source.REGISTRY)["networking"]["disableDefaultCNI"] is False


def test_the_kubelet_is_told_to_accept_cgroup_v1_only_where_it_is() -> None:
    told = {"kind": "KubeletConfiguration", "failCgroupV1": False}
    assert told in patches(rendered(H20, Source.BUILD, cgroup_v1=True))
    assert told not in patches(rendered(H20, Source.BUILD))


def test_the_api_server_reads_the_audit_policy_where_the_node_mounts_it() -> None:
    config = rendered(H20, Source.BUILD)
    (api_server,) = [
        patch["apiServer"] for patch in patches(config) if patch["kind"] == "ClusterConfiguration"
    ]
    (mount,) = config["nodes"][0]["extraMounts"]
    arguments = {argument["name"]: argument["value"] for argument in api_server["extraArgs"]}
    inside = arguments["audit-policy-file"]
    assert mount == {"hostPath": "/state/audit.yaml", "containerPath": inside, "readOnly": True}
    for path in arguments.values():
        assert any(path.startswith(volume["mountPath"] + "/") for volume in api_server["extraVolumes"])


def test_the_audit_policy_keeps_bodies_out() -> None:
    policy = yaml.safe_load(AUDIT_POLICY.read_text())
    assert {rule["level"] for rule in policy["rules"]} == {"None", "Metadata"}


def test_mounts_reach_every_worker_read_only_and_not_the_control_plane() -> None:
    spec = ClusterSpec(load("h20"), (Mount.parse("/srv/models:/models"),))
    control_plane, *workers = rendered(spec, Source.BUILD)["nodes"]
    assert "/models" not in [mount["containerPath"] for mount in control_plane["extraMounts"]]
    expected = [{"hostPath": "/srv/models", "containerPath": "/models", "readOnly": True}]
    assert [worker["extraMounts"] for worker in workers] == [expected] * 4


@pytest.mark.parametrize("text", ["", "/a", "/a:b", "a:/b", ":"])
def test_a_mount_is_two_absolute_paths(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:NODE"):
        Mount.parse(text)


def test_a_cluster_is_another_with_another_topology_image_or_mount() -> None:
    digests = {
        H20.digest(image="1"),
        H20.digest(image="2"),
        ClusterSpec(load("nvl72")).digest(image="1"),
        ClusterSpec(load("h20"), (Mount("/a", "/b"),)).digest(image="1"),
    }
    assert len(digests) == 4
    assert ClusterSpec(load("h20")).digest(image="1") in digests


@pytest.mark.parametrize(
    ("environment", "root"),
    [
        ({"MOE_CACHE_DIR": "/big/disk"}, "/big/disk/cluster"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/moe-operator/cluster"),
        ({"MOE_CACHE_DIR": "/big/disk", "XDG_CACHE_HOME": "/x"}, "/big/disk/cluster"),
    ],
)
def test_the_cache_lies_where_the_environment_says(environment: dict[str, str], root: str) -> None:
    assert Folders.from_environment(environment).root == Path(root)


def test_a_record_is_read_as_it_was_written_and_absent_before(tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    folders.state.mkdir()
    assert Record.read(folders) is None
    record = Record("d1", "moe-node:1", Source.BUILD, "/k", "/bin/kind", "/bin/kubectl", "/bin/helm")
    record.write(folders)
    assert Record.read(folders) == record
    assert [path.name for path in folders.state.iterdir()] == ["cluster.json"]


def test_a_node_routes_to_every_other_node_and_not_to_itself() -> None:
    routes = [
        line for line in script(A, [A, B, C], "10.244.0.0/16").splitlines() if line.startswith("ip route")
    ]
    assert routes == [
        "ip route replace 10.244.1.0/24 via 172.18.0.3",
        "ip route replace 10.244.2.0/24 via 172.18.0.4",
    ]


def test_a_node_hides_its_pods_from_all_but_the_pod_network_and_only_once() -> None:
    rule = "POSTROUTING -s 10.244.1.0/24 ! -d 10.244.0.0/16 -m addrtype ! --dst-type LOCAL -j MASQUERADE"
    assert f"iptables -t nat -C {rule} 2>/dev/null || iptables -t nat -A {rule}" in script(
        B, [A, B], "10.244.0.0/16"
    )


def test_a_node_hands_out_addresses_of_its_own_range() -> None:
    link, ports = json.loads(conflist("10.244.3.0/24"))["plugins"]
    assert link["ipam"]["ranges"] == [[{"subnet": "10.244.3.0/24"}]]
    assert (link["type"], ports["type"]) == ("ptp", "portmap")


def test_the_wiring_script_writes_the_configuration_whole(tmp_path: Path) -> None:
    """Run by a real shell, with the programs it calls replaced by ones that do nothing."""
    text = script(A, [A, B], "10.244.0.0/16").replace("/etc/cni/net.d", str(tmp_path))
    for name in ("ip", "iptables"):
        stub = tmp_path / name
        stub.write_text("#!/bin/sh\n")
        stub.chmod(stub.stat().st_mode | stat.S_IXUSR)
    subprocess.run(
        ["/bin/sh", "-s"], input=text, text=True, check=True, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}
    )
    (written,) = tmp_path.glob("*.conflist*")
    assert json.loads(written.read_text()) == json.loads(conflist(A.pod_cidr))


LISTED = [f"registry.example/{name}:v1" for name in control_images.COMPONENTS if name != "coredns"]


def test_images_are_known_by_the_last_part_of_the_name_that_kubeadm_prints() -> None:
    images = control_images.by_component([*LISTED, "registry.example:5000/coredns/coredns:v1.14.2"])
    assert images["coredns"] == "registry.example:5000/coredns/coredns:v1.14.2"
    assert images["etcd"] == "registry.example/etcd:v1"


@pytest.mark.parametrize("listed", [LISTED, [*LISTED, "r/coredns:v1", "r/surprise:v1"]])
def test_a_kubeadm_that_wants_another_set_of_images_is_an_error(listed: list[str]) -> None:
    with pytest.raises(LookupError, match="kubeadm asks for"):
        control_images.by_component(listed)


def test_a_root_file_system_is_another_with_another_package_or_architecture() -> None:
    less = rootfs.Recipe(rootfs.NODE.image, rootfs.NODE.suite, rootfs.NODE.packages[1:])
    assert len({rootfs.NODE.reference("amd64"), rootfs.NODE.reference("arm64"), less.reference("amd64")}) == 3
    assert rootfs.NODE.reference("amd64").startswith("moe-node-rootfs:")


ASKED = {"bounding": ["CAP_CHOWN", "CAP_SYS_RESOURCE"], "ambient": None}
GRANTED = {"bounding": ["CAP_CHOWN"], "ambient": []}


@pytest.mark.parametrize("flag", [["--bundle", "{}"], ["--bundle={}"], ["-b", "{}"]])
def test_a_new_container_does_not_ask_for_the_missing_capability(tmp_path: Path, flag: list[str]) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"process": {"args": ["sh"], "capabilities": ASKED}, "hostname": "n"}))
    rewrite(["--root", "/run", "create", *(part.format(tmp_path) for part in flag), "id"])
    assert json.loads(config.read_text()) == {
        "process": {"args": ["sh"], "capabilities": GRANTED},
        "hostname": "n",
    }


def test_a_process_in_a_running_container_does_not_ask_for_it_either(tmp_path: Path) -> None:
    process = tmp_path / "process.json"
    process.write_text(json.dumps({"args": ["sh"], "capabilities": ASKED}))
    rewrite(["exec", "--process", str(process), "--detach", "id"])
    assert json.loads(process.read_text()) == {"args": ["sh"], "capabilities": GRANTED}


def test_other_runc_calls_touch_nothing() -> None:
    rewrite(["--root", "/run", "state", "id"])
    assert option(["state", "id"], "--bundle", "-b") is None
