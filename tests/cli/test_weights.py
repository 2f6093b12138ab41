"""kubectl moe weights: what it prints and how it exits."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from moe_operator.cli.kubectl import main

Obj = dict[str, Any]
GOLDEN = Path(__file__).parent / "golden"
MODEL = {
    "source": "hf://moonshotai/Kimi-K3",
    "resolved": "9f62e4e9",
    "viewDigest": "ab" * 32,
    "totalBytes": 1_560_860_324_864,
}
NODES = [
    {
        "node": "gpu-0",
        "phase": "Ready",
        "bytesTotal": 1_560_860_324_864,
        "bytesDone": 1_560_860_324_864,
        "bytesReused": 1_494_000_000_000,
        "bytesFromPeers": 66_000_000_000,
    },
    {
        "node": "gpu-1",
        "phase": "Pulling",
        "bytesTotal": 1_560_860_324_864,
        "bytesDone": 390_215_081_216,
        "rateBytesPerSecond": 1_073_741_824,
        "etaSeconds": 5430,
    },
    {
        "node": "gpu-2",
        "phase": "Blocked",
        "bytesTotal": 1_560_860_324_864,
        "reason": "InsufficientDisk",
        "message": "INSUFFICIENT_DISK: the store has 5 bytes free, 17 too few",
    },
]
STORES = [
    {
        "node": "gpu-0",
        "nodeUID": "u",
        "cacheClass": "nvme",
        "views": ["ab" * 32, "cd" * 32],
        "scrubbedAt": "2026-11-29T03:10:22Z",
        "corrupt": ["ef" * 32],
        "corruptBytes": 5_000_000_000,
        "corruptAt": "2026-11-29T03:10:22Z",
    },
    {
        "node": "gpu-2",
        "nodeUID": "v",
        "cacheClass": "nvme",
        "views": ["ab" * 32],
        "message": "STORE_UNUSABLE: gone",
        "scrubMessage": "STORE_UNUSABLE: gone",
    },
]


def condition(status: str, reason: str, message: str) -> Obj:
    return {"type": "WeightsStaged", "status": status, "reason": reason, "message": message}


BLOCKED = condition("False", "InsufficientDisk", "gpu-2: INSUFFICIENT_DISK: 17 too few")


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the command against a kubectl that knows one MoEDeployment and writes down how it was asked."""
    script = tmp_path / "kubectl"
    script.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n'
        f'if [ -f {tmp_path}/answer ]; then cat {tmp_path}/answer; else echo "not found" >&2; exit 1; fi\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def run(status: Obj | None, *args: str) -> tuple[Result, str]:
        if status is not None:
            (tmp_path / "answer").write_text(json.dumps({"kind": "MoEDeployment", "status": status}))
        result = CliRunner().invoke(main, ["weights", "k3", *args])
        return result, (tmp_path / "asked").read_text().strip()

    return run


def test_each_node_and_its_disk_are_shown_with_the_next_step(ask: Any) -> None:
    status = {"model": MODEL, "staging": NODES, "stores": STORES, "conditions": [BLOCKED]}
    result, asked = ask(status, "-n", "team", "--context", "prod")
    assert asked == "--context prod get moedeployment k3 -n team -o json"
    assert result.exit_code == 3, "not every node is done"
    path = GOLDEN / "weights-blocked.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(result.stdout)
    assert result.stdout == path.read_text()


def test_it_exits_with_0_once_every_node_is_done(ask: Any) -> None:
    done = condition("True", "Staged", "1 node(s) hold every byte, verified")
    result, _ = ask({"model": MODEL, "staging": NODES[:1], "conditions": [done]})
    assert result.exit_code == 0 and "gpu-0" in result.stdout


def test_json_holds_what_the_status_says(ask: Any) -> None:
    result, _ = ask(
        {"model": MODEL, "staging": NODES, "stores": STORES, "conditions": [BLOCKED]}, "-o", "json"
    )
    found = json.loads(result.stdout)
    assert [row["node"] for row in found["staging"]] == ["gpu-0", "gpu-1", "gpu-2"]
    assert found["staging"][0]["bytesFromPeers"] == 66_000_000_000
    assert found["condition"]["reason"] == "InsufficientDisk" and found["model"]["resolved"] == "9f62e4e9"
    assert found["stores"][0]["views"] == ["ab" * 32, "cd" * 32]


def test_a_deployment_nobody_has_looked_at_is_no_error(ask: Any) -> None:
    result, _ = ask({})
    assert result.exit_code == 3 and result.stdout == "Model    not read yet\n"


def test_what_kubectl_says_is_handed_on(ask: Any) -> None:
    result, _ = ask(None)
    assert result.exit_code == 1 and "kubectl get moedeployment: not found" in result.output
