"""Messages of the Fluentd forward protocol, as Envoy's access logger sends them.

A message is MessagePack: ``[tag, [[time, record], …]]``, a record being a flat map. Only the types that can
occur in it are read. Envoy has no other way to hand its log to a local process without gRPC, a write that may
block, or a file that grows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

MAX_HELD_BYTES = 16 << 20  # of a message that has not arrived whole

Record = dict[str, Any]


class Malformed(ValueError):
    """These bytes are no message of this protocol."""


class _Short(Exception):
    """The message goes on after what has arrived."""


class Messages:
    """Bytes in, records out; one for each connection."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> list[Record]:
        """The records of all messages that are whole now, oldest first; Malformed when the bytes are none."""
        self._held += data
        records: list[Record] = []
        while self._held:
            reader = _Reader(self._held)
            try:
                records += _records(reader.value())
            except _Short:
                break
            self._held = self._held[reader.at :]
        if len(self._held) > MAX_HELD_BYTES:
            raise Malformed(f"a message of more than {MAX_HELD_BYTES} bytes")
        return records


def _records(message: Any) -> list[Record]:
    try:
        _, entries = message
        return [record for _, record in entries if isinstance(record, dict)]
    except (TypeError, ValueError):
        raise Malformed("not [tag, [[time, record], ...]]") from None


class _Reader:
    __slots__ = ("_data", "at")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def value(self) -> Any:
        try:
            kind = self._data[self.at]
        except IndexError:
            raise _Short from None
        self.at += 1
        return _TYPES[kind](self)

    def array(self, length: int) -> list[Any]:
        return [self.value() for _ in range(length)]

    def map(self, length: int) -> dict[Any, Any]:
        return {self.value(): self.value() for _ in range(length)}

    def text(self, length: int) -> str:
        return self._take(length).decode(errors="replace")

    def number(self, layout: struct.Struct) -> Any:
        return layout.unpack(self._take(layout.size))[0]

    def _take(self, length: int) -> bytes:
        end = self.at + length
        if end > len(self._data):
            raise _Short
        taken = self._data[self.at : end]
        self.at = end
        return taken


_Read = Callable[[_Reader], Any]


def _unknown(_: _Reader, kind: int) -> Any:
    raise Malformed(f"MessagePack type {kind:#x}")


def _constant(_: _Reader, value: Any) -> Any:
    return value


def _counted(reader: _Reader, read: Callable[[_Reader, int], Any], layout: struct.Struct) -> Any:
    return read(reader, reader.number(layout))


def _types() -> tuple[_Read, ...]:
    """How a value is read, by its first byte."""
    read: list[_Read] = [partial(_unknown, kind=kind) for kind in range(256)]
    for rest in range(0x80):
        read[rest] = partial(_constant, value=rest)
    for rest in range(0x10):
        read[0x80 + rest] = partial(_Reader.map, length=rest)
        read[0x90 + rest] = partial(_Reader.array, length=rest)
    for rest in range(0x20):
        read[0xA0 + rest] = partial(_Reader.text, length=rest)
        read[0xE0 + rest] = partial(_constant, value=rest - 0x20)
    for kind, value in ((0xC0, None), (0xC2, False), (0xC3, True)):
        read[kind] = partial(_constant, value=value)
    for kind, layout in zip(range(0xCA, 0xD4), "fdBHIQbhiq", strict=True):
        read[kind] = partial(_Reader.number, layout=struct.Struct(f">{layout}"))
    lengths = {"B": struct.Struct(">B"), "H": struct.Struct(">H"), "I": struct.Struct(">I")}
    counted = ((0xD9, _Reader.text, "BHI"), (0xDC, _Reader.array, "HI"), (0xDE, _Reader.map, "HI"))
    for first, what, sizes in counted:
        for offset, size in enumerate(sizes):
            read[first + offset] = partial(_counted, read=what, layout=lengths[size])
    return tuple(read)


_TYPES = _types()
