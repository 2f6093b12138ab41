"""Pods as processes, end to end in a sandbox."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from moe_operator.runtime.kube import CONFIG_MAP, EVENT, POD
from moe_operator.sandbox import launch
from moe_operator.sandbox.objects import Key
from moe_operator.sandbox.run import Sandbox

from tests.sandbox.objects import Obj, config_map, container, pod, service
from tests.sandbox.waiting import (
    container_status,
    gone,
    phase,
    pod_when,
    ready,
    state,
    until,
    until_up,
)

MODELS = Key("default", "models")
SERVE = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        ok = not os.path.exists(os.environ["HOME"] + "/sick")
        self.send_response(200 if ok else 503)
        self.end_headers()
        self.wfile.write(os.environ["HOSTNAME"].encode())
    def log_message(self, *_): print(self.path, flush=True)
http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
"""


def web(port: int = 8000, **more: Any) -> Obj:
    """A container with a small web server on every address of its pod."""
    return {
        "name": "web",
        "image": "python",
        "args": ["-c", SERVE, "0.0.0.0", str(port)],
        "ports": [{"name": "http", "containerPort": port}],
        **more,
    }


async def events_of(sandbox: Sandbox, name: str) -> dict[str, str]:
    """Reason → what was said about a pod, one message a line."""
    said: dict[str, list[str]] = {}
    for event in (await sandbox.kube.list(EVENT, "default")).items:
        if event["involvedObject"]["name"] == name:
            said.setdefault(event["reason"], []).append(event["message"])
    return {reason: "\n".join(messages) for reason, messages in said.items()}


async def event(sandbox: Sandbox, name: str, reason: str) -> str:
    """The messages of a reason, as soon as there is one."""
    async with asyncio.timeout(20):
        while reason not in (said := await events_of(sandbox, name)):
            await asyncio.sleep(0.02)
    return said[reason]


async def test_init_containers_run_in_order_before_the_container_starts(sandbox: Sandbox) -> None:
    shared = {"volumeMounts": [{"name": "work", "mountPath": "/work"}]}
    inits = [
        container("first", script="echo first >> /work/order", **shared),
        container("second", script="echo second >> /work/order", **shared),
    ]
    main = container("main", script="echo main >> /work/order; cat /work/order", **shared)
    await sandbox.kube.create(
        pod("ordered", main, initContainers=inits, volumes=[{"name": "work", "emptyDir": {}}])
    )
    done = await pod_when(sandbox, "ordered", phase("Succeeded"))
    assert sandbox.logs("ordered", "main") == "first\nsecond\nmain\n"
    ends = [state(done, name, "terminated")["reason"] for name in ("first", "second", "main")]
    assert ends == ["Completed"] * 3
    assert done["spec"]["nodeName"].startswith("h20-")
    assert {c["type"]: c["status"] for c in done["status"]["conditions"]} == {
        "PodScheduled": "True",
        "PodReadyToStartContainers": "False",
        "Initialized": "True",
        "ContainersReady": "False",
        "Ready": "False",
    }


async def test_a_failing_init_container_fails_a_pod_that_never_restarts(sandbox: Sandbox) -> None:
    stage = container("stage", script="echo '{\"code\": 12}' > /dev/termination-log; exit 12")
    await sandbox.kube.create(pod("bad", container("main", script="echo never"), initContainers=[stage]))
    failed = await pod_when(sandbox, "bad", phase("Failed"))
    ended = state(failed, "stage", "terminated")
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (12, "Error", '{"code": 12}\n')
    assert state(failed, "main", "waiting")["reason"] == "PodInitializing"
    assert sandbox.logs("bad", "main") == ""
    assert container_status(failed, "main")["restartCount"] == 0
    assert not ready(failed)


