from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from moe_operator.staging.store import Store, init_store

from tests.staging import stager as stagers
from tests.staging.fault_server import FaultServer, fault_server
from tests.staging.stager import Stager


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault_server() as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> Store:
    init_store(tmp_path / "store")
    return Store(tmp_path / "store")


@pytest.fixture(scope="session")
def stager() -> Iterator[Stager]:
    with stagers.stager() as running:
        yield running
