"""The cluster's containers as Docker sees them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from e2e.cluster.command import CommandFailed, attempt, run
from e2e.cluster.settings import CLUSTER

_OURS = f"label=io.x-k8s.kind.cluster={CLUSTER}"
_NETWORK = "kind"


def states() -> dict[str, str]:
    """Node container → Docker's word for its state."""
    rows = run("docker", "ps", "-a", "--filter", _OURS, "--format", "{{.Names}} {{.State}}").splitlines()
    return dict(row.split(maxsplit=1) for row in rows)


def strangers() -> list[str]:
    """Containers of others on this daemon that are running."""
    everyone = run("docker", "ps", "--format", "{{.Names}}").split()
    return sorted(set(everyone) - set(states()))


def addresses(names: Iterable[str]) -> dict[str, str]:
    """Node container → its present address on kind's network."""
    inspected = json.loads(run("docker", "inspect", *names))
    return {
        entry["Name"].lstrip("/"): entry["NetworkSettings"]["Networks"][_NETWORK]["IPAddress"]
        for entry in inspected
    }


def set_going(start: tuple[str, ...], unpause: tuple[str, ...]) -> None:
    """Start stopped containers and let paused ones go on."""
    if start:
        run("docker", "start", *start)
    if unpause:
        run("docker", "unpause", *unpause)


def remove() -> None:
    """Remove every container of the cluster with its volumes, and kind's network unless others use it.

    Raises CommandFailed when Docker cannot remove one.
    """
    names = sorted(states())
    with ThreadPoolExecutor(max_workers=4) as pool:  # a node takes a second each to stop
        list(pool.map(lambda name: attempt("docker", "rm", "-f", "-v", name), names))
    if left := states():
        raise CommandFailed(f"Docker cannot remove {left}")
    attempt("docker", "network", "rm", _NETWORK)


def run_in(name: str, script: str) -> str:
    """Run a shell script inside a node."""
    return run("docker", "exec", "-i", name, "sh", "-s", stdin=script, timeout=60)


def try_in(name: str, script: str) -> bool:
    """Whether a shell script inside a node succeeds."""
    return attempt("docker", "exec", "-i", name, "sh", "-s", stdin=script, timeout=30).ok


def has_image(reference: str) -> bool:
    """Whether the daemon holds an image."""
    return attempt("docker", "image", "inspect", reference).ok
