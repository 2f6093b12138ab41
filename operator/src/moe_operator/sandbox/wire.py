"""Values as they travel: plain JSON, copied, timed."""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any, TypeVar, cast

T = TypeVar("T")


def plain(value: Any, *, nulls: bool = False) -> Any:
    """A copy of ``value`` made of dict, list, str, int, float, bool only.

    Keys with the value None are dropped, as the API server drops explicit nulls, unless ``nulls`` keeps them.
    TypeError for anything that JSON cannot carry.
    """
    if isinstance(value, Enum):
        value = value.value
    if value is None or type(value) in (str, int, bool, float):
        return value
    if isinstance(value, Mapping):
        kept = ((name, part) for name, part in value.items() if nulls or part is not None)
        return {_key(name): plain(part, nulls=nulls) for name, part in kept}
    if isinstance(value, (list, tuple)):
        return [plain(part, nulls=nulls) for part in value]
    raise TypeError(f"{type(value).__name__} is not a JSON value: {value!r}")


def _key(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{name!r} is not a JSON key")
    return str(name)


def clone(value: T) -> T:
    """A deep copy of a plain value."""
    return cast("T", marshal.loads(marshal.dumps(cast("Any", value))))


def rfc3339(epoch_seconds: float) -> str:
    """The time as ``metav1.Time`` spells it: whole seconds, UTC."""
    return datetime.fromtimestamp(int(epoch_seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
