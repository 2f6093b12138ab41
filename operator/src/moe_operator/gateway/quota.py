"""Tokens per minute: each key has an account that fills evenly and is charged after the fact.

What a request takes is known when its answer ends, so an account may fall below zero; while it is, the key
waits. An account starts full and never holds more than one minute's worth. A charge counts for requests that
come after it: a key can overdraw by what it has in flight, and pays for that by waiting longer.

Pure: the clock comes in. Moments are Unix seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from moe_operator.api.intent import Intent

MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Account:
    """What a key had left at a moment."""

    tokens: float
    at: float

    def now(self, limit: int, moment: float) -> Account:
        """The same account later on; a clock that went back fills nothing."""
        filled = self.tokens + limit * max(0.0, moment - self.at) / MINUTE
        return Account(min(float(limit), filled), moment)


@dataclass(frozen=True, slots=True)
class Allowances:
    """Tokens per minute by key; None = not limited."""

    common: int | None = None
    own: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, intent: Intent | None) -> Allowances:
        """What an intent allows."""
        if intent is None or intent.keys is None:
            return cls()
        own = {key.key_id: key.tokens_per_minute for key in intent.key_limits if key.tokens_per_minute}
        return cls(intent.limits.tokens_per_minute_per_key, own)

    def of_key(self, key_id: str) -> int | None:
        """Tokens per minute of one key."""
        return self.own.get(key_id, self.common)


@dataclass(frozen=True, slots=True)
class Quotas:
    """The accounts that are not full."""

    allowances: Allowances = Allowances()
    accounts: Mapping[str, Account] = field(default_factory=dict)

    def charged(self, tokens: Mapping[str, int], moment: float) -> Quotas:
        """With ``tokens`` by key id taken from the accounts of keys that are limited; a negative charge is
        given back.
        """
        after = dict(self.accounts)
        for key_id, taken in tokens.items():
            limit = self.allowances.of_key(key_id)
            if limit is not None:
                account = after.get(key_id, Account(limit, moment)).now(limit, moment)
                after[key_id] = replace(account, tokens=min(float(limit), account.tokens - taken))
        return replace(self, accounts=after)

    def waiting(self, moment: float) -> dict[str, float]:
        """Key id → when it may ask again, of the keys that have to wait."""
        ends = {
            key_id: account.at - account.tokens * MINUTE / limit for key_id, limit, account in self._limited()
        }
        return {key_id: end for key_id, end in ends.items() if end > moment}

    def settled(self, moment: float) -> Quotas:
        """Without the accounts that are full, or no longer limited."""
        kept = {
            key_id: account
            for key_id, limit, account in self._limited()
            if account.now(limit, moment).tokens < limit
        }
        return replace(self, accounts=kept)

    def _limited(self) -> Iterator[tuple[str, int, Account]]:
        for key_id, account in self.accounts.items():
            limit = self.allowances.of_key(key_id)
            if limit is not None:
                yield key_id, limit, account
