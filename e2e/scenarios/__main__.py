"""``python -m e2e.scenarios [--clients N] [--requests N] [--keep] [--plain]``."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from .demo import run
from .sandbox_demo import sandbox_demo


def main() -> int:
    """The demo, as the command line asks for it."""
    parser = argparse.ArgumentParser(prog="python -m e2e.scenarios", description=__doc__)
    parser.add_argument("--clients", type=int, default=20, help="clients that stream during the change")
    parser.add_argument("--requests", type=int, default=0, help="send at least so many during the change")
    parser.add_argument("--keep", action="store_true", help="leave the cluster up until Ctrl-C")
    parser.add_argument("--plain", action="store_true", help="lines instead of moving bars")
    given = parser.parse_args()
    if given.clients < 1 or given.requests < 0:
        parser.error("--clients must be at least 1, --requests at least 0")
    console = Console(force_terminal=False if given.plain else None, highlight=False)
    return run(sandbox_demo(given.clients, given.requests), console, keep=given.keep)


if __name__ == "__main__":
    sys.exit(main())
