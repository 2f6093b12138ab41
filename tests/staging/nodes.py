"""Several nodes at once: stores that serve each other, as `moestage serve` processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from moe_operator.staging.store import Store, init_store

from tests.staging.stager import Run, Stager

TOKEN = "only-nodes-know-this"


@dataclass(frozen=True)
class Node:
    store: Store
    url: str
    server: Run
    token_file: Path


@contextmanager
def nodes(stager: Stager, root: Path, count: int, *options: object) -> Iterator[list[Node]]:
    """``count`` empty stores, each with a server on a loopback address of its own."""
    token = root / "token"
    token.write_text(TOKEN + "\n")
    with ExitStack() as stack:
        made = []
        for number in range(1, count + 1):
            store = Store(root / f"node-{number}")
            init_store(store.root)
            run = stack.enter_context(
                stager.running(
                    "serve", "--store", store.root, "--token-file", token, "--listen", f"127.74.2.{number}:0",
                    *options,
                )
            )  # fmt: skip
            made.append(Node(store, f"http://{run.address()}", run, token))
        yield made