async def test_a_failing_container_is_restarted_with_backoff_and_keeps_its_last_state(
    sandbox: Sandbox,
) -> None:
    flaky = container(
        script="echo x >> /work/n; [ $(wc -l < /work/n) -gt 2 ] || exit 3; sleep 60",
        volumeMounts=[{"name": "work", "mountPath": "/work"}],
    )
    made = pod("flaky", flaky, restartPolicy="Always", volumes=[{"name": "work", "emptyDir": {}}])
    await sandbox.kube.create(made)
    crashed = await pod_when(
        sandbox, "flaky", lambda p: state(p, "main", "waiting").get("reason") == "CrashLoopBackOff"
    )
    assert crashed["status"]["phase"] == "Running"
    up = await pod_when(sandbox, "flaky", ready)
    status = container_status(up, "main")
    assert status["restartCount"] == 2
    assert status["lastState"]["terminated"]["exitCode"] == 3
    assert "BackOff" in await events_of(sandbox, "flaky")


async def test_probes_gate_start_and_readiness_and_liveness_restarts(sandbox: Sandbox) -> None:
    get = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 1}
    serving = web(
        startupProbe={"tcpSocket": {"port": "http"}, "periodSeconds": 1, "failureThreshold": 20},
        readinessProbe={**get, "failureThreshold": 1},
        livenessProbe={**get, "failureThreshold": 2, "terminationGracePeriodSeconds": 1},
    )
    await sandbox.kube.create(pod("probed", serving, restartPolicy="Always"))
    up = await pod_when(sandbox, "probed", ready)
    assert container_status(up, "web")["started"] is True
    first = sandbox.pid("probed", "web")
    home = Path(f"/proc/{first}/cwd").resolve()
    (home / "sick").touch()
    await pod_when(sandbox, "probed", lambda p: not ready(p))
    restarted = await pod_when(sandbox, "probed", lambda p: container_status(p, "web")["restartCount"] == 1)
    assert container_status(restarted, "web")["lastState"]["terminated"]["exitCode"] == 143
    said = await events_of(sandbox, "probed")
    assert "statuscode: 503" in said["Unhealthy"]
    (home / "sick").unlink()
    await pod_when(sandbox, "probed", ready)
    assert sandbox.pid("probed", "web") != first


