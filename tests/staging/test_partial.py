"""What a process that dies between two steps leaves of a file on its way."""

from __future__ import annotations

from pathlib import Path

import pytest
from moe_operator.staging.partial import Partial
from moe_operator.staging.stop import Stop
from moe_operator.staging.store import Store, init_store

DIGEST = "ab" * 32


class Died(BaseException):
    """The process ended here."""


def test_a_journal_never_outlives_the_bytes_it_speaks_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    init_store(tmp_path)
    store = Store(tmp_path)
    partial = Partial(store, DIGEST, 64, interval=1, chunk=0, stop=Stop())
    partial.write(memoryview(bytes(48)))
    assert store.journal(DIGEST).exists()

    def dies(store: Store, path: Path) -> None:
        raise Died

    monkeypatch.setattr(Store, "quarantine", dies)
    with pytest.raises(Died):
        partial.quarantine()
    partial.close()
    assert not store.journal(DIGEST).exists()
    again = Partial(store, DIGEST, 64, interval=1, chunk=0, stop=Stop())
    assert again.position == 0
    again.close()
