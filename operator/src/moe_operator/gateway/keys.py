"""API keys as the gateway knows them: an id and the SHA-256 of the key, never the key.

A Secret holds one entry per key value. Its name is the key's id, or ``<id>.<number>`` for a further value of
the same id, so that an old and a new value can overlap while clients change over. Its content is::

    <64 hex digits of SHA-256>[,expires=<RFC 3339>]

Invariants: an entry that cannot be read opens nothing and does not close the others; what is said about it
names the entry and never its content, which may be a key that somebody put there by mistake.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from moe_operator.api.names import digest

MAX_KEYS = 32_768  # values; a Secret holds at most 1 MiB
NEVER = 0
DIGEST_LENGTH = 16  # hex digits

_ID = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,126}[A-Za-z0-9])?")
_NUMBER = re.compile(r"\.\d+$")
_SUM = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class KeyHash:
    """One value of one key."""

    key_id: str
    sha256: str  # 64 lower-case hex digits
    expires: int = NEVER  # Unix seconds; from then on it opens nothing


@dataclass(frozen=True, slots=True)
class Keyring:
    """Every key that opens the gateway, ordered by hash, and what is wrong with the Secret."""

    hashes: tuple[KeyHash, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def key_ids(self) -> tuple[str, ...]:
        """Distinct ids in alphabetical order."""
        return tuple(sorted({key.key_id for key in self.hashes}))

    @property
    def digest(self) -> str:
        """Equal for sets that open the same doors; says nothing about any key."""
        rows = (f"{key.sha256} {key.expires} {key.key_id}" for key in self.hashes)
        return digest("\n".join(rows), DIGEST_LENGTH)


@dataclass(frozen=True, slots=True)
class InForce:
    """What one gateway pod can say about its keys."""

    values: int | None = None  # that are mounted; None = none is asked for
    digest: str = ""  # of the mounted set, once Envoy goes by it


class Unreadable(ValueError):
    """An entry is no key; the message says why without quoting it."""


def keyring(entries: Mapping[str, str]) -> Keyring:
    """The keys in a Secret's entries, by entry name; of two entries with one value the first name counts."""
    found: dict[str, KeyHash] = {}
    problems: list[str] = []
    for name, content in sorted(entries.items()):
        try:
            key = _key(name, content)
        except Unreadable as error:
            problems.append(f"entry {name!r}: {error}")
            continue
        if len(found) >= MAX_KEYS:
            problems.append(f"entry {name!r}: more than {MAX_KEYS} keys")
            break
        if found.setdefault(key.sha256, key).key_id != key.key_id:
            problems.append(f"entry {name!r}: the same key as {found[key.sha256].key_id!r}")
    return Keyring(tuple(sorted(found.values(), key=lambda key: key.sha256)), tuple(problems))


def _key(name: str, content: str) -> KeyHash:
    key_id = _NUMBER.sub("", name)
    if not _ID.fullmatch(key_id):
        raise Unreadable("its name is no key id")
    sha256, *attributes = (part.strip() for part in content.split(","))
    sha256 = sha256.lower()
    if not _SUM.fullmatch(sha256):
        raise Unreadable("not the SHA-256 of a key in 64 hex digits")
    return KeyHash(key_id, sha256, *_expiry(attributes))


def _expiry(attributes: list[str]) -> Iterator[int]:
    for attribute in attributes:
        name, _, value = attribute.partition("=")
        if name != "expires" or len(attributes) > 1:
            raise Unreadable("only one expires=<RFC 3339> may follow the sum")
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise Unreadable("expires= is no RFC 3339 time") from None
        if moment.tzinfo is None:
            raise Unreadable("expires= names no time zone")
        yield max(1, int(moment.timestamp()))
