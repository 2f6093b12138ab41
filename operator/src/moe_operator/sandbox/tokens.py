"""Tokens of service accounts, as the token volume of a pod holds them.

A token names its account and carries a keyed digest of the name, so nothing has to be remembered; the key
lives as long as the sandbox.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from moe_operator.sandbox.access import ServiceAccount


class Tokens:
    """Issues tokens and knows its own."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self.admin = secrets.token_urlsafe(24)

    def issue(self, namespace: str, name: str) -> str:
        """The token of an account; always the same one."""
        return f"{namespace}.{name}.{self._digest(namespace, name)}"

    def account(self, token: str) -> ServiceAccount | None:
        """Whose token it is; None for one that was not issued here."""
        namespace, _, rest = token.partition(".")
        name, _, digest = rest.rpartition(".")
        if not hmac.compare_digest(digest.encode(), self._digest(namespace, name).encode()):
            return None
        return ServiceAccount(namespace, name)

    def _digest(self, namespace: str, name: str) -> str:
        return hmac.new(self._key, f"{namespace}/{name}".encode(), hashlib.sha256).hexdigest()
