from pathlib import Path

import pytest

from e2e.cluster import daemon
from e2e.cluster.daemon import Facts, StartOwn, StartService, Unavailable, Use

DOCKER_PID, CONTAINERD_PID = daemon.PID_FILES


def facts(**changed: object) -> Facts:
    """Root on a machine without systemd and with every capability, where no daemon runs."""
    usual = {"answers": False, "root": True, "systemd": False, "may_sys_resource": True}
    return Facts(**(usual | changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (facts(answers=True, root=False, default_runtime="runc"), Use()),
        (facts(answers=True, may_sys_resource=False, default_runtime="moe"), Use()),
        (facts(systemd=True), StartService()),
        (facts(), StartOwn(shim=False)),
        (facts(may_sys_resource=False), StartOwn(shim=True)),
        (facts(stale=(DOCKER_PID,)), StartOwn(shim=False, remove=(DOCKER_PID,))),
        (facts(silent_pid=42), StartOwn(shim=False, kill=42)),
    ],
)
def test_plan(found: Facts, expected: daemon.Plan) -> None:
    assert daemon.plan(found) == expected


@pytest.mark.parametrize(
    ("found", "advice"),
    [
        (facts(root=False), "start it first"),
        (facts(root=False, systemd=True), "sudo systemctl start docker"),
        (facts(answers=True, may_sys_resource=False, default_runtime="runc"), "Stop it"),
    ],
)
def test_who_cannot_have_a_daemon_is_told_what_to_do(found: Facts, advice: str) -> None:
    refusal = daemon.plan(found)
    assert isinstance(refusal, Unavailable)
    assert advice in refusal.message


@pytest.mark.parametrize(("bounding", "may"), [("000001ffffffffff", True), ("000001fffeffffff", False)])
def test_the_capability_is_read_from_the_bounding_set(bounding: str, may: bool) -> None:
    status = f"Name:\tpython\nCapEff:\t000001ffffffffff\nCapBnd:\t{bounding}\nSeccomp:\t0\n"
    assert daemon.may_sys_resource(status) is may


@pytest.mark.parametrize(
    ("names", "stale"),
    [
        ({7: "dockerd", 8: "containerd"}, ()),
        ({7: "dockerd", 8: ""}, (CONTAINERD_PID,)),
        ({7: "python3", 8: "containerd"}, (DOCKER_PID,)),  # the number was given to another program
        ({}, (DOCKER_PID, CONTAINERD_PID)),
    ],
)
def test_a_pid_file_is_stale_unless_its_process_is_the_right_program(
    names: dict[int, str], stale: tuple[Path, ...]
) -> None:
    assert daemon.stale_pid_files({DOCKER_PID: 7, CONTAINERD_PID: 8}, names) == stale
