"""What an image is on this machine: a command.

``--image NAME=COMMAND`` says it; the operator's own commands need no saying, they lie beside the running
interpreter. An image that is neither cannot be pulled, as in a cluster.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from moe_operator.runtime.kube import Obj

OWN_COMMANDS = frozenset({"moestage", "moe-gateway-agent", "moe-operator", "envoy"})


@dataclass(frozen=True, slots=True)
class ImageCommand:
    """``host`` words are of this machine and stay as they are; ``container`` words are rewritten."""

    host: tuple[str, ...]
    container: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Images:
    """Image name (with or without its tag) → command."""

    commands: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def parse(cls, mappings: Iterable[str]) -> Images:
        """From ``NAME=COMMAND`` texts; ValueError for one that has no name or no command."""
        commands = {}
        for text in mappings:
            name, separator, command = text.partition("=")
            words = tuple(shlex.split(command))
            if not name or not separator or not words:
                raise ValueError(f"{text!r} is not NAME=COMMAND, e.g. vllm/vllm-openai=./engine-stub")
            commands[name] = words
        return cls(commands)

    def command(self, container: Obj) -> ImageCommand | None:
        """What to run for a container; None when its image means nothing here."""
        args = tuple(container.get("args") or ())
        image = container["image"]
        mapped = self.commands.get(image) or self.commands.get(repository(image))
        if mapped:
            return ImageCommand(mapped, args)
        command = tuple(container.get("command") or ())
        if command and command[0] in OWN_COMMANDS and (bin_directory() / command[0]).exists():
            return ImageCommand((str(bin_directory() / command[0]),), (*command[1:], *args))
        return None


def repository(image: str) -> str:
    """An image without tag and digest; the port of a registry is not a tag."""
    name = image.partition("@")[0]
    head, slash, tail = name.rpartition("/")
    return f"{head}{slash}{tail.partition(':')[0]}"


def bin_directory() -> Path:
    """Where the commands of this installation are."""
    return Path(sys.executable).parent


def cannot_pull(image: str) -> str:
    """The message of ErrImagePull."""
    return (
        f'failed to pull image "{image}": this sandbox does not know it; say what it is with '
        f"--image {repository(image)}=COMMAND"
    )
