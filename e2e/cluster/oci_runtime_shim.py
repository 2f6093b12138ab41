"""runc for machines without CAP_SYS_RESOURCE: leaves that capability out of what a container asks for.

A privileged container asks for every capability, and runc refuses to start it when one lies outside the
bounding set. The tool installs this file as an executable with an interpreter line, and Docker calls it as it
would call runc.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

CAPABILITY = "CAP_SYS_RESOURCE"


def without_capability(process: dict[str, Any]) -> dict[str, Any]:
    """An OCI process description whose capability sets lack CAP_SYS_RESOURCE."""
    sets = process.get("capabilities") or {}
    kept = {name: [cap for cap in caps or () if cap != CAPABILITY] for name, caps in sets.items()}
    return {**process, "capabilities": kept}


def option(arguments: list[str], *names: str) -> str | None:
    """The value of an option given as ``--name value`` or ``--name=value``."""
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name in names:
            return value if equals else arguments[index + 1]
    return None


def rewrite(arguments: list[str]) -> None:
    """Edit the description that this runc call is about to read, if it reads one."""
    if "create" in arguments or "run" in arguments:
        path = Path(option(arguments, "--bundle", "-b") or ".") / "config.json"
        config = json.loads(path.read_text())
        path.write_text(json.dumps({**config, "process": without_capability(config["process"])}))
    elif "exec" in arguments and (process_file := option(arguments, "--process", "-p")):
        path = Path(process_file)
        path.write_text(json.dumps(without_capability(json.loads(path.read_text()))))


if __name__ == "__main__":
    rewrite(sys.argv[1:])
    runc = shutil.which("runc", path="/usr/bin:/usr/sbin:/usr/local/bin:/usr/local/sbin") or "runc"
    os.execv(runc, ["runc", *sys.argv[1:]])
