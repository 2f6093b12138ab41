from __future__ import annotations

import json

from e2e.checkpoints import published


def test_the_catalogue_is_what_the_generator_writes() -> None:
    assert published.TARGET.read_text() == published.text(), "run python -m e2e.checkpoints.published"


def test_every_entry_says_where_it_is_from() -> None:
    catalogue = json.loads(published.TARGET.read_text())
    assert catalogue["asOf"] and len(catalogue["models"]) >= 20
    for entry in catalogue["models"].values():
        assert entry["source"] and entry["config"]["architectures"]
        assert "totalBytes" not in entry or entry["totalSource"]
