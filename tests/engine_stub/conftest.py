"""Checkpoints and stub processes for the tests of this room."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.checkpoints import build

from .fleet import Fleet


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of the recordings: four layers, eight experts, two shards."""
    directory = tmp_path_factory.mktemp("checkpoints") / "tiny"
    build("tiny-qwen3-moe", directory)
    return directory


@pytest.fixture(scope="session")
def deepseek(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DeepSeek-V3.1 with shrunk tensors."""
    directory = tmp_path_factory.mktemp("checkpoints") / "deepseek"
    build("deepseek-v3.1", directory)
    return directory


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Stubs of one test."""
    started = Fleet(tmp_path)
    yield started
    started.close()
