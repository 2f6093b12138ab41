"""``kubectl moe keys``: API keys of a gateway, with the user's own kubectl and rights.

A key is made here and shown once; only its SHA-256 ever goes into the Secret. The operator has no access to
Secrets: the kubelet brings them to the gateway pods, within a minute and a half by itself, at once after
``refresh``. Each pod says by a digest which set its proxy goes by; the status of the deployment has the one
that all of them agree on, so whoever can read the Secret can tell when it is in force everywhere.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click

from moe_operator.api.names import ANNOTATION_REFRESH_KEYS, GROUP, PLURAL
from moe_operator.gateway.keys import KeyHash, Keyring, keyring

Obj = dict[str, Any]
PREFIX = "moe-"
RANDOM_BYTES = 32
TIMEOUT_SECONDS = 60  # for one answer of kubectl
WAIT_SECONDS = 120  # longer than a kubelet takes that was not told
IN_FORCE = "{.status.gateway.keysDigest}"
RESOURCE = f"{PLURAL}.{GROUP}"


@dataclass(frozen=True, slots=True)
class Target:
    """One MoEDeployment, reached through ``kubectl`` with these flags."""

    name: str
    flags: tuple[str, ...]

    def kubectl(self, *arguments: str, seconds: float = TIMEOUT_SECONDS) -> str:
        """What kubectl prints; ClickException with its last line when it fails."""
        command = ["kubectl", *self.flags, *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        except FileNotFoundError:
            raise click.ClickException("kubectl is not on PATH") from None
        except subprocess.TimeoutExpired:
            raise click.ClickException(f"kubectl did not answer within {seconds:g} s") from None
        if done.returncode:
            said = done.stderr.strip().splitlines()
            raise click.ClickException(f"kubectl {arguments[0]}: {said[-1] if said else 'failed'}")
        return done.stdout

    def secret_name(self) -> str:
        """The Secret that the deployment's gateway takes its keys from."""
        found = json.loads(self.kubectl("get", RESOURCE, self.name, "-o", "json"))
        auth = ((found.get("spec") or {}).get("gateway") or {}).get("auth")
        if not auth:
            raise click.ClickException(f"{self.name} asks for no API keys: spec.gateway.auth is not set")
        return str(auth["secretRef"]["name"])

    def entries(self, secret: str) -> dict[str, str]:
        """Entries of a Secret as text; one that is no text is none of ours and reads as such."""
        data: Mapping[str, str] = json.loads(self.kubectl("get", "secret", secret, "-o", "json")).get(
            "data", {}
        )
        return {name: base64.b64decode(value).decode(errors="replace") for name, value in data.items()}

    def refresh(self) -> None:
        """Have the kubelets of the gateway pods read the Secret now."""
        wish = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        self.kubectl("annotate", RESOURCE, self.name, f"{ANNOTATION_REFRESH_KEYS}={wish}", "--overwrite")

    def until_in_force(self, secret: str, seconds: int) -> float:
        """Wait until every gateway pod goes by what the Secret holds now; how long it took."""
        began, wanted = time.monotonic(), keyring(self.entries(secret)).digest
        done = f"--for=jsonpath={IN_FORCE}={wanted}"
        self.kubectl(
            "wait",
            f"{RESOURCE}/{self.name}",
            done,
            f"--timeout={seconds}s",
            seconds=seconds + TIMEOUT_SECONDS,
        )
        return time.monotonic() - began


def _with_target(command: Any) -> Any:
    for option in (
        click.option("-n", "--namespace", metavar="NS", help="Namespace of the deployment."),
        click.option("--context", "kube_context", metavar="NAME", help="kubectl's context."),
        click.argument("name"),
    ):
        command = option(command)
    return command


_with_wait = click.option(
    "--wait",
    "seconds",
    type=click.IntRange(min=0),
    default=WAIT_SECONDS,
    show_default=True,
    help="Seconds to wait until every gateway pod goes by the Secret; 0 = do not wait.",
)


