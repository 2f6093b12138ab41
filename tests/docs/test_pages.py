"""What the pages say is so: their commands run, their objects are accepted, their links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from moe_operator.api.spec import MoEDeployment

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)(#[^)]*)?\)")
CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)
READY_SECONDS = 300


def commands(page: Path) -> list[str]:
    """Every command of the page's console blocks, continuation lines joined."""
    blocks = CONSOLE.findall(page.read_text())
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line.strip()]


def run(command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command], cwd=cwd, capture_output=True, text=True, timeout=READY_SECONDS, check=False
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_link_leads_to_a_file(page: Path) -> None:
    missing = [target for target, _ in LINK.findall(page.read_text()) if not (page.parent / target).exists()]
    assert not missing


def test_the_object_of_the_readme_is_accepted() -> None:
    block = re.search(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block
    assert MoEDeployment.parse(yaml.safe_load(block.group(1))).name == "kimi-k3"


def test_ci_runs_the_test_command_of_the_readme_and_nothing_else() -> None:
    assert "make test" in commands(ROOT / "README.md")
    script = (ROOT / ".ci" / "run").read_text().splitlines()
    assert [line for line in script if line and not line.startswith(("#", "set ", "cd "))] == [
        "exec make test"
    ]


def test_the_demo_command_of_the_readme_runs() -> None:
    assert "make demo" in commands(ROOT / "README.md")
    done = run("make demo")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "no request failed, no stream broke" in done.stdout


def test_the_commands_of_getting_started_bring_a_deployment_up(tmp_path: Path) -> None:
    build, sandbox = commands(ROOT / "docs" / "getting-started.md")
    for name in (".venv", "manifests", "e2e"):
        (tmp_path / name).symlink_to(ROOT / name)
    built = run(build, tmp_path)
    assert built.returncode == 0, built.stderr
    served = run(f"{sandbox} --exit-after-ready --loopback-range 127.80.0.0/12", tmp_path)
    assert served.returncode == 0, served.stdout[-4000:] + served.stderr[-2000:]
    assert "deepseek-v31 serves at http://127." in served.stdout


def test_every_command_named_by_the_makefile_explains_itself() -> None:
    listed = run("make help").stdout
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets and all(f"make {target}" in listed for target in targets)


def test_no_registry_host_is_named_anywhere() -> None:
    """Clients know their registries; a name here would be wrong on the next machine."""
    parts = (
        "pypi .org", "files.python hosted", "registry.npm js", "registry.k8 s.io", "ghcr .io",
        "docker .io/", "proxy.golang .org", "deb.debian .org",
    )  # fmt: skip
    hosts = [part.replace(" ", "") for part in parts]  # so that this file does not name them either
    found = subprocess.run(
        ["git", "grep", "-lF", *(word for host in hosts for word in ("-e", host))],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}, check=False,
    )  # fmt: skip
    assert found.stdout.split() == []
