"""The demo's story as a test: nothing is lost while a revision is replaced under load."""

from __future__ import annotations

import io
from dataclasses import replace
from ipaddress import IPv4Network
from typing import Any

from rich.console import Console

from e2e.scenarios.demo import tell
from e2e.scenarios.replace_revision import Told
from e2e.scenarios.sandbox_demo import demo_cluster, demo_wish
from e2e.scenarios.screen import Screen

RANGE = IPv4Network("127.112.0.0/12")
REQUESTS = 2_000


def in_a_hurry(deployment: dict[str, Any]) -> dict[str, Any]:
    """Tokens every 5 ms: more requests during the change itself."""
    engine = {**deployment["spec"]["engine"], "env": [{"name": "STUB_ITL_MS", "value": "5"}]}
    return {**deployment, "spec": {**deployment["spec"], "engine": engine}}


async def test_a_change_of_revision_under_load_loses_no_request_and_breaks_no_stream() -> None:
    written = io.StringIO()
    wish = demo_wish(clients=20, requests=REQUESTS)
    wish = replace(wish, deployment=in_a_hurry(wish.deployment), max_tokens=16)
    told = Told()
    async with demo_cluster(wish, RANGE) as backend:
        code = await tell(backend, Screen(Console(file=written, width=120)), wish, told)
    assert code == 0, written.getvalue()
    assert told.findings() == []
    assert told.tally.sent >= REQUESTS
    assert (told.tally.count("failed"), told.tally.count("broken")) == (0, 0)
    assert len(told.tally.by_revision()) == 2  # both revisions answered
    assert told.tally.across(told.switched) > 0  # streams ran on across the switch
    assert "Pods and nodes" in written.getvalue()
