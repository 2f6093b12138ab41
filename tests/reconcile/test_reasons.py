"""The registry of reasons holds what the operator says, and nothing else."""

from __future__ import annotations

from pathlib import Path

import moe_operator
import pytest
from moe_operator.api.conditions import Reason

PACKAGE = Path(moe_operator.__file__).parent
SOURCE = "\n".join(p.read_text() for p in PACKAGE.rglob("*.py") if p.name != "conditions.py")


@pytest.mark.parametrize("reason", list(Reason), ids=str)
def test_every_reason_is_given_somewhere(reason: Reason) -> None:
    assert f"Reason.{reason.name}" in SOURCE
