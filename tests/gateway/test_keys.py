from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moe_operator.gateway import mount
from moe_operator.gateway.keys import KeyHash, keyring
from moe_operator.gateway.slots import FEWEST, assign, capacity

from tests.gateway.secret import Mount

A, B, C = (sha256(key.encode()).hexdigest() for key in ("sk-a", "sk-b", "sk-c"))
ids = st.text("abcdef", min_size=1, max_size=3)


def test_an_id_may_have_several_values_and_each_may_expire() -> None:
    found = keyring({"team": f"{A}\n", "team.2": f"{B.upper()},expires=2030-01-01T00:00:00Z", "x-1.y": C})
    assert found.problems == ()
    assert set(found.hashes) == {
        KeyHash("team", A),
        KeyHash("team", B, 1893456000),
        KeyHash("x-1.y", C),
    }
    assert list(found.hashes) == sorted(found.hashes, key=lambda key: key.sha256)
    assert found.key_ids == ("team", "x-1.y")


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("team", "sk-plain-key", "not the SHA-256 of a key in 64 hex digits"),
        ("team", "", "not the SHA-256 of a key in 64 hex digits"),
        ("team", A[:-1], "not the SHA-256 of a key in 64 hex digits"),
        ("-team", A, "its name is no key id"),
        ("te am", A, "its name is no key id"),
        ("team", f"{A},expires=soon", "expires= is no RFC 3339 time"),
        ("team", f"{A},expires=2030-01-01T00:00:00", "expires= names no time zone"),
        ("team", f"{A},rate=3", "only one expires=<RFC 3339> may follow the sum"),
        ("team", f"{A},expires=2030-01-01T00:00:00Z,expires=2031-01-01T00:00:00Z", "only one expires="),
    ],
)
def test_what_is_no_key_opens_nothing_and_is_not_quoted(name: str, content: str, problem: str) -> None:
    found = keyring({name: content, "good": B})
    assert found.hashes == (KeyHash("good", B),)
    assert len(found.problems) == 1
    assert problem in found.problems[0]
    assert "sk-plain-key" not in found.problems[0]


def test_one_key_cannot_be_two_clients() -> None:
    found = keyring({"b": A, "a": A, "a.2": A})
    assert found.hashes == (KeyHash("a", A),)
    assert found.problems == ("entry 'b': the same key as 'a'",)


@given(st.lists(st.sets(ids, max_size=12), max_size=6))
def test_a_key_keeps_its_slot_and_shares_it_with_nobody(history: list[set[str]]) -> None:
    slots: dict[str, int] = {}
    for wanted in history:
        after = assign(slots, wanted)
        assert set(after) == wanted
        assert len(set(after.values())) == len(after)
        assert all(after[key] == slots[key] for key in wanted & set(slots))
        slots = after
        assert max(slots.values(), default=0) < capacity(slots)


def test_there_are_always_as_many_slots_as_a_power_of_two() -> None:
    assert capacity({}) == FEWEST
    assert capacity({"a": FEWEST - 1}) == FEWEST
    assert capacity({"a": FEWEST}) == 2 * FEWEST


def test_a_mounted_secret_is_read_as_one_version(tmp_path: Path) -> None:
    Mount(tmp_path).write(a="one", b="two")
    before = mount.version(tmp_path)
    assert mount.entries(tmp_path) == {"a": "one", "b": "two"}
    assert mount.version(tmp_path) == before

    Mount(tmp_path).write(a="three")
    assert mount.entries(tmp_path) == {"a": "three"}
    assert mount.version(tmp_path) != before


def test_a_plain_directory_is_watched_by_its_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one")
    before = mount.version(tmp_path)
    (tmp_path / "b").write_text("two")
    assert mount.version(tmp_path) != before
    assert mount.entries(tmp_path) == {"a": "one", "b": "two"}


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    assert mount.version(tmp_path / "none") is None
    with pytest.raises(FileNotFoundError):
        mount.entries(tmp_path / "none")


def test_the_digest_is_that_of_the_doors_that_open() -> None:
    """Not of the Secret's bytes: what opens nothing, and in which entry a value is, does not matter."""
    first = keyring({"a": A, "b": B}).digest
    assert first == keyring({"a.7": A.upper(), "b": B, "c": "nonsense"}).digest
    others = [{}, {"a": A}, {"b": A, "a": B}, {"a": f"{A},expires=2030-01-01T00:00:00Z", "b": B}]
    assert len({first, *(keyring(entries).digest for entries in others)}) == 5
