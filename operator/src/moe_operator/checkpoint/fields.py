"""Reading numbers out of config.json: the first name that is present, refused when absurd."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moe_operator.checkpoint.unreadable import UnreadableConfig

Config = Mapping[str, Any]
MAX_PLAUSIBLE = 1 << 24
MAX_LAYERS = 4096


def whole(config: Config, *names: str, default: int = 0) -> int:
    """The whole number under the first of ``names`` that is present; UnreadableConfig when absurd."""
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_PLAUSIBLE:
            raise UnreadableConfig(f"config.json: {name} = {value!r} is not a plausible whole number")
        return value
    return default


def required(config: Config, *names: str) -> int:
    """As :func:`whole`, but it must be there and positive."""
    value = whole(config, *names)
    if value == 0:
        raise UnreadableConfig(f"config.json does not say {' or '.join(names)}")
    return value


def per_layer(config: Config, name: str, layers: int) -> Sequence[str | int] | None:
    """A list with a value for every layer, or None when the field is absent or something else."""
    value = config.get(name)
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        return None
    if len(value) < layers:
        raise UnreadableConfig(f"config.json: {name} has {len(value)} values for {layers} layers")
    return _plain(name, value)


def listed(config: Config, name: str) -> Sequence[str | int]:
    """A list of words or numbers; empty when the field is absent or something else."""
    value = config.get(name)
    return _plain(name, value) if isinstance(value, Sequence) and not isinstance(value, str) else ()


def _plain(name: str, values: Sequence[Any]) -> Sequence[str | int]:
    odd = next((v for v in values if not isinstance(v, str | int)), None)
    if odd is not None or None in values:
        raise UnreadableConfig(f"config.json: {name} holds {odd!r}, neither a word nor a whole number")
    return values


def section(config: Config, name: str) -> Config:
    """A nested object; empty when absent."""
    value = config.get(name)
    return value if isinstance(value, Mapping) else {}
