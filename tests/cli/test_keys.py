"""kubectl moe keys: what is printed, what kubectl is told, and what never leaves."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from moe_operator.cli.kubectl import main
from moe_operator.gateway.keys import keyring

Obj = dict[str, Any]
SUM = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("one", "two", "three")}
DEPLOYMENT: Obj = {"spec": {"gateway": {"auth": {"secretRef": {"name": "keys"}}}}}
SECRET: Obj = {
    "alice": f"{SUM['one']},expires=2030-01-01T00:00:00Z",
    "alice.2": SUM["two"],
    "bob": SUM["three"],
    "note": "not a key",
}
FAKE = """#!/bin/sh
printf '%s\\n' "$*" >> "$FAKE_DIR/calls"
case "$*" in
  *"get moedeployments.moe-operator.io"*) cat "$FAKE_DIR/deployment" ;;
  *"get secret"*) cat "$FAKE_DIR/secret" ;;
  *wait*) test ! -e "$FAKE_DIR/late" || { echo 'error: timed out waiting for the condition' >&2; exit 1; } ;;
  *patch*) test ! -e "$FAKE_DIR/refused" || { echo 'Error: forbidden' >&2; exit 1; } ;;
esac
"""

Calls = Callable[[], list[str]]


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """A kubectl that knows one deployment and one Secret, and writes down what it is asked."""
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(FAKE)
    kubectl.chmod(kubectl.stat().st_mode | stat.S_IXUSR)
    data = {name: base64.b64encode(text.encode()).decode() for name, text in SECRET.items()}
    (tmp_path / "secret").write_text(json.dumps({"data": data}))
    (tmp_path / "deployment").write_text(json.dumps(DEPLOYMENT))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_DIR", str(tmp_path))
    return lambda: (tmp_path / "calls").read_text().splitlines() if (tmp_path / "calls").exists() else []


def keys(*args: str) -> Result:
    return CliRunner().invoke(main, ["keys", *args], catch_exceptions=False)


def test_a_new_key_is_shown_once_and_only_its_sum_is_for_the_secret(calls: Calls) -> None:
    first, second = keys("create", "alice", "--secret", "team"), keys("create", "alice")
    shown, entry, command = first.stdout.splitlines()
    key = shown.split()[-1]
    assert key.startswith("moe-") and len(key) == len("moe-") + 43
    assert entry.endswith(f"alice: {hashlib.sha256(key.encode()).hexdigest()}")
    assert key not in entry + command and "kubectl patch secret team --type merge" in command
    patch = json.loads(command.split("-p ")[1].strip("'"))
    [known] = keyring(patch["stringData"]).hashes
    assert known.key_id == "alice"
    assert key not in second.stdout and calls() == [], "no key is made twice, nothing is sent anywhere"


def test_an_expiry_and_an_id_are_checked_before_anything_is_shown(calls: Calls) -> None:
    assert ",expires=2030-01-01T00:00:00Z" in keys("create", "a", "--expires", "2030-01-01T00:00:00Z").stdout
    for args in (("create", "a", "--expires", "tomorrow"), ("create", "a/b")):
        refused = keys(*args)
        assert refused.exit_code == 1 and "moe-" not in refused.output


def test_the_list_has_ids_and_expiries_and_neither_keys_nor_sums(calls: Calls) -> None:
    result = keys("list", "k3", "-n", "team", "--context", "prod")
    assert result.stdout.splitlines() == [
        "ID     VALUES  EXPIRES",
        "alice  2       2030-01-01T00:00:00Z, never",
        "bob    1       never",
    ]
    assert "entry 'note'" in result.stderr and "not a key" not in result.stderr
    assert calls()[0] == "-n team --context prod get moedeployments.moe-operator.io k3 -o json"
    assert not any(total in result.output for total in SUM.values())


def test_revoking_removes_every_value_of_one_id_and_tells_the_gateways(calls: Calls) -> None:
    result = keys("revoke", "k3", "alice", "--wait", "0")
    assert result.exit_code == 0 and "2 value(s) of alice taken out of Secret keys" in result.stdout
    patch, annotate = calls()[-2:]
    assert patch.startswith("patch secret keys --type json -p ")
    removed = json.loads(patch.split("-p ")[1])
    assert removed == [{"op": "remove", "path": f"/data/{name}"} for name in ("alice", "alice.2")]
    assert annotate.startswith("annotate moedeployments.moe-operator.io k3 moe-operator.io/refresh-keys=")
    assert annotate.endswith("--overwrite")


def test_what_cannot_be_revoked_is_said_and_tells_nobody(calls: Calls, tmp_path: Path) -> None:
    assert "holds no key carol" in keys("revoke", "k3", "carol").output
    (tmp_path / "refused").touch()
    assert "kubectl patch: Error: forbidden" in keys("revoke", "k3", "bob").output
    assert not any("annotate" in call for call in calls())


def test_a_deployment_without_keys_has_none_to_list(calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "deployment").write_text(json.dumps({"spec": {}}))
    result = keys("list", "k3")
    assert result.exit_code == 1 and "spec.gateway.auth is not set" in result.output


def test_every_refresh_is_a_new_wish(calls: Calls) -> None:
    for _ in range(2):
        assert keys("refresh", "k3", "--wait", "0").exit_code == 0
    assert len({call for call in calls() if call.startswith("annotate")}) == 2


def test_a_refresh_waits_until_every_gateway_goes_by_what_the_secret_holds(calls: Calls) -> None:
    result = keys("refresh", "k3", "--wait", "7")
    assert result.exit_code == 0
    assert re.search(r"^every gateway pod goes by Secret keys after \d+\.\d s$", result.stdout, re.MULTILINE)
    wanted = f"--for=jsonpath={{.status.gateway.keysDigest}}={keyring(SECRET).digest}"
    assert calls()[-1] == f"wait moedeployments.moe-operator.io/k3 {wanted} --timeout=7s"
    assert "annotate" in calls()[-3]  # and the Secret is read after it


def test_what_is_not_in_force_in_time_is_said(calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "late").touch()
    result = keys("refresh", "k3")
    assert result.exit_code == 1
    assert "the gateways of k3 are told" in result.stdout
    assert "kubectl wait: error: timed out" in result.output
