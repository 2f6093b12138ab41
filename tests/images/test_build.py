"""Building: what Docker is asked, with a `docker` on PATH that writes it down."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.host import CannotContinue
from e2e.cluster.progress import Progress
from e2e.cluster.settings import Folders
from e2e.images.build import build
from e2e.images.recipes import RECIPES

# Holds images as files; knows the base, and buildx only where a file says so.
DOCKER = """\
#!/usr/bin/env python3
import json, os, pathlib, sys
home = pathlib.Path(__file__).parent
argv = sys.argv[1:]
if argv == ["version"]:
    sys.exit(0 if (home / "daemon").exists() else 1)
if argv[:2] == ["buildx", "version"]:
    sys.exit(0 if (home / "buildx").exists() else 1)
images = json.loads((home / "images.json").read_text())
if argv[:2] == ["image", "inspect"]:
    if argv[-1] not in images:
        sys.exit(1)
    print({"{{.Id}}": "sha256:" + argv[-1], "{{.Size}}": images[argv[-1]]}.get(argv[-2], ""))
elif argv[0] == "build":
    context = pathlib.Path(argv[-1])
    held = sorted(str(p.relative_to(context)) for p in context.rglob("*") if p.is_file())
    call = {"argv": argv, "held": held, "buildkit": os.environ.get("DOCKER_BUILDKIT")}
    with (home / "builds.jsonl").open("a") as log:
        log.write(json.dumps(call) + "\\n")
    images[argv[argv.index("--tag") + 1]] = 123
    (home / "images.json").write_text(json.dumps(images))
else:
    sys.exit(f"unexpected: {argv}")
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "docker"
    program.write_text(DOCKER)
    program.chmod(0o755)
    (folder / "daemon").touch()
    (folder / "images.json").write_text(json.dumps({"base:1": 1}))
    (folder / "builds.jsonl").touch()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.delenv("DOCKER_BUILDKIT", raising=False)
    return folder


def builds(docker: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (docker / "builds.jsonl").read_text().splitlines()]


def test_an_image_is_built_from_its_own_files_once(docker: Path, tmp_path: Path) -> None:
    folders = Folders(tmp_path / "cache")
    first = build(RECIPES["stub"], "base:1", folders, Progress(write=lambda _: None))
    assert build(RECIPES["stub"], "base:1", folders, Progress(write=lambda _: None)) == first
    (call,) = builds(docker)
    assert first.reference == RECIPES["stub"].reference("sha256:base:1")
    assert first.size == 123
    assert call["argv"][call["argv"].index("--build-arg") + 1] == "BASE=base:1"
    assert {"e2e/__init__.py", "e2e/engine_stub/__main__.py", "e2e/engine_stub/vllm_serve.py"} <= set(
        call["held"]
    )
    assert not [path for path in call["held"] if path.endswith(".pyc") or path.startswith("e2e/cluster")]
    assert list(folders.work.iterdir()) == []


def test_without_buildx_the_classic_builder_is_asked(docker: Path, tmp_path: Path) -> None:
    build(RECIPES["stub"], "base:1", Folders(tmp_path), Progress(write=lambda _: None))
    (call,) = builds(docker)
    assert call["buildkit"] == "0"
    assert "--provenance=false" not in call["argv"]


def test_with_buildx_the_image_is_a_single_one_that_kind_can_load(docker: Path, tmp_path: Path) -> None:
    (docker / "buildx").touch()
    build(RECIPES["stub"], "base:1", Folders(tmp_path), Progress(write=lambda _: None))
    (call,) = builds(docker)
    assert call["buildkit"] is None
    assert "--provenance=false" in call["argv"]


def test_without_a_daemon_it_says_what_starts_one(docker: Path, tmp_path: Path) -> None:
    (docker / "daemon").unlink()
    with pytest.raises(CannotContinue, match=r"python -m e2e\.cluster up"):
        build(RECIPES["stub"], "base:1", Folders(tmp_path), Progress(write=lambda _: None))
