"""A cluster that is up with the chart in it, a namespace for the tests, and evidence of every failure."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Generator, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import pytest

from e2e.checkpoints import build
from e2e.cluster.progress import Progress
from e2e.cluster.settings import Folders
from e2e.kind import shared_folder
from e2e.kind.backend import kind_backend
from e2e.kind.bring_up import Site, bring_up, provide
from e2e.kind.evidence import evidence
from tests.e2e.audit_log import Interval, now
from tests.e2e.world import World

NAMESPACE = "moe-e2e"
ARTIFACTS = Path(__file__).parents[2] / "e2e" / "artifacts"
CHECKPOINTS = ("kimi-k3", "deepseek-v3.1")
FIGURES = pytest.StashKey[dict[str, str]]()


@dataclass
class Audited:
    """Since when the audit log is this run's, and when nobody had a role: uninstalled, or not read yet."""

    since: datetime = field(default_factory=now)
    without_roles: list[Interval] = field(default_factory=list)


@pytest.fixture(scope="session")
def audited(site: Site) -> Audited:
    return Audited()


@pytest.fixture(scope="session")
def folders() -> Folders:
    return Folders.from_environment()


@pytest.fixture(scope="session")
def site(folders: Folders) -> Iterator[Site]:
    """The operator's release, fresh images in the nodes, an empty namespace with the checkpoints in it."""
    site = bring_up(folders, Progress(), bootstrap=True)
    client = site.record.client
    for namespace in ("default", NAMESPACE):  # what a demo or a run that was cut off has left holds GPUs
        client("delete", "moed", "--all", "-n", namespace)
    client("delete", "namespace", NAMESPACE, "--ignore-not-found")
    client("delete", "pv", f"checkpoints-{NAMESPACE}", "--ignore-not-found")
    client("create", "namespace", NAMESPACE)
    for checkpoint in CHECKPOINTS:
        build(checkpoint, shared_folder.checkpoints(folders) / checkpoint)
    provide(site.record, (NAMESPACE,))
    yield site
    client("delete", "moed", "--all", "-n", NAMESPACE)


@pytest.fixture
async def world(site: Site, folders: Folders, audited: Audited) -> AsyncIterator[World]:
    async with kind_backend(site, folders) as backend:
        yield World(backend, backend.kube, NAMESPACE)


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> dict[str, str]:
    """What was measured, told at the end of the run and kept in e2e/artifacts."""
    return request.config.stash.setdefault(FIGURES, {})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and "site" in getattr(item, "funcargs", {}):
        ARTIFACTS.mkdir(exist_ok=True)
        path = ARTIFACTS / f"{item.name.replace('/', '_')}.{report.when}.txt"
        path.write_text(f"{report.longreprtext}\n{evidence(item.funcargs['site'].record, NAMESPACE)}")  # type: ignore[attr-defined]
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    measured = config.stash.get(FIGURES, {})
    if measured:
        ARTIFACTS.mkdir(exist_ok=True)
        (ARTIFACTS / "figures.json").write_text(json.dumps(measured, indent=1) + "\n")
        terminalreporter.section("figures")
        for name, figure in measured.items():
            terminalreporter.write_line(f"{name}: {figure}")
