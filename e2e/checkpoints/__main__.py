"""``python -m e2e.checkpoints build NAME DIR [--revision N]`` and ``python -m e2e.checkpoints list``."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import MODELS, build


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m e2e.checkpoints", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="names that can be built")
    builder = commands.add_parser("build", help="write one checkpoint")
    builder.add_argument("name", choices=sorted(MODELS))
    builder.add_argument("directory", type=Path)
    builder.add_argument("--revision", type=int, default=1)
    given = parser.parse_args()
    if given.command == "list":
        print("\n".join(sorted(MODELS)))
    else:
        build(given.name, given.directory, revision=given.revision)


if __name__ == "__main__":
    main()