async def test_a_startup_probe_that_gives_up_ends_a_pod_that_never_restarts(sandbox: Sandbox) -> None:
    never = container(
        script="sleep 60",
        startupProbe={"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 2},
    )
    await sandbox.kube.create(pod("never-up", never))
    failed = await pod_when(sandbox, "never-up", phase("Failed"))
    assert state(failed, "main", "terminated")["exitCode"] == 143


async def test_deleting_runs_the_hook_then_terminates_then_kills_the_whole_group(sandbox: Sandbox) -> None:
    stubborn = container(
        script=(
            "trap 'echo term >> /work/order' TERM; (setsid sleep 1000 &) ; sleep 1000 & "
            "echo up; while :; do wait; done"
        ),
        volumeMounts=[{"name": "work", "mountPath": "/work"}],
        lifecycle={"preStop": {"exec": {"command": ["sh", "-c", "echo hook >> /work/order"]}}},
    )
    volume = {"name": "work", "persistentVolumeClaim": {"claimName": "models"}}
    await sandbox.kube.create(pod("stubborn", stubborn, volumes=[volume], terminationGracePeriodSeconds=1))
    await until_up(sandbox, "stubborn")
    uid = (await sandbox.kube.get(POD, "default", "stubborn"))["metadata"]["uid"]
    await until(lambda: len(carrying(uid)) == 3, "the shell and its two children run")
    await sandbox.kube.delete(POD, "default", "stubborn")
    await gone(sandbox, "stubborn")
    assert (sandbox.config.claims[MODELS] / "order").read_text() == "hook\nterm\n"
    assert carrying(uid) == []


def carrying(marker: str) -> list[int]:
    """Processes with a text in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


async def test_a_pod_deleted_by_force_is_ended_and_its_successor_runs(sandbox: Sandbox) -> None:
    await sandbox.kube.create(pod("forced", container(script="trap '' TERM; echo up; sleep 1000")))
    await until_up(sandbox, "forced")
    old = sandbox.pid("forced", "main")
    await sandbox.kube.delete(POD, "default", "forced", grace_seconds=0)
    await sandbox.kube.create(pod("forced", container(script="echo second")))
    await pod_when(sandbox, "forced", phase("Succeeded"))
    await until(lambda: not Path(f"/proc/{old}").exists(), "the old process ended")


async def test_killed_processes_fail_their_pod_with_the_signal_in_the_code(sandbox: Sandbox) -> None:
    await sandbox.kube.create(pod("victim", container(script="echo up; sleep 1000")))
    await until_up(sandbox, "victim")
    sandbox.kill("victim", "main")
    failed = await pod_when(sandbox, "victim", phase("Failed"))
    ended = state(failed, "main", "terminated")
    assert (ended["exitCode"], ended["reason"]) == (137, "Error")


async def test_a_missing_secret_key_is_a_config_error_until_it_exists(sandbox: Sandbox) -> None:
    reference = {"secretKeyRef": {"name": "hf", "key": "token"}}
    reader = container(script='echo "$TOKEN"', env=[{"name": "TOKEN", "valueFrom": reference}])
    await sandbox.kube.create(pod("reader", reader))
    stuck = await pod_when(sandbox, "reader", lambda p: state(p, "main", "waiting").get("message"))
    assert state(stuck, "main", "waiting") == {
        "reason": "CreateContainerConfigError",
        "message": 'secret "hf" not found',
    }
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hf", "namespace": "default"}}
    await sandbox.kube.create({**secret, "data": {"other": ""}})
    await pod_when(
        sandbox,
        "reader",
        lambda p: (
            state(p, "main", "waiting").get("message") == "couldn't find key token in Secret default/hf"
        ),
    )
    await sandbox.kube.apply(
        {**secret, "data": {"token": base64.b64encode(b"s3cret").decode()}}, manager="test"
    )
    await pod_when(sandbox, "reader", phase("Succeeded"))
    assert sandbox.logs("reader", "main") == "s3cret\n"


async def test_a_missing_volume_source_keeps_the_pod_creating_and_is_an_event(sandbox: Sandbox) -> None:
    reader = container(script="cat /m/a", volumeMounts=[{"name": "m", "mountPath": "/m"}])
    await sandbox.kube.create(pod("mounts", reader, volumes=[{"name": "m", "configMap": {"name": "later"}}]))
    stuck = await pod_when(sandbox, "mounts", lambda p: p["status"].get("containerStatuses"))
    assert state(stuck, "main", "waiting")["reason"] == "ContainerCreating"
    said = await event(sandbox, "mounts", "FailedMount")
    assert said == 'MountVolume.SetUp failed for volume "m" : configmap "later" not found'
    await sandbox.kube.create(config_map("later", a="here"))
    await pod_when(sandbox, "mounts", phase("Succeeded"))
    assert sandbox.logs("mounts", "main") == "here"


async def test_an_unknown_image_cannot_be_pulled(sandbox: Sandbox) -> None:
    await sandbox.kube.create(pod("unknown", container(image="vllm/vllm-openai:v0.33.0")))
    async with asyncio.timeout(20):
        seen = set()
        while not seen >= {"ErrImagePull", "ImagePullBackOff"}:
            now = await sandbox.kube.get(POD, "default", "unknown")
            seen.add(state(now, "main", "waiting").get("reason"))
            await asyncio.sleep(0.01)
    assert "--image vllm/vllm-openai=COMMAND" in await event(sandbox, "unknown", "Failed")


async def test_a_command_that_does_not_exist_is_a_start_error(sandbox: Sandbox) -> None:
    missing = container(name="main", image="broken")
    await sandbox.kube.create(pod("cannot", missing))
    failed = await pod_when(sandbox, "cannot", phase("Failed"))
    ended = state(failed, "main", "terminated")
    assert (ended["exitCode"], ended["reason"]) == (128, "StartError")
    assert "'/no/such/command': No such file or directory" in ended["message"]


async def test_the_log_stands_in_for_a_termination_message_when_asked(sandbox: Sandbox) -> None:
    loud = container(script="echo reason; exit 1", terminationMessagePolicy="FallbackToLogsOnError")
    await sandbox.kube.create(pod("loud", loud))
    failed = await pod_when(sandbox, "loud", phase("Failed"))
    assert state(failed, "main", "terminated")["message"] == "reason\n"


async def test_a_mounted_config_map_follows_its_object_all_at_once(sandbox: Sandbox) -> None:
    watcher = container(
        script=("cat /c/a /c/b; while grep -q one /c/a; do sleep 0.05; done; cat /c/a /c/b; ls /c; sleep 60"),
        volumeMounts=[{"name": "c", "mountPath": "/c"}],
    )
    await sandbox.kube.create(config_map("conf", a="one\n", b="uno\n"))
    await sandbox.kube.create(pod("watcher", watcher, volumes=[{"name": "c", "configMap": {"name": "conf"}}]))
    await until(lambda: sandbox.logs("watcher", "main") == "one\nuno\n", "the first content")
    patch = [{"op": "replace", "path": "/data", "value": {"a": "two\n", "b": "dos\n", "c": ""}}]
    await sandbox.kube.patch_json(CONFIG_MAP, "default", "conf", patch)
    await until(lambda: sandbox.logs("watcher", "main").endswith("two\ndos\na\nb\nc\n"), "the new content")


async def test_the_environment_is_a_kubelets(sandbox: Sandbox) -> None:
    fields = {
        "NAME": "metadata.name",
        "IP": "status.podIP",
        "NODE": "spec.nodeName",
        "INCARNATION": "metadata.annotations['moe-operator.io/incarnation']",
    }
    env = [{"name": k, "valueFrom": {"fieldRef": {"fieldPath": v}}} for k, v in fields.items()]
    env += [{"name": "URL", "value": "http://$(IP):8000"}, {"name": "HOST", "value": "0.0.0.0"}]
    speaker = {
        "name": "main",
        "image": "sh",
        "args": ["-c", 'echo "$NAME $NODE $INCARNATION $URL $HOST" "$0" "$HOSTNAME"', "$(IP)"],
        "env": env,
    }
    made = pod("speaker", speaker, node="h20-2")
    made["metadata"]["annotations"] = {"moe-operator.io/incarnation": "7"}
    await sandbox.kube.create(made)
    done = await pod_when(sandbox, "speaker", phase("Succeeded"))
    ip = done["status"]["podIP"]
    assert sandbox.logs("speaker", "main") == f"speaker h20-2 7 http://{ip}:8000 {ip} {ip} speaker\n"


async def test_each_node_has_its_own_disk_with_a_store(sandbox: Sandbox) -> None:
    writer = container(
        script="cat /weights/STORE_ID; echo mine > /weights/mark",
        volumeMounts=[{"name": "store", "mountPath": "/weights"}],
    )
    path = {"path": "/var/lib/moe-operator/store", "type": "Directory"}
    for name, where in (("one", "h20-0"), ("two", "h20-1")):
        volumes = [{"name": "store", "hostPath": path}]
        await sandbox.kube.create(pod(name, writer, node=where, volumes=volumes))
        await pod_when(sandbox, name, phase("Succeeded"))
    assert sandbox.logs("one", "main") != sandbox.logs("two", "main")
    marks = [sandbox.node_root(f"h20-{n}") / path["path"][1:] / "mark" for n in range(3)]
    assert [mark.exists() for mark in marks] == [True, True, False]


async def test_a_directory_that_must_exist_and_does_not_is_waited_for(sandbox: Sandbox) -> None:
    reader = container(script="echo ran", volumeMounts=[{"name": "d", "mountPath": "/d"}])
    volumes = [{"name": "d", "hostPath": {"path": "/mnt/late", "type": "Directory"}}]
    await sandbox.kube.create(pod("late", reader, node="h20-0", volumes=volumes))
    said = await event(sandbox, "late", "FailedMount")
    assert said == "hostPath type check failed: /mnt/late is not a directory"
    (sandbox.node_root("h20-0") / "mnt/late").mkdir(parents=True)
    await pod_when(sandbox, "late", phase("Succeeded"))


async def test_a_claim_nobody_mapped_keeps_the_pod_pending(sandbox: Sandbox) -> None:
    volumes = [{"name": "src", "persistentVolumeClaim": {"claimName": "elsewhere"}}]
    await sandbox.kube.create(pod("claims", container(script="true"), volumes=volumes))
    waiting = await pod_when(sandbox, "claims", lambda p: p["status"].get("conditions"))
    assert 'persistentvolumeclaim "elsewhere" not found' in waiting["status"]["conditions"][0]["message"]
    assert waiting["status"]["phase"] == "Pending"


async def test_a_pod_whose_gpus_are_not_there_is_rejected_by_the_kubelet(sandbox: Sandbox) -> None:
    await sandbox.kube.create(pod("holds", container(script="sleep 60"), gpus=8, node="h20-0"))
    await pod_when(sandbox, "holds", ready)
    late = pod("late", container(script="true"), gpus=1)
    late["spec"]["nodeName"] = "h20-0"  # past the scheduler, as after a device that vanished
    await sandbox.kube.create(late)
    rejected = await pod_when(sandbox, "late", phase("Failed"))
    assert rejected["status"]["reason"] == "OutOfnvidia.com/gpu"
    assert rejected["status"]["message"] == (
        "Pod was rejected: Node didn't have enough resource: nvidia.com/gpu, "
        "requested: 1, used: 8, capacity: 8"
    )


async def test_ranks_find_their_leader_by_name_before_it_exists(sandbox: Sandbox) -> None:
    await sandbox.kube.create(
        service("g", {"app": "g"}, 29501, clusterIP="None", publishNotReadyAddresses=True)
    )
    worker = container(script='echo "$0"; sleep 60')
    worker["args"].append("tcp://g-0.g.default.svc:29501")
    await sandbox.kube.create(pod("g-1", worker, labels={"app": "g"}, hostname="g-1", subdomain="g"))
    await until(lambda: sandbox.logs("g-1", "main"), "the worker was told an address")
    leader = container(script="sleep 60")
    await sandbox.kube.create(pod("g-0", leader, labels={"app": "g"}, hostname="g-0", subdomain="g"))
    up = await pod_when(sandbox, "g-0", ready)
    assert sandbox.logs("g-1", "main") == f"tcp://{up['status']['podIP']}:29501\n"


async def test_pods_have_their_own_addresses_and_the_same_port(sandbox: Sandbox) -> None:
    for name in ("a", "b"):
        await sandbox.kube.create(
            pod(name, web(readinessProbe={"httpGet": {"port": 8000}, "periodSeconds": 1}))
        )
    ips = {(await pod_when(sandbox, name, ready))["status"]["podIP"] for name in ("a", "b")}
    assert len(ips) == 2
    assert all(ip.startswith("127.6") for ip in ips)


async def test_a_taken_port_names_its_holder_and_is_tried_again(sandbox: Sandbox) -> None:
    holder = await asyncio.start_server(lambda r, w: w.close(), "0.0.0.0", 0)
    port = holder.sockets[0].getsockname()[1]
    await sandbox.kube.create(pod("wants", web(port)))
    stuck = await pod_when(sandbox, "wants", lambda p: state(p, "web", "waiting").get("message"))
    said = state(stuck, "web", "waiting")
    assert said["reason"] == "CreateContainerError"
    assert "is taken by" in said["message"]
    assert f"(pid {os.getpid()}), listening on 0.0.0.0:{port}" in said["message"]
    holder.close()
    await holder.wait_closed()
    await pod_when(sandbox, "wants", ready)


async def test_a_pods_token_and_namespace_are_mounted(sandbox: Sandbox) -> None:
    where = "/var/run/secrets/kubernetes.io/serviceaccount"
    teller = container(script=f"cat {where}/namespace; echo; cat {where}/token; echo; echo $MOE_API_URL")
    await sandbox.kube.create(pod("teller", teller, serviceAccountName="gateway"))
    await pod_when(sandbox, "teller", phase("Succeeded"))
    namespace, token, url = sandbox.logs("teller", "main").split()
    assert (namespace, url) == ("default", sandbox.api_url)
    assert str(sandbox.tokens.account(token)) == "system:serviceaccount:default:gateway"


async def test_a_sidecar_starts_first_and_ends_last(sandbox: Sandbox) -> None:
    shared = {"volumeMounts": [{"name": "w", "mountPath": "/w"}]}
    side = container(
        "side",
        script="trap 'echo end >> /w/o; exit 0' TERM; echo side >> /w/o; while :; do sleep 0.05; done",
        restartPolicy="Always",
        startupProbe={"exec": {"command": ["test", "-e", "/w/o"]}, "periodSeconds": 1},
        **shared,
    )
    main = container("main", script="echo main >> /w/o", **shared)
    volume = {"name": "w", "persistentVolumeClaim": {"claimName": "models"}}
    await sandbox.kube.create(pod("sided", main, initContainers=[side], volumes=[volume]))
    await pod_when(sandbox, "sided", phase("Succeeded"))
    order = next(iter(sandbox.config.claims.values())) / "o"
    await until(lambda: order.read_text() == "side\nmain\nend\n", "the order of their lives")


async def test_a_sidecar_of_a_deleted_pod_outlives_the_hook_of_its_container(sandbox: Sandbox) -> None:
    shared = {"volumeMounts": [{"name": "w", "mountPath": "/w"}]}
    waits = "while :; do sleep 0.05; done"
    side = container(
        "side", script=f"trap 'echo side >> /w/o; exit 0' TERM; {waits}", restartPolicy="Always", **shared
    )
    main = container(
        "main",
        script=f"trap 'echo main >> /w/o; exit 0' TERM; echo up; {waits}",
        lifecycle={"preStop": {"exec": {"command": ["sh", "-c", "sleep 0.5; echo hook >> /w/o"]}}},
        **shared,
    )
    volume = {"name": "w", "persistentVolumeClaim": {"claimName": "models"}}
    await sandbox.kube.create(pod("sided", main, initContainers=[side], volumes=[volume]))
    await until_up(sandbox, "sided")
    await sandbox.kube.delete(POD, "default", "sided")
    await gone(sandbox, "sided")
    assert (sandbox.config.claims[MODELS] / "o").read_text() == "hook\nmain\nside\n"


def test_a_container_ignores_no_signal_that_the_sandbox_was_told_to_ignore() -> None:
    """As when the sandbox runs in the background of a shell, or under nohup."""
    deaf = ("sh", "-c", "trap '' HUP INT QUIT; exec \"$@\"", "sh")
    launched = (sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), "2")
    command = (*deaf, *launched, "grep", "SigIgn", "/proc/self/status")
    ignored = int(subprocess.check_output(command, text=True).split()[1], 16)
    assert not [number for number in signal.valid_signals() if ignored >> (number - 1) & 1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_to_the_sandboxes_children_is_theirs(sandbox: Sandbox, number: int) -> None:
    calm = container(script="trap 'exit 5' TERM INT; echo up; while :; do sleep 0.05; done")
    await sandbox.kube.create(pod("calm", calm))
    await until_up(sandbox, "calm")
    os.kill(sandbox.pid("calm", "main"), number)
    failed = await pod_when(sandbox, "calm", phase("Failed"))
    assert state(failed, "main", "terminated")["exitCode"] == 5
