"""The reader against messages as Envoy sends them, and against bytes that are none."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moe_operator.gateway.forward_protocol import MAX_HELD_BYTES, Malformed, Messages

SENT = bytes.fromhex(  # captured from Envoy 1.40: one entry, {"code": 200, "key": "tenant-0", "none": null}
    "92a17491" "92ce6b0d2fa7" "83" "a4636f6465ccc8" "a36b6579a874656e616e742d30" "a46e6f6e65c0"
)  # fmt: skip
RECORD = {"code": 200, "key": "tenant-0", "none": None}

values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=300),
)
records = st.dictionaries(st.text(max_size=40), values, max_size=20)


def packed(value: Any) -> bytes:
    """MessagePack, in the widest form of each type."""
    match value:
        case None:
            return b"\xc0"
        case bool():
            return b"\xc3" if value else b"\xc2"
        case int():
            return b"\xcf" + struct.pack(">Q", value) if value >= 0 else b"\xd3" + struct.pack(">q", value)
        case float():
            return b"\xcb" + struct.pack(">d", value)
        case str():
            return b"\xdb" + struct.pack(">I", len(value.encode())) + value.encode()
        case list():
            return b"\xdd" + struct.pack(">I", len(value)) + b"".join(map(packed, value))
        case dict():
            pairs = b"".join(packed(key) + packed(each) for key, each in value.items())
            return b"\xdf" + struct.pack(">I", len(value)) + pairs
    raise TypeError(value)


def test_a_message_of_envoy() -> None:
    assert Messages().feed(SENT) == [RECORD]


def test_messages_arrive_in_any_pieces() -> None:
    messages, found = Messages(), []
    for byte in SENT * 3:
        found += messages.feed(bytes([byte]))
    assert found == [RECORD] * 3


@given(st.lists(records, max_size=4), st.integers(1, 50))
def test_whatever_is_sent_is_read(sent: list[dict[str, Any]], piece: int) -> None:
    data = packed(["tag", [[1, record] for record in sent]])
    messages, found = Messages(), []
    for at in range(0, len(data), piece):
        found += messages.feed(data[at : at + piece])
    assert found == sent


@pytest.mark.parametrize(
    "data", [b"\xc1", b"\x01", b"\xa3abc", b"\x91\x01", b"\x92\xa1t\x91\x01", b"\xc7\x00"]
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        Messages().feed(data)


def test_a_message_without_end_is_not_kept() -> None:
    messages = Messages()
    messages.feed(b"\xdb\xff\xff\xff\xff")
    with pytest.raises(Malformed, match="more than"):
        messages.feed(bytes(MAX_HELD_BYTES))