def _target(name: str, namespace: str | None, kube_context: str | None) -> Target:
    flags = [
        *(("-n", namespace) if namespace else ()),
        *(("--context", kube_context) if kube_context else ()),
    ]
    return Target(name, tuple(flags))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def keys() -> None:
    """Make, list and revoke API keys of a gateway; have changes taken up at once."""


@keys.command()
@click.argument("key_id")
@click.option("--secret", default="SECRET", help="Name of the Secret, for the command that is printed.")
@click.option("--expires", metavar="TIME", help="RFC 3339 time from which the key opens nothing.")
def create(key_id: str, secret: str, expires: str | None) -> None:
    """Make a random key, show it once, and say what to put into the Secret. Sends nothing anywhere."""
    key = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)
    entry = hashlib.sha256(key.encode()).hexdigest() + (f",expires={expires}" if expires else "")
    problems = keyring({key_id: entry}).problems
    if problems:
        raise click.ClickException(problems[0])
    patch = json.dumps({"stringData": {key_id: entry}})
    click.echo(f"key, shown this once:  {key}")
    click.echo(f"entry of the Secret:   {key_id}: {entry}")
    click.echo(f"to add it:             kubectl patch secret {secret} --type merge -p '{patch}'")


@keys.command("list")
@_with_target
def list_keys(name: str, namespace: str | None, kube_context: str | None) -> None:
    """List the ids that open a deployment's gateway, with expiry; neither keys nor hashes."""
    target = _target(name, namespace, kube_context)
    ring = keyring(target.entries(target.secret_name()))
    click.echo("\n".join(_table(ring)))
    for problem in ring.problems:
        click.echo(f"opens nothing: {problem}", err=True)


@keys.command()
@_with_target
@_with_wait
@click.argument("key_id")
def revoke(name: str, namespace: str | None, kube_context: str | None, key_id: str, seconds: int) -> None:
    """Take every value of a key out of the Secret, and wait until no gateway takes it any more."""
    target = _target(name, namespace, kube_context)
    secret = target.secret_name()
    found = [entry for entry, text in target.entries(secret).items() if _opens(entry, text, key_id)]
    if not found:
        raise click.ClickException(f"Secret {secret} holds no key {key_id}")
    patch = json.dumps([{"op": "remove", "path": f"/data/{entry}"} for entry in sorted(found)])
    target.kubectl("patch", "secret", secret, "--type", "json", "-p", patch)
    click.echo(f"{len(found)} value(s) of {key_id} taken out of Secret {secret}")
    _bring_in_force(target, secret, seconds)


@keys.command()
@_with_target
@_with_wait
def refresh(name: str, namespace: str | None, kube_context: str | None, seconds: int) -> None:
    """Have the gateway pods take up the Secret as it is now, and say when all of them have."""
    target = _target(name, namespace, kube_context)
    _bring_in_force(target, target.secret_name(), seconds)


def _bring_in_force(target: Target, secret: str, seconds: int) -> None:
    target.refresh()
    click.echo(f"the gateways of {target.name} are told")
    if seconds:
        took = target.until_in_force(secret, seconds)
        click.echo(f"every gateway pod goes by Secret {secret} after {took:.1f} s")


def _opens(entry: str, text: str, key_id: str) -> bool:
    return key_id in keyring({entry: text}).key_ids


def _table(ring: Keyring) -> list[str]:
    width = max((len(key_id) for key_id in ring.key_ids), default=0)
    lines = [f"{'ID':<{max(width, 2)}}  VALUES  EXPIRES"]
    for key_id in ring.key_ids:
        values = [key for key in ring.hashes if key.key_id == key_id]
        expiries = ", ".join(sorted({_expiry(key) for key in values}))
        lines.append(f"{key_id:<{max(width, 2)}}  {len(values):<6}  {expiries}")
    return lines


def _expiry(key: KeyHash) -> str:
    return datetime.fromtimestamp(key.expires, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if key.expires else "never"
