"""``python -m e2e.real_engine``: the real vLLM through the product on this machine's kind cluster.

Ends with 0 when everything was as it has to be, 1 otherwise; then `e2e/artifacts/` holds what was seen.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
from moe_operator.api.names import PLURAL, gateway_name
from moe_operator.runtime.kube import ApiError
from rich.console import Console
from rich.table import Table

from e2e.cluster.command import CommandFailed
from e2e.cluster.host import CannotContinue
from e2e.cluster.nodes import Kubectl, NotInTime
from e2e.cluster.progress import Progress
from e2e.cluster.settings import Folders
from e2e.images.recipes import REPOSITORY
from e2e.kind import shared_folder
from e2e.kind.backend import kind_backend
from e2e.kind.bring_up import Site, bring_up
from e2e.kind.evidence import evidence
from e2e.kind.images import load_missing
from e2e.real_engine import engine_image, install, manifest, model
from e2e.real_engine.story import Stage, Told, real_engine
from e2e.scenarios.chat import NoAnswer
from e2e.scenarios.follow import NotReached

FOLDER = "real-engine"  # inside the folder that every node sees
ARTIFACTS = REPOSITORY / "e2e" / "artifacts"
GONE_SECONDS = 120
WRONG = (NotReached, NoAnswer, ApiError, TimeoutError, CommandFailed, LookupError)


@dataclass(frozen=True, slots=True)
class Supplies:
    """The cluster with the engine's image in it, and the folders of the claim."""

    site: Site
    image: str
    installation: str
    model: str


@click.command()
@click.option("--bootstrap", is_flag=True, help="Install missing Debian packages (root, disposable machine).")
@click.option("--keep", is_flag=True, help="Leave the deployment in the cluster.")
def main(bootstrap: bool, keep: bool) -> None:
    """Serve a tiny random MoE with the real vLLM over two nodes; lose a worker, then the leader."""
    folders, progress = Folders.from_environment(), Progress()
    with progress.step("cluster, operator, engine and model"):
        supplies = provide(folders, progress, bootstrap=bootstrap)
    try:
        told = asyncio.run(_tell(supplies, folders, progress))
    finally:
        if not keep:
            with progress.step("taking everything away"):
                _clear(supplies.site.record.client)
    sys.exit(_verdict(told))


def provide(folders: Folders, progress: Progress, *, bootstrap: bool) -> Supplies:
    """Everything that the story needs; what is there already is kept."""
    image = engine_image.ensure(folders, progress, bootstrap=bootstrap).reference
    parent = shared_folder.host_folder(folders) / FOLDER
    parent.mkdir(exist_ok=True)
    installation = install.ensure(parent, image, folders, progress)
    weights = model.ensure(parent, installation, image, folders, progress)
    site = bring_up(folders, progress, bootstrap=bootstrap)
    load_missing((image,), folders, progress)
    _clear(site.record.client)  # of an earlier run, whose group has a past
    claim = manifest.claim(f"{shared_folder.NODE_PATH}/{FOLDER}")
    site.record.client.apply(manifest.namespace(), *claim)
    return Supplies(site, image, installation, weights)


async def _tell(supplies: Supplies, folders: Folders, progress: Progress) -> Told:
    """The story; what goes wrong in it is a finding, and evidence of it is kept."""
    told, site = Told(progress.say), supplies.site
    deployment = manifest.deployment(supplies.image, supplies.installation, supplies.model)
    async with kind_backend(site, folders) as backend:

        async def gateway_url() -> str:
            return await backend.gateway_url(manifest.NAMESPACE, gateway_name(manifest.NAME))

        stage = Stage(backend.kube, gateway_url, _logs(site.record.client), deployment, told)
        with progress.step("the real engine"):
            try:
                await real_engine(stage)
            except WRONG as error:
                told.findings.append(f"{type(error).__name__}: {error}")
    if told.findings:
        progress.say(f"what was seen: {_keep_evidence(site)}")
    return told


def _clear(client: Kubectl) -> None:
    """Delete the deployment, wait until the operator let it go, then the namespace and its volume."""
    gone = ("--ignore-not-found", f"--timeout={GONE_SECONDS}s")
    client("delete", PLURAL, manifest.NAME, "--namespace", manifest.NAMESPACE, *gone)
    client("delete", "namespace", manifest.NAMESPACE, *gone)
    client("delete", "persistentvolume", manifest.CLAIM, *gone)


def _logs(client: Kubectl) -> Callable[[str], str]:
    return lambda pod: client("logs", "--namespace", manifest.NAMESPACE, pod, "--container", "engine")


def _keep_evidence(site: Site) -> Path:
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    path = ARTIFACTS / f"real-engine-{time.strftime('%Y%m%d-%H%M%S')}.txt"
    path.write_text(evidence(site.record, manifest.NAMESPACE))
    return path


def _verdict(told: Told) -> int:
    console = Console(highlight=False)
    table = Table(title=f"vLLM {install.VERSION}, TP {manifest.NODES} over two nodes", show_header=False)
    for row in told.rows:
        table.add_row(*row)
    console.print(table)
    for finding in told.findings:
        console.print(f"✗ {finding}", markup=False, style="red")
    if not told.findings:
        console.print("✔ served, lost a worker, lost the leader, and came back by itself", style="green")
    return 1 if told.findings else 0


if __name__ == "__main__":
    try:
        main()
    except (CannotContinue, CommandFailed, NotInTime) as problem:
        click.echo(f"error: {problem}", err=True)
        sys.exit(1)
